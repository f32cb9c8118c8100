package feature

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
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

// The disk is the same however full: a small tmpfs of our own, half full.
func TestHostSizeDiskStays(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: it mounts a tmpfs")
	}
	dir := t.TempDir()
	if err := unix.Mount("cordon-test", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("needs tmpfs: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	if err := os.WriteFile(filepath.Join(dir, "f"), make([]byte, 512<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, err := HostSize(dir); err != nil || s.DiskBytes != 1<<20 {
		t.Errorf("got %d bytes of disk, %v; want %d", s.DiskBytes, err, 1<<20)
	}
}
