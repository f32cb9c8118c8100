package initproc

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestLookPath(t *testing.T) {
	dir := t.TempDir()
	other := t.TempDir()
	for path, mode := range map[string]os.FileMode{
		filepath.Join(dir, "plain"): 0o644, filepath.Join(dir, "tool"): 0o755, filepath.Join(other, "plain"): 0o755,
	} {
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, list, want string
		err              error
	}{
		{"tool", dir, filepath.Join(dir, "tool"), nil},
		{"plain", dir + ":" + other, filepath.Join(other, "plain"), nil}, // the first is not executable
		{"plain", dir, "", unix.EACCES},
		{"missing", dir, "", unix.ENOENT},
		{"missing", "", "", unix.ENOENT},
		{"tool", ".:" + dir, filepath.Join(dir, "tool"), nil}, // never the current directory
		{"d", dir, "", unix.EACCES},
		{filepath.Join(dir, "tool"), "", filepath.Join(dir, "tool"), nil},
		{filepath.Join(dir, "d"), "", filepath.Join(dir, "d"), unix.EACCES},
		{"", dir, "", os.ErrNotExist},
	} {
		got, err := lookPath(tc.name, tc.list)
		if !errors.Is(err, tc.err) || (tc.err == nil && got != tc.want) {
			t.Errorf("lookPath(%q, %q) = %q, %v; want %q, %v", tc.name, tc.list, got, err, tc.want, tc.err)
		}
	}
}

func TestInstallFilterRefusesWhatIsNoProgram(t *testing.T) {
	for _, prog := range [][]byte{nil, {1}, make([]byte, 9), make([]byte, 8*(unix.BPF_MAXINSNS+1))} {
		if err := installFilter(prog); err == nil {
			t.Errorf("a program of %d bytes was installed", len(prog))
		}
	}
}
