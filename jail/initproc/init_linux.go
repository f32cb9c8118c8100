package initproc

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"cordon/internal/sys"
)

// initProcess is PID 1. mu guards children and orders a fork before the
// report of its end.
type initProcess struct {
	sock *os.File

	mu       sync.Mutex
	children map[int]string // pid -> exec id
}

// RunInit is PID 1's life: it serves the control socket and reaps. It returns
// when the host closes the socket, which ends the jail: the kernel kills every
// process of a pid namespace whose PID 1 is gone.
func RunInit() error {
	if err := harden(); err != nil {
		return err
	}
	sock, err := controlSocket()
	if err != nil {
		return err
	}
	p := &initProcess{sock: sock, children: map[int]string{}}
	chld := make(chan os.Signal, 1)
	signal.Notify(chld, unix.SIGCHLD)
	takeOthers()
	go p.reap(chld)
	if err := p.say(FromInit{Hello: true}); err != nil {
		return err
	}
	return p.serve()
}

// harden closes what was inherited by accident and hides PID 1's memory and
// /proc files from every other process of the jail.
func harden() error {
	if err := unix.CloseRange(ControlFD+1, ^uint(0), 0); err != nil {
		return os.NewSyscallError("close_range", err)
	}
	return os.NewSyscallError("prctl PR_SET_DUMPABLE", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}

func controlSocket() (*os.File, error) {
	unix.CloseOnExec(ControlFD)
	if err := unix.SetNonblock(ControlFD, true); err != nil {
		return nil, os.NewSyscallError("fcntl control socket", err)
	}
	return os.NewFile(ControlFD, "control"), nil
}

// takeOthers keeps the Go runtime from ending PID 1 by a signal: the kernel
// drops what is not handled, and a handler here drops the rest. A handler and
// not SIG_IGN, which every command would inherit.
func takeOthers() {
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM,
		unix.SIGPIPE, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGTTIN, unix.SIGTTOU, unix.SIGTSTP)
}

func (p *initProcess) serve() error {
	buf := make([]byte, MaxPacket)
	for {
		n, files, err := sys.RecvFiles(p.sock, buf, 32)
		if err != nil {
			return fmt.Errorf("control socket: %w", err)
		}
		if n == 0 {
			return nil // the host is gone or done
		}
		if err := p.handle(buf[:n], files); err != nil {
			return err
		}
	}
}

func (p *initProcess) handle(msg []byte, files []*os.File) error {
	defer sys.CloseAll(files...)
	var m ToInit
	if err := json.Unmarshal(msg, &m); err != nil {
		return fmt.Errorf("control message: %w", err)
	}
	if m.Spawn == "" || m.Leaves < 0 || m.Late < 0 || len(files) != LeafFD+m.Leaves+m.Late {
		return fmt.Errorf("control message: %d descriptors for %d and %d leaves", len(files), m.Leaves, m.Late)
	}
	if err := p.spawn(m, files); err != nil {
		var errno syscall.Errno
		_ = errors.As(err, &errno)
		return p.say(FromInit{Failed: &Failed{ID: m.Spawn, Step: "fork", Errno: int(errno), Text: err.Error()}})
	}
	return p.say(FromInit{Spawned: m.Spawn})
}

// spawn starts a parked child. files are the socket, the three standard
// streams and the leaves; in the child the streams come first.
func (p *initProcess) spawn(m ToInit, files []*os.File) error {
	fds := []uintptr{files[1].Fd(), files[2].Fd(), files[3].Fd(), files[0].Fd()}
	for _, f := range files[4:] {
		fds = append(fds, f.Fd())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	pid, err := syscall.ForkExec(Path, []string{"cordon-init", "stage", strconv.Itoa(m.Leaves), strconv.Itoa(m.Late)},
		&syscall.ProcAttr{Dir: "/", Env: []string{"GOGC=off", "GOMAXPROCS=1"}, Files: fds})
	if err != nil {
		return err
	}
	p.children[pid] = m.Spawn
	return nil
}

// reap waits for every child, the orphans that fell to PID 1 among them.
func (p *initProcess) reap(chld <-chan os.Signal) {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.ECHILD):
			<-chld
		case err == nil:
			p.ended(pid, ws)
		}
	}
}

func (p *initProcess) ended(pid int, ws unix.WaitStatus) {
	p.mu.Lock()
	id, ours := p.children[pid]
	delete(p.children, pid)
	p.mu.Unlock()
	if ours {
		// A full or closed socket is the host's business: it has the pidfd.
		_ = p.say(FromInit{Exited: &Exited{ID: id, Status: uint32(ws)}})
	}
}

func (p *initProcess) say(m FromInit) error {
	if m.Failed != nil {
		m.Failed.Text = strings.ToValidUTF8(m.Failed.Text, "?")
	}
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	return sys.SendFiles(p.sock, b)
}
