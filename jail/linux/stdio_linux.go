package linux

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cordon/internal/sys"
)

// stdio is a command's three streams: pipes, or one pty of the jail's own
// devpts. Never a socket: one made outside escapes every hook on the cgroup.
type stdio struct {
	in  io.WriteCloser
	out *outReader
	err *outReader // nil with a terminal

	pty   *os.File    // nil with pipes
	child [3]*os.File // the command's ends until they are handed over
}

func newPipes() (*stdio, error) {
	s := &stdio{}
	var ours [3]*os.File
	for i := range ours {
		var err error
		if ours[i], s.child[i], err = sys.Pipe(i == 0); err != nil {
			sys.CloseAll(append(ours[:], s.child[:]...)...)
			return nil, err
		}
	}
	s.in, s.out, s.err = pipeWriter{ours[0]}, newOutReader(ours[1]), newOutReader(ours[2])
	return s, nil
}

// newTerminal opens a pty of the jail's own devpts, so that ttyname(3) works
// inside. PID 1's root is followed once and only to a character device that
// is verified to be a ptmx on devpts: the mount is ours, and nothing in the
// jail can mount.
func (j *Jail) newTerminal(rows, cols uint16) (*stdio, error) {
	root, err := os.OpenFile(fmt.Sprintf("/proc/%d/root", j.pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open terminal: %w", err)
	}
	defer root.Close()
	if j.pidfd.Ended() {
		return nil, errors.New("open terminal: PID 1 has ended")
	}
	pty, err := sys.OpenInRoot(root, "dev/pts/ptmx", unix.O_RDWR|unix.O_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open terminal: %w", err)
	}
	slave, err := j.openSlave(pty)
	if err != nil {
		_ = pty.Close()
		return nil, fmt.Errorf("open terminal: %w", err)
	}
	s := &stdio{in: ttyWriter{pty}, out: newOutReader(pty), pty: pty}
	s.child = [3]*os.File{slave, slave, slave}
	if rows > 0 && cols > 0 {
		if err := s.resize(rows, cols); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	return s, nil
}

func (j *Jail) openSlave(pty *os.File) (*os.File, error) {
	var fd int
	err := onFD(pty, func(master int) error {
		var fs unix.Statfs_t
		if err := unix.Fstatfs(master, &fs); err != nil {
			return os.NewSyscallError("fstatfs ptmx", err)
		}
		if fs.Type != unix.DEVPTS_SUPER_MAGIC {
			return errors.New("ptmx is not on devpts")
		}
		if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
			return os.NewSyscallError("ioctl TIOCSPTLCK", err)
		}
		// TIOCGPTPEER opens the other side without a path that could be
		// swapped (CVE-2025-52565).
		var err error
		fd, err = sys.PtyPeer(master)
		return err
	})
	if err != nil {
		return nil, err
	}
	slave := os.NewFile(uintptr(fd), "pts")
	owner := int(j.plan.IDs.Base + j.plan.UID)
	if err := unix.Fchown(fd, owner, owner); err != nil {
		_ = slave.Close()
		return nil, os.NewSyscallError("fchown pts", err)
	}
	return slave, nil
}

// theirs are the command's ends, to be sent and then closed here.
func (s *stdio) theirs() (in, out, err *os.File) { return s.child[0], s.child[1], s.child[2] }

func (s *stdio) closeTheirs() {
	sys.CloseAll(s.child[:]...)
	s.child = [3]*os.File{}
}

func (s *stdio) resize(rows, cols uint16) error {
	if s.pty == nil {
		return errors.New("resize: the command has no terminal")
	}
	return onFD(s.pty, func(fd int) error {
		return os.NewSyscallError("ioctl TIOCSWINSZ",
			unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}))
	})
}

func (s *stdio) processEnded() {
	s.out.processEnded()
	if s.err != nil {
		s.err.processEnded()
	}
}

func (s *stdio) close() error {
	s.closeTheirs()
	if s.pty == nil {
		_ = s.in.Close()
		_ = s.err.f.Close()
	}
	_ = s.out.f.Close()
	return nil
}

// pipeWriter is standard input. Writing to a command that has ended or has
// closed it is not an error of the caller's: the bytes are dropped.
type pipeWriter struct{ f *os.File }

func (w pipeWriter) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	if errors.Is(err, unix.EPIPE) || errors.Is(err, os.ErrClosed) {
		return len(p), nil
	}
	return n, err
}

func (w pipeWriter) Close() error {
	if err := w.f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// ttyWriter is a terminal's input; Close types the end-of-file character, as
// a person would.
type ttyWriter struct{ f *os.File }

func (w ttyWriter) Write(p []byte) (int, error) {
	n, err := w.f.Write(p)
	if errors.Is(err, unix.EIO) || errors.Is(err, os.ErrClosed) {
		return len(p), nil
	}
	return n, err
}

func (w ttyWriter) Close() error {
	_, err := w.Write([]byte{4})
	return err
}

// outGrace is how long output may still come after the first process has
// ended; outRest bounds what is taken after that from whoever holds the pipe.
const (
	outGrace = 200 * time.Millisecond
	outRest  = 1 << 20
)

// outReader reads a command's output. A descendant that holds the other end
// open does not keep it from ending (golang/go#23019): after the grace, what
// is buffered is taken without waiting, and then it is over.
type outReader struct {
	f    *os.File
	once sync.Once
	rest int
}

func newOutReader(f *os.File) *outReader { return &outReader{f: f, rest: outRest} }

func (r *outReader) processEnded() {
	r.once.Do(func() { _ = r.f.SetReadDeadline(time.Now().Add(outGrace)) })
}

func (r *outReader) Read(p []byte) (int, error) {
	n, err := r.f.Read(p)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return r.readRest(p)
	case errors.Is(err, unix.EIO): // a terminal whose last user has gone
		return n, io.EOF
	case errors.Is(err, os.ErrClosed):
		return n, io.EOF
	}
	return n, err
}

func (r *outReader) readRest(p []byte) (int, error) {
	if len(p) > r.rest {
		p = p[:r.rest]
	}
	if len(p) == 0 {
		return 0, io.EOF
	}
	n := 0
	err := onFD(r.f, func(fd int) error {
		return sys.Retry(func() (err error) {
			n, err = unix.Read(fd, p)
			return err
		})
	})
	if err != nil || n <= 0 {
		return 0, io.EOF
	}
	r.rest -= n
	return n, nil
}

// onFD runs fn on the descriptor without taking it out of the poller.
func onFD(f *os.File, fn func(fd int) error) error {
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
