package sys

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// OpenTree clones the mount at path, without the mounts below it, as a
// detached mount. The caller owns the descriptor; closing it before it is
// attached unmounts.
func OpenTree(path string) (*os.File, error) {
	fd, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, &os.PathError{Op: "open_tree", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// SetMountAttr sets attributes on a mount, and maps its ids through userns
// when that is not nil (the mount must be detached, mount_setattr(2)).
func SetMountAttr(mnt *os.File, set uint64, userns *os.File) error {
	attr := unix.MountAttr{Attr_set: set}
	if userns != nil {
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(userns.Fd())
	}
	err := unix.MountSetattr(int(mnt.Fd()), "", unix.AT_EMPTY_PATH, &attr)
	if err != nil {
		return &os.PathError{Op: "mount_setattr", Path: mnt.Name(), Err: err}
	}
	return nil
}

// MoveMount attaches a detached mount at path.
func MoveMount(mnt *os.File, path string) error {
	err := unix.MoveMount(int(mnt.Fd()), "", unix.AT_FDCWD, path, unix.MOVE_MOUNT_F_EMPTY_PATH)
	if err != nil {
		return &os.PathError{Op: "move_mount", Path: path, Err: err}
	}
	return nil
}

// NewMount makes a file system with fsopen(2) and returns it as a detached
// mount. source may be empty; each option is key or key=value.
func NewMount(fstype, source string, attr int, options ...[2]string) (*os.File, error) {
	fsfd, err := unix.Fsopen(fstype, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, &os.PathError{Op: "fsopen", Path: fstype, Err: err}
	}
	defer unix.Close(fsfd)
	if source != "" {
		options = append([][2]string{{"source", source}}, options...)
	}
	for _, o := range options {
		if err := setOption(fsfd, o); err != nil {
			return nil, &os.PathError{Op: "fsconfig", Path: fstype + " " + o[0] + "=" + o[1], Err: err}
		}
	}
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return nil, &os.PathError{Op: "fsconfig create", Path: fstype + " " + source, Err: err}
	}
	mfd, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, attr)
	if err != nil {
		return nil, &os.PathError{Op: "fsmount", Path: fstype, Err: err}
	}
	return os.NewFile(uintptr(mfd), fstype), nil
}

func setOption(fsfd int, o [2]string) error {
	if o[1] == "" {
		return unix.FsconfigSetFlag(fsfd, o[0])
	}
	return unix.FsconfigSetString(fsfd, o[0], o[1])
}

// OpenBeneath opens path below root without following any link, magic link or
// mount point out of it (openat2(2)); the paths it is for belong to tenants.
// O_CLOEXEC is added, and O_NOCTTY where it is allowed. The caller owns the
// file.
func OpenBeneath(root *os.File, path string, flags int) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   openFlags(flags),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	}
	return openat2(root, path, how)
}

// OpenInRoot opens path with root as "/", crossing mount points but no link:
// for the few files of a jail that cordond itself put there.
func OpenInRoot(root *os.File, path string, flags int) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   openFlags(flags),
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	return openat2(root, path, how)
}

// openFlags completes flags; openat2 refuses O_NOCTTY beside O_PATH.
func openFlags(flags int) uint64 {
	flags |= unix.O_CLOEXEC
	if flags&unix.O_PATH == 0 {
		flags |= unix.O_NOCTTY
	}
	return uint64(flags)
}

func openat2(root *os.File, path string, how unix.OpenHow) (*os.File, error) {
	var fd int
	// EAGAIN: a rename somewhere raced with the walk; the kernel asks for
	// another try.
	for try := 0; ; try++ {
		err := Retry(func() (err error) {
			fd, err = unix.Openat2(int(root.Fd()), path, &how)
			return err
		})
		if err == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
		if !errors.Is(err, unix.EAGAIN) || try == 16 {
			return nil, &os.PathError{Op: "openat2", Path: path, Err: err}
		}
	}
}
