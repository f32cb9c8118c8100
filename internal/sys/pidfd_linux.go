package sys

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Pidfd is a handle on one process that no pid reuse can change.
type Pidfd struct {
	// f is non-blocking, so the runtime's poller waits on it (the kernel
	// makes a pidfd readable when the process has ended).
	f *os.File
}

// OpenPidfd opens the process pid. The caller must know by other means that
// pid still is the process it means.
func OpenPidfd(pid int) (*Pidfd, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	return &Pidfd{f: os.NewFile(uintptr(fd), "pidfd")}, nil
}

// NewPidfd takes ownership of f, a pidfd received from another process.
func NewPidfd(f *os.File) (*Pidfd, error) {
	// A descriptor that comes by SCM_RIGHTS keeps its open file's flags; make
	// it pollable whatever they are.
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	_ = f.Close()
	if err != nil {
		return nil, os.NewSyscallError("fcntl F_DUPFD_CLOEXEC", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return &Pidfd{f: os.NewFile(uintptr(fd), "pidfd")}, nil
}

// Close closes the handle; it is idempotent and nil-safe.
func (p *Pidfd) Close() error {
	if p == nil {
		return nil
	}
	if err := p.f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// Signal sends sig; ErrProcessDone when the process has ended.
func (p *Pidfd) Signal(sig unix.Signal) error {
	err := control(p.f, func(fd int) error {
		return os.NewSyscallError("pidfd_send_signal", unix.PidfdSendSignal(fd, sig, nil, 0))
	})
	if errors.Is(err, unix.ESRCH) {
		return os.ErrProcessDone
	}
	return err
}

// Wait returns when the process has ended (as a zombie or for good).
func (p *Pidfd) Wait(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- p.wait() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *Pidfd) wait() error {
	rc, err := p.f.SyscallConn()
	if err != nil {
		return err
	}
	err = rc.Read(func(fd uintptr) bool { return hasEnded(int(fd)) })
	return err
}

func hasEnded(fd int) bool {
	pfd := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(pfd, 0)
	return err == nil && n > 0
}

// Ended reports whether the process has ended, without waiting.
func (p *Pidfd) Ended() bool {
	ended := false
	err := control(p.f, func(fd int) error {
		ended = hasEnded(fd)
		return nil
	})
	return err != nil || ended
}

// Reap waits for the process as our child and returns its wait status. It is
// an error (ECHILD) when it is not ours.
func (p *Pidfd) Reap() (unix.Siginfo, error) {
	var info unix.Siginfo
	err := control(p.f, func(fd int) error {
		return Retry(func() error {
			return os.NewSyscallError("waitid",
				unix.Waitid(unix.P_PIDFD, fd, &info, unix.WEXITED|unix.WNOHANG, nil))
		})
	})
	return info, err
}
