package linux

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// become hands the command over, reads the child back and lets it go.
func (e *Exec) become(ctx context.Context, spec jail.ExecSpec) error {
	stop := context.AfterFunc(ctx, func() { _ = e.stage.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := e.stage.SetDeadline(time.Now().Add(startTimeout)); err != nil {
		return fmt.Errorf("stage deadline: %w", err)
	}
	setup, err := e.setup(spec)
	if err != nil {
		return err
	}
	if err := initproc.WriteFrame(e.stage, initproc.ToStage{Setup: setup}); err != nil {
		return fmt.Errorf("hand over the command: %w", err)
	}
	m, err := e.hearStage()
	if errors.Is(err, io.EOF) {
		// It carries the workload's uid by now: kill(-1) reaches it.
		return &jail.StartError{Code: 125, Step: "setup", Text: "the run killed it before it became the command"}
	}
	if err != nil {
		return err
	}
	if m.Failed != nil {
		return startError(*m.Failed)
	}
	if !m.Ready {
		return errors.New("hand over the command: the child is not ready")
	}
	if err := e.readBack(); err != nil {
		return err
	}
	if err := initproc.WriteFrame(e.stage, initproc.ToStage{Go: true}); err != nil {
		return fmt.Errorf("let the command go: %w", err)
	}
	if err := e.giveRoomBack(); err != nil {
		return err
	}
	m, err = e.hearStage()
	switch {
	case errors.Is(err, io.EOF):
		return nil // the socket closed on execve
	case err != nil:
		return err
	case m.Failed != nil:
		return startError(*m.Failed)
	default:
		return errors.New("let the command go: unexpected message")
	}
}

func (e *Exec) hearStage() (initproc.FromStage, error) {
	var m initproc.FromStage
	err := initproc.ReadFrame(e.stage, initproc.MaxPacket, &m)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("hear the child: %w", err)
	}
	return m, err
}

// checkCount refuses a command that the process count has no room for:
// joining a cgroup, unlike a fork, is not refused by the kernel.
func (e *Exec) checkCount() error {
	h, work := e.jail.host.groups, filepath.Join(e.jail.plan.LeaseID, workGroup)
	dir := h.v2path(work)
	if h.mode == "hybrid" {
		dir = h.v1path("pids", work)
	}
	if now, most := fileUint(filepath.Join(dir, "pids.current")), fileUint(filepath.Join(dir, "pids.max")); now > most {
		return &jail.StartError{Code: 125, Step: "process_count", Errno: int(unix.EAGAIN), Text: "the run has used it up"}
	}
	return nil
}

func (e *Exec) readBack() error {
	if err := e.checkCount(); err != nil {
		return err
	}
	checks, err := e.jail.readExec(e.pid, e.id)
	if err != nil {
		return err
	}
	for _, c := range checks {
		if !c.OK {
			return fault.New(fault.ReadBackMismatch, c.Name, fmt.Sprintf("the kernel says %q, the plan %q", c.Got, c.Want), "report this; the command was not started")
		}
	}
	return nil
}

func (e *Exec) setup(spec jail.ExecSpec) (*initproc.Setup, error) {
	p := e.jail.plan
	s := &initproc.Setup{
		Cwd: []byte(spec.Cwd), UID: p.UID, GID: p.UID, TTY: spec.TTY, Filter: e.jail.host.filter,
	}
	for _, l := range p.Rlimits {
		n, err := rlimitNumber(l.Name)
		if err != nil {
			return nil, err
		}
		s.Rlimits = append(s.Rlimits, initproc.Rlimit{Resource: n, Value: l.Value})
	}
	for _, a := range spec.Argv {
		s.Argv = append(s.Argv, []byte(a))
	}
	for _, v := range mergeEnv(p.Env, spec.Env) {
		s.Env = append(s.Env, []byte(v))
	}
	return s, nil
}

// mergeEnv lets the command's own variables replace the base ones.
func mergeEnv(base, own []string) []string {
	set := map[string]bool{}
	for _, v := range own {
		name, _, _ := strings.Cut(v, "=")
		set[name] = true
	}
	var out []string
	for _, v := range base {
		if name, _, _ := strings.Cut(v, "="); !set[name] {
			out = append(out, v)
		}
	}
	return append(out, own...)
}

// startError gives the container convention's code.
func startError(f initproc.Failed) *jail.StartError {
	code := 125
	if f.Step == "lookup" || f.Step == "exec" {
		code = 126
		if errno := unix.Errno(f.Errno); errno == unix.ENOENT || errno == unix.ENOTDIR {
			code = 127
		}
	}
	text := unix.Errno(f.Errno).Error()
	if f.Errno == 0 {
		text = f.Text
	}
	return &jail.StartError{Code: code, Step: f.Step, Errno: f.Errno, Text: text}
}

func noEOF(err error) error {
	if err == nil {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Signal sends a signal to the command's first process.
func (e *Exec) Signal(sig int) error { return e.pidfd.Signal(unix.Signal(sig)) }

func (e *Exec) killLeaf() error { return killGroup(e.jail.host.groups.v2path(e.rel())) }

// Kill ends every process of the command; Wait then returns when the last of
// them has ended.
func (e *Exec) Kill() error {
	e.killed.Store(true)
	return e.killLeaf()
}

// Stdin is the command's standard input.
func (e *Exec) Stdin() io.WriteCloser { return e.stdio.in }

// Stdout is the command's standard output, or its terminal.
func (e *Exec) Stdout() io.Reader { return e.stdio.out }

// Stderr is the command's standard error; nil with a terminal.
func (e *Exec) Stderr() io.Reader {
	if e.stdio.err == nil {
		return nil
	}
	return e.stdio.err
}

// Resize sets the terminal's size.
func (e *Exec) Resize(rows, cols uint16) error { return e.stdio.resize(rows, cols) }

// watch notes the end of the first process. Output that is buffered by then
// is still read; what a descendant writes after a grace is not waited for.
func (e *Exec) watch() {
	defer close(e.ended)
	_ = e.pidfd.Wait(context.Background())
	e.stdio.processEnded()
}

// Wait returns when the command's first process has ended.
func (e *Exec) Wait(ctx context.Context) (jail.ExecEnd, error) {
	select {
	case <-e.ended:
	case <-ctx.Done():
		return jail.ExecEnd{}, context.Cause(ctx)
	}
	ws, witness, err := e.status(ctx)
	if err != nil {
		return jail.ExecEnd{}, err
	}
	if e.killed.Load() {
		if err := e.jail.parts.group.waitEvent(ctx, e.jail.host.groups.v2path(e.rel()), "populated", "0"); err != nil {
			return jail.ExecEnd{}, err
		}
	}
	end := jail.ExecEnd{Witness: witness, Usage: e.jail.host.groups.usage(e.rel()), Descendants: e.alive()}
	end.OOMKills = end.Usage.OOMKills
	if ws.Signaled() {
		end.Signal = int(ws.Signal())
		end.SeccompKilled = ws.Signal() == unix.SIGSYS && seccompRecord(e.pid)
	} else {
		end.ExitCode = ws.ExitStatus()
	}
	return end, nil
}

// reapTimeout is how long PID 1 may take to reap a child that has ended.
const reapTimeout = 5 * time.Second

// status is how the process ended: the kernel's word where it can be had,
// else PID 1's.
func (e *Exec) status(ctx context.Context) (unix.WaitStatus, string, error) {
	ctx, cancel := context.WithTimeout(ctx, reapTimeout)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if ws, ok := e.pidfd.ExitStatus(); ok {
			return ws, "kernel", nil
		}
		if ws, ok := e.exited.get(); ok && !e.jail.host.features.PidfdInfo {
			return ws, "init", nil
		}
		select {
		case <-e.exited.ch:
			if !e.jail.host.features.PidfdInfo {
				continue
			}
			<-tick.C // reaped: the kernel's word is a moment away
		case <-tick.C:
		case <-ctx.Done():
			return 0, "", fmt.Errorf("exec %s: PID 1 did not reap it: %w", e.id, context.Cause(ctx))
		}
	}
}

// alive counts the command's processes, its first one's descendants.
func (e *Exec) alive() int {
	b, err := os.ReadFile(filepath.Join(e.jail.host.groups.v2path(e.rel()), "cgroup.procs"))
	if err != nil {
		return 0
	}
	return len(strings.Fields(string(b)))
}

// Close releases what the host holds. The leaf goes now if it is empty, else
// with the lease.
func (e *Exec) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	<-e.ended
	e.jail.forget(e)
	err := errors.Join(e.stdio.close(), e.pidfd.Close())
	if e.alive() == 0 {
		e.jail.inherit(e.rel())
		err = errors.Join(err, e.removeLeaf())
	}
	return err
}

// inherit keeps the counts of a leaf that is about to go.
func (j *Jail) inherit(rel string) {
	u := j.host.groups.usage(rel)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.refused += u.PidsRefused
	j.oomKills += u.OOMKills
}

func (e *Exec) removeLeaf() error {
	var errs []error
	for _, dir := range e.jail.host.groups.dirs(e.rel()) {
		errs = append(errs, removeTree(context.Background(), dir))
	}
	return errors.Join(errs...)
}
