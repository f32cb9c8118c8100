package api

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cordon/internal/fault"
)

const (
	dirMode      = 0o750
	socketUmask  = 0o117 // leaves 0660 of the 0777 that bind starts from
	maxSocketLen = 107   // sun_path is 108 bytes, the last of them NUL
)

// Listen makes the daemon's socket at path: mode 0660, in a directory of mode
// 0750, both owned by the daemon's user and by group gid (-1: the daemon's
// own group). The directory is made, or found to be tight enough, before the
// socket exists, so there is no moment at which others could reach it.
//
// A socket that a dead daemon left is replaced; with a live one Listen fails
// with fault.DaemonRunning. Closing the listener removes the socket.
//
// The process's umask is changed for the length of one bind: call it before
// starting goroutines that make files.
func Listen(path string, gid int) (net.Listener, error) {
	if err := checkSocketPath(path); err != nil {
		return nil, err
	}
	dir, err := socketDir(filepath.Dir(path), gid)
	if err != nil {
		return nil, err
	}
	// Closing it gives up the lock taken below: it is only there so that two
	// daemons that start together do not remove each other's socket.
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fault.New(fault.DaemonRunning, path, "another daemon is starting on this socket",
				"stop the other daemon, or give this one a socket of its own")
		}
		return nil, fmt.Errorf("listen %s: lock directory: %w", path, err)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	return bind(path, gid)
}

func checkSocketPath(path string) error {
	switch {
	case !filepath.IsAbs(path) || filepath.Clean(path) != path || path == "/":
		return fault.New(fault.InvalidArgument, "socket", fmt.Sprintf("%q is not a clean absolute path", path),
			"write the whole path, without .. or doubled slashes")
	case len(path) > maxSocketLen:
		return fault.New(fault.InvalidArgument, "socket",
			fmt.Sprintf("%q is %d bytes long; the kernel allows %d", path, len(path), maxSocketLen),
			"choose a shorter path, such as /run/cordon/api/cordond.sock")
	}
	return nil
}

// socketDir makes the directory, or checks the one that is there, and returns
// it open. The parent must exist.
func socketDir(name string, gid int) (*os.File, error) {
	// A mode that umask has cut down is put right below, on the descriptor.
	if err := os.Mkdir(name, dirMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("listen: %w", err)
	}
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return nil, badDir(name, "is not a directory, or is a symbolic link")
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	dir := os.NewFile(uintptr(fd), name)
	if err := tightenDir(dir, gid); err != nil {
		_ = dir.Close()
		return nil, err
	}
	return dir, nil
}

// tightenDir refuses a directory that others own, may write or may enter,
// rather than changing it: it may be one that is not ours to change, as /run.
func tightenDir(dir *os.File, gid int) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		return &os.PathError{Op: "stat", Path: dir.Name(), Err: err}
	}
	if int(st.Uid) != os.Geteuid() {
		return badDir(dir.Name(), fmt.Sprintf("belongs to uid %d, not to uid %d", st.Uid, os.Geteuid()))
	}
	if st.Mode&0o027 != 0 {
		return badDir(dir.Name(), fmt.Sprintf("has mode %#o; others may enter it or its group may write", st.Mode&0o7777))
	}
	if err := dir.Chown(-1, gid); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if err := dir.Chmod(dirMode); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	return nil
}

func badDir(name, cause string) error {
	return fault.New(fault.InvalidArgument, "socket", name+" "+cause,
		"give the socket a directory of its own, mode 0750 (RuntimeDirectoryMode=0750 in the unit)")
}

// removeStale removes a socket that nobody listens on.
func removeStale(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if st.Mode().Type() != fs.ModeSocket {
		return fault.New(fault.InvalidArgument, "socket", path+" exists and is not a socket",
			"move it away, or choose another path")
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err == nil {
		_ = conn.Close()
		return fault.New(fault.DaemonRunning, path, "a daemon is listening on this socket",
			"stop the other daemon, or give this one a socket of its own")
	}
	// Anything else, as a full backlog (EAGAIN), is a sign of life.
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fault.Wrap(err, fault.DaemonRunning, path, "the socket is there and does not say that it is unused",
			"see which process holds it (ss -xlp), and remove it if none does")
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("listen: remove stale socket: %w", err)
	}
	return nil
}

func bind(path string, gid int) (net.Listener, error) {
	old := unix.Umask(socketUmask)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	// Until here only our own group could connect, after this only gid can.
	if err := os.Lchown(path, -1, gid); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}
