package linux

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"cordon/internal/cleanup"
	"cordon/internal/fault"
	"cordon/internal/sys"
	"cordon/jail"
	"cordon/jail/initproc"
	"cordon/supervisor"
)

// Exec is one command in a jail.
type Exec struct {
	jail  *Jail
	id    string
	pid   int
	pidfd *sys.Pidfd
	stage *os.File
	stdio *stdio
	ended chan struct{} // closed when the command's first process has ended

	room   int // what it takes of the process count while it waits, in the v2 tree
	killed atomic.Bool

	exited  once[unix.WaitStatus] // PID 1's word
	refused once[initproc.Failed] // PID 1 could not fork

	mu     sync.Mutex
	closed bool
}

// once holds a value that is set at most one time.
type once[T any] struct {
	mu   sync.Mutex
	held bool
	val  T
	ch   chan struct{}
}

func newOnce[T any]() once[T] { return once[T]{ch: make(chan struct{})} }

func (o *once[T]) set(v T) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.held {
		o.held, o.val = true, v
		close(o.ch)
	}
}

func (o *once[T]) get() (T, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.val, o.held
}

// startTimeout bounds each answer of a child that is to become a command.
const startTimeout = 10 * time.Second

// Exec starts a command: a leaf cgroup, a parked child in it, everything
// dropped and read back, and go. A command that cannot be found or executed
// is no error but one whose end says so. On an error nothing of it is left.
func (j *Jail) Exec(ctx context.Context, spec jail.ExecSpec) (supervisor.Exec, error) {
	e, err := j.exec(ctx, spec)
	if start, ok := errors.AsType[*jail.StartError](err); ok {
		return neverRan{start}, nil
	}
	if err != nil {
		return nil, err
	}
	return e, nil
}

func (j *Jail) exec(ctx context.Context, spec jail.ExecSpec) (*Exec, error) {
	e, err := j.child(ctx, spec)
	if err != nil {
		return nil, err
	}
	if err := e.become(ctx, spec); err != nil {
		return nil, errors.Join(err, e.abandon())
	}
	_ = e.stage.Close()
	go e.watch()
	j.wantSpare()
	return e, nil
}

// child is a parked child for a command: the spare one where there is one
// and pipes will do, else a new one.
func (j *Jail) child(ctx context.Context, spec jail.ExecSpec) (*Exec, error) {
	if spec.TTY {
		s, err := j.newTerminal(spec.Rows, spec.Cols)
		if err != nil {
			return nil, err
		}
		return j.park(ctx, s)
	}
	if e := j.takeSpare(ctx); e != nil {
		return e, nil
	}
	s, err := newPipes()
	if err != nil {
		return nil, err
	}
	return j.park(ctx, s)
}

// park makes a leaf and has PID 1 start a child that waits in it. It takes
// ownership of s. On error nothing of it is left.
func (j *Jail) park(ctx context.Context, s *stdio) (_ *Exec, err error) {
	var undo cleanup.Stack
	defer func() {
		if err != nil {
			err = errors.Join(err, undo.Run())
		}
	}()
	undo.Push(s.close)
	e, err := j.adopt(s)
	if err != nil {
		return nil, err
	}
	undo.Push(func() error { j.forget(e); return nil })
	undo.Push(e.removeLeaf)
	if err := j.host.groups.create(e.rel(), limits{}); err != nil {
		return nil, err
	}
	undo.Push(e.killLeaf)
	undo.Push(e.giveRoomBack)
	if err := j.makeRoom(startTasks); err != nil {
		return nil, err
	}
	if err := e.spawn(ctx); err != nil {
		return nil, err
	}
	if err := e.settleRoom(); err != nil {
		return nil, err
	}
	undo.Disarm()
	return e, nil
}

// abandon ends a parked child and removes all of it.
func (e *Exec) abandon() error {
	defer e.jail.forget(e)
	return errors.Join(e.killLeaf(), e.stage.Close(), e.pidfd.Close(), e.stdio.close(), e.removeLeaf(), e.giveRoomBack())
}

// adopt gives a child its name, by which PID 1's words find it.
func (j *Jail) adopt(s *stdio) (*Exec, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil, fault.New(fault.WrongState, "lease", "the sandbox is closed", "acquire another lease")
	}
	j.children++
	e := &Exec{
		jail: j, id: "c-" + strconv.Itoa(j.children), stdio: s, room: startTasks,
		ended: make(chan struct{}), exited: newOnce[unix.WaitStatus](), refused: newOnce[initproc.Failed](),
	}
	j.execs[e.id] = e
	return e, nil
}

func (j *Jail) forget(e *Exec) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.execs, e.id)
}

func (e *Exec) rel() string {
	return filepath.Join(e.jail.plan.LeaseID, workGroup, e.id)
}

// spawn asks PID 1 for a child and waits until it stands in its leaf.
func (e *Exec) spawn(ctx context.Context) (err error) {
	ours, theirs, err := sys.StreamPair("stage")
	if err != nil {
		return err
	}
	defer theirs.Close()
	defer func() {
		if err != nil {
			_ = ours.Close()
		}
	}()
	if err := sys.PassCred(ours); err != nil {
		return err
	}
	early, late, err := e.jail.host.groups.joinFiles(e.rel())
	if err != nil {
		return err
	}
	leaves := append(early, late...) //nolint:gocritic // one list, in the order of the message
	defer sys.CloseAll(leaves...)
	msg, err := json.Marshal(initproc.ToInit{Spawn: e.id, Leaves: len(early), Late: len(late)})
	if err != nil {
		return fmt.Errorf("encode spawn: %w", err)
	}
	in, out, errw := e.stdio.theirs()
	if err := sys.SendFiles(e.jail.control, msg, append([]*os.File{theirs, in, out, errw}, leaves...)...); err != nil {
		return fmt.Errorf("ask PID 1 for a child: %w", err)
	}
	_ = theirs.Close()
	e.stdio.closeTheirs()
	e.stage = ours
	return e.meet(ctx)
}

// meet takes the child's first frame and, from the kernel, its pid.
func (e *Exec) meet(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = e.stage.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := e.stage.SetDeadline(time.Now().Add(startTimeout)); err != nil {
		return fmt.Errorf("stage deadline: %w", err)
	}
	buf := make([]byte, 256)
	n, pid, err := sys.RecvPid(e.stage, buf)
	if err != nil || n == 0 {
		if f, ok := e.refused.get(); ok {
			return fmt.Errorf("PID 1 cannot start a child: %s: %s", f.Step, f.Text)
		}
		return fmt.Errorf("wait for a child: %w", noEOF(err))
	}
	var m initproc.FromStage
	if err := initproc.ReadFrame(strings.NewReader(string(buf[:n])), len(buf), &m); err != nil || !m.Parked {
		if m.Failed != nil {
			return startError(*m.Failed)
		}
		return fmt.Errorf("wait for a child: unexpected message %q", buf[:n])
	}
	if e.pidfd, err = sys.OpenPidfd(pid); err != nil {
		return err
	}
	e.pid = pid
	return nil
}
