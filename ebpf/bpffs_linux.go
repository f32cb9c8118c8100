package ebpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"cordon/internal/fault"
	"cordon/internal/sys"
)

// mountSource is the source shown in the mount table, by which a later daemon
// knows the mount for its own.
const mountSource = "cordon-bpf"

var errNotBPFFS = errors.New("not on a bpf file system")

// MountBPFFS makes an instance of the bpf file system at dir, an existing
// directory, readable by root alone; an instance that is already there is
// used as it is, if only root can enter it. The function returned unmounts an
// instance that this function made, now or in an earlier process, and leaves
// any other.
func MountBPFFS(dir string) (unmount func() error, err error) {
	target, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, fmt.Errorf("mount bpffs: %w", err)
	}
	switch err := onFilesystem(target, unix.BPF_FS_MAGIC); {
	case errors.Is(err, errNotBPFFS):
		if err := mountBPFFS(target); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, fmt.Errorf("mount bpffs: %w", err)
	}
	if err := checkPrivate(target); err != nil {
		return nil, err
	}
	ours, err := madeHere(target)
	if err != nil {
		return nil, err
	}
	if !ours {
		return func() error { return nil }, nil
	}
	return func() error {
		if err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) {
			return &os.PathError{Op: "umount", Path: target, Err: err}
		}
		return nil // EINVAL: no longer a mount point
	}, nil
}

func mountBPFFS(dir string) error {
	mnt, err := sys.NewMount("bpf", mountSource,
		unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC,
		[2]string{"mode", "0700"})
	if err != nil {
		return fault.Wrap(err, fault.MissingFeature, "ebpf.bpffs", "the bpf file system cannot be mounted",
			"run as root on Linux "+MinKernel+" or newer")
	}
	defer mnt.Close()
	if err := sys.MoveMount(mnt, dir); err != nil {
		return fmt.Errorf("mount bpffs: %w", err)
	}
	return nil
}

// checkPrivate refuses a directory that others can enter: who can open a pin
// can change the maps.
func checkPrivate(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("check bpffs: %w", err)
	}
	st, err := inode(dir)
	if err != nil {
		return fmt.Errorf("check bpffs: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 || st.Uid != 0 {
		return fault.New(fault.PermissionDenied, "ebpf.bpffs",
			fmt.Sprintf("%s is owned by uid %d with mode %v", dir, st.Uid, info.Mode().Perm()),
			"give a directory of its own, owned by root with mode 0700")
	}
	return nil
}

func madeHere(dir string) (bool, error) {
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return m.Mountpoint != dir, false
	})
	if err != nil {
		return false, fmt.Errorf("read mount table: %w", err)
	}
	// The last of several mounts on one directory is the one seen.
	n := len(mounts)
	return n > 0 && mounts[n-1].FSType == "bpf" && mounts[n-1].Source == mountSource, nil
}
