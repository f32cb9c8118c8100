package linux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cordon/internal/fault"
	"cordon/jail"
	"cordon/jail/initproc"
)

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
