package feature

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"
)

func TestHostSize(t *testing.T) {
	s, err := HostSize(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if s.CPUs < 1 || s.MemoryBytes < 64<<20 || s.DiskBytes <= 0 || s.PidMax < 300 {
		t.Errorf("HostSize() = %+v, want a machine", s)
	}
	if _, err := HostSize(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing directory: %v", err)
	}
}
