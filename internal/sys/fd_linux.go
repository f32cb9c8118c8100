package sys

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Retry calls fn until it returns something other than EINTR.
func Retry(fn func() error) error {
	for {
		err := fn()
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// CloseAll closes every non-nil file. Errors are dropped: it is for
// descriptors that carry no data of their own.
func CloseAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// SeqPair returns a connected pair of SOCK_SEQPACKET Unix sockets. The caller
// owns both.
func SeqPair(name string) (ours, theirs *os.File, err error) {
	return pair(unix.SOCK_SEQPACKET, name)
}

// StreamPair returns a connected pair of stream Unix sockets. The caller owns
// both.
func StreamPair(name string) (ours, theirs *os.File, err error) {
	return pair(unix.SOCK_STREAM, name)
}

// Pipe returns a pipe for a child's standard stream: our end goes through the
// poller, the child's blocks, as programs expect. toChild says which way. The
// caller owns both.
func Pipe(toChild bool) (ours, theirs *os.File, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	mine, other := fds[0], fds[1]
	if toChild {
		mine, other = other, mine
	}
	if err := unix.SetNonblock(mine, true); err != nil {
		_, _ = unix.Close(mine), unix.Close(other)
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(mine), "pipe"), os.NewFile(uintptr(other), "pipe"), nil
}

// PtyPeer opens the terminal that belongs to a pty master (TIOCGPTPEER,
// ioctl_tty(2)), not as controlling terminal. The caller owns the descriptor.
func PtyPeer(master int) (int, error) {
	// Given O_CLOEXEC the kernel keeps it in the file's own flags as well,
	// where /proc/*/fdinfo shows it for every copy; set it on the descriptor
	// instead, with no fork in between.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	fd, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY)
	if e != 0 {
		return -1, os.NewSyscallError("ioctl TIOCGPTPEER", e)
	}
	unix.CloseOnExec(int(fd))
	return int(fd), nil
}

func pair(typ int, name string) (*os.File, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, typ|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	// Our end goes through the poller, so that a Read can be ended by Close
	// and bounded by a deadline.
	if err := unix.SetNonblock(fds[0], true); err != nil {
		_, _ = unix.Close(fds[0]), unix.Close(fds[1])
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name), nil
}

// SendFiles writes one message with descriptors on a socket. It borrows all
// of them; the receiver gets copies.
func SendFiles(sock *os.File, msg []byte, files ...*os.File) error {
	var oob []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		oob = unix.UnixRights(fds...)
	}
	return onRaw(sock, true, func(fd int) error {
		return os.NewSyscallError("sendmsg", unix.Sendmsg(fd, msg, oob, nil, unix.MSG_NOSIGNAL))
	})
}

// RecvFiles reads one message of at most len(buf) bytes and no more than most
// descriptors, which the caller owns. More descriptors, or a longer message,
// is an error and leaves none open.
func RecvFiles(sock *os.File, buf []byte, most int) (int, []*os.File, error) {
	oob := make([]byte, unix.CmsgSpace(most*4))
	var n, oobn, flags int
	err := onRaw(sock, false, func(fd int) error {
		var err error
		n, oobn, flags, _, err = unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
		return os.NewSyscallError("recvmsg", err)
	})
	if err != nil {
		return 0, nil, err
	}
	files, err := rights(oob[:oobn])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = fmt.Errorf("recvmsg %s: message or descriptors cut short", sock.Name())
	}
	if err != nil {
		CloseAll(files...)
		return 0, nil, err
	}
	return n, files, nil
}

func rights(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, os.NewSyscallError("parse control message", err)
	}
	var files []*os.File
	for i := range msgs {
		fds, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			continue // credentials and the like carry no descriptors
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

// RecvPid reads one message and the kernel's word for the sender's pid in our
// pid namespace (SO_PASSCRED must be on). Descriptors a sender attached are
// dropped by the kernel for want of room, never received.
func RecvPid(sock *os.File, buf []byte) (n, pid int, err error) {
	oob := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	var oobn int
	err = onRaw(sock, false, func(fd int) error {
		var err error
		n, oobn, _, _, err = unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
		return os.NewSyscallError("recvmsg", err)
	})
	if err != nil {
		return 0, 0, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return 0, 0, os.NewSyscallError("parse control message", err)
	}
	for i := range msgs {
		if cred, err := unix.ParseUnixCredentials(&msgs[i]); err == nil {
			return n, int(cred.Pid), nil
		}
	}
	return n, 0, nil
}

// PassCred makes the kernel attach the sender's credentials to what arrives.
func PassCred(sock *os.File) error {
	return control(sock, func(fd int) error {
		return os.NewSyscallError("setsockopt SO_PASSCRED",
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1))
	})
}

// onRaw runs one socket call under the poller, so that deadlines and Close
// hold, and waits where the call would block.
func onRaw(f *os.File, write bool, fn func(fd int) error) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var callErr error
	step := func(fd uintptr) bool {
		callErr = Retry(func() error { return fn(int(fd)) })
		return !errors.Is(callErr, unix.EAGAIN)
	}
	if write {
		err = rc.Write(step)
	} else {
		err = rc.Read(step)
	}
	if err != nil {
		return err
	}
	return callErr
}

func control(f *os.File, fn func(fd int) error) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var callErr error
	if err := rc.Control(func(fd uintptr) { callErr = fn(int(fd)) }); err != nil {
		return err
	}
	return callErr
}

// PollUntil calls ready every step until it returns true or the time is up,
// and reports whether it did. For kernel state that has no event to wait for.
func PollUntil(limit, step time.Duration, ready func() bool) bool {
	deadline := time.Now().Add(limit)
	for !ready() {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(step)
	}
	return true
}
