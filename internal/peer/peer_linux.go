package peer

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Of returns who is at the other end of conn, a connected Unix socket, which
// it borrows. The caller owns the Info and closes it.
//
// A peer that has ended already is an error on kernels that can tell: there
// would be nobody left to hold to account.
func Of(conn syscall.Conn) (Info, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return Info{}, fmt.Errorf("peer credentials: %w", err)
	}
	var info Info
	var asked error
	if err := raw.Control(func(fd uintptr) { info, asked = ask(int(fd)) }); err != nil {
		return Info{}, fmt.Errorf("peer credentials: %w", err)
	}
	if asked != nil {
		return Info{}, fmt.Errorf("peer credentials: %w", asked)
	}
	return info, nil
}

func ask(fd int) (Info, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return Info{}, os.NewSyscallError("getsockopt SO_PEERCRED", err)
	}
	// Sockets that are not Unix sockets answer with pid 0 and the ids of
	// nobody known (-1), without an error.
	if cred.Uid == ^uint32(0) || cred.Gid == ^uint32(0) {
		return Info{}, errors.New("socket has no peer credentials")
	}
	info := Info{UID: cred.Uid, GID: cred.Gid, PID: cred.Pid}
	if info.Groups, err = groups(fd); err != nil {
		return Info{}, os.NewSyscallError("getsockopt SO_PEERGROUPS", err)
	}
	if info.Pidfd, err = pidfd(fd); err != nil {
		return Info{}, os.NewSyscallError("getsockopt SO_PEERPIDFD", err)
	}
	return info, nil
}

// pidfd returns nil where the kernel has no SO_PEERPIDFD (before 6.5).
func pidfd(fd int) (*os.File, error) {
	// The kernel makes it close-on-exec.
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	if errors.Is(err, unix.ENOPROTOOPT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(n), "peer pidfd"), nil
}

// groups asks twice: first with a guess, then with the size the kernel named.
func groups(fd int) ([]uint32, error) {
	got, size, err := peerGroups(fd, 32)
	if errors.Is(err, unix.ERANGE) {
		got, _, err = peerGroups(fd, size)
	}
	return got, err
}
