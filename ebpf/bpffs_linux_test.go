package ebpf

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"cordon/internal/fault"
)

func TestMountBPFFS(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: mounts a file system")
	}
	dir := t.TempDir()
	first, err := MountBPFFS(dir)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode of the mount: %v, %v", info.Mode(), err)
	}
	// A later process finds the mount, and it is its own to unmount.
	again, err := MountBPFFS(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, unmount := range []func() error{again, first} {
		if err := unmount(); err != nil {
			t.Errorf("unmount %d: %v", i, err)
		}
		if err := onFilesystem(dir, unix.BPF_FS_MAGIC); err == nil {
			t.Errorf("unmount %d: still mounted", i)
		}
	}
}

func TestMountBPFFSLeavesForeignMounts(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: mounts a file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("somebody", dir, "bpf", 0, "mode=0700"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	unmount, err := MountBPFFS(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := unmount(); err != nil {
		t.Error(err)
	}
	if err := onFilesystem(dir, unix.BPF_FS_MAGIC); err != nil {
		t.Errorf("a mount of somebody else is gone: %v", err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := MountBPFFS(dir); fault.CodeOf(err) != fault.PermissionDenied {
		t.Errorf("a mount open to all: %v", err)
	}
	if _, err := MountBPFFS(filepath.Join(dir, "none")); err == nil {
		t.Error("mounted on nothing")
	}
}
