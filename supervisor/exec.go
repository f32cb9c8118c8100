package supervisor

import (
	"context"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"cordon/internal/fault"
	"cordon/jail"
	"cordon/supervisor/evidence"
)

// Limits of a command line. Linux takes 128 KiB for one string and a quarter
// of the stack limit, usually 2 MiB, for all of them with their pointers
// (execve(2)); we stay below, so that the refusal is ours and has a reason.
const (
	mostArgument = 128<<10 - 1
	mostLine     = 1 << 20
	mostCwd      = 4095
)

// Bounds of what a record holds of each command.
const (
	mostArgv0      = 128
	mostExecDetail = 256
)

// Defaults of ExecRequest.
const (
	defaultCwd  = "/workspace"
	defaultRows = 24
	defaultCols = 80
)

// ExecRequest is one command to run in a lease.
type ExecRequest struct {
	Argv       []string // required
	Env        []string // NAME=value
	Cwd        string   // absolute; default /workspace
	TTY        bool
	Rows, Cols uint16 // with TTY; default 24 by 80
	// Timeout ends this command alone; 0: the lease's end does.
	Timeout time.Duration
	// Keep lets the command go on when its session ends.
	Keep bool
}

// envName is what a shell can name (POSIX, Base Definitions 8.1).
var envName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// checked returns the request with its defaults, or the first reason why no
// kernel would take it.
func (r ExecRequest) checked() (ExecRequest, error) {
	if r.Cwd == "" {
		r.Cwd = defaultCwd
	}
	if r.TTY && r.Rows == 0 && r.Cols == 0 {
		r.Rows, r.Cols = defaultRows, defaultCols
	}
	for _, check := range []func() error{r.checkArgv, r.checkEnv, r.checkSize, r.checkCwd} {
		if err := check(); err != nil {
			return r, err
		}
	}
	if r.Timeout < 0 {
		return r, invalid("timeout", "is negative", "leave it out for none")
	}
	return r, nil
}

func invalid(field, cause, remedy string) error {
	return fault.New(fault.InvalidArgument, field, cause, remedy)
}

func (r ExecRequest) checkArgv() error {
	if len(r.Argv) == 0 || r.Argv[0] == "" {
		return invalid("argv", "names no command", "give at least the command's name")
	}
	for i, a := range r.Argv {
		if strings.ContainsRune(a, 0) {
			return invalid(fmt.Sprintf("argv[%d]", i), "holds a zero byte", "pass such data on stdin or in a file")
		}
	}
	return nil
}

func (r ExecRequest) checkEnv() error {
	seen := make(map[string]bool, len(r.Env))
	for i, e := range r.Env {
		name, value, ok := strings.Cut(e, "=")
		field := fmt.Sprintf("env[%d]", i)
		switch {
		case !ok || !envName.MatchString(name):
			return invalid(field, fmt.Sprintf("%.40q is not NAME=value", e), "use letters, digits and _ in the name")
		case strings.ContainsRune(value, 0):
			return invalid(field, name+" holds a zero byte", "pass such data on stdin or in a file")
		case seen[name]:
			return invalid(field, name+" is given twice", "give it once")
		}
		seen[name] = true
	}
	return nil
}

func (r ExecRequest) checkSize() error {
	const remedy = "pass long data on stdin or in a file"
	total := 0
	for _, list := range []struct {
		name string
		of   []string
	}{{"argv", r.Argv}, {"env", r.Env}} {
		for i, s := range list.of {
			if len(s) > mostArgument {
				return fault.New(fault.TooLarge, fmt.Sprintf("%s[%d]", list.name, i),
					fmt.Sprintf("has %d bytes, at most %d", len(s), mostArgument), remedy)
			}
			total += len(s) + 9 // its zero byte and its pointer
		}
	}
	if total > mostLine {
		return fault.New(fault.TooLarge, "argv", fmt.Sprintf("and env have %d bytes, at most %d", total, mostLine), remedy)
	}
	return nil
}

func (r ExecRequest) checkCwd() error {
	if !path.IsAbs(r.Cwd) || len(r.Cwd) > mostCwd || strings.ContainsRune(r.Cwd, 0) {
		return invalid("cwd", fmt.Sprintf("%.40q is not an absolute path", r.Cwd), "give a path inside the sandbox, as in /workspace")
	}
	return nil
}

// Exec starts a command. Its session lives until ctx ends or Detach: without
// Keep the command is then ended too.
func (s *Supervisor) Exec(ctx context.Context, caller Caller, ref Ref, r ExecRequest) (*Session, error) {
	r, err := r.checked()
	if err != nil {
		return nil, err
	}
	l, err := s.active(caller, ref)
	if err != nil {
		return nil, err
	}
	x, session, err := l.admitCommand(r, s.cfg.MaxExecs)
	if err != nil {
		return nil, err
	}
	s.notePlace(x)
	bound, stop := l.bind(ctx)
	defer stop()
	exec, err := l.theJail().Exec(bound, jail.ExecSpec{
		ID: x.id, Argv: r.Argv, Env: r.Env, Cwd: r.Cwd, TTY: r.TTY, Rows: r.Rows, Cols: r.Cols,
	})
	if err != nil {
		err = because(bound, portFault("start command "+x.id, l.id, err))
		s.finishUnstarted(x, err)
		return nil, err
	}
	l.events.add(eventStarted, map[string]string{"exec_id": x.id, "argv0": clipText(r.Argv[0])})
	s.begin(x, exec)
	session.hold(ctx)
	return session, nil
}

// admitCommand gives a command its place in the lease, and its first session.
func (l *lease) admitCommand(r ExecRequest, most int) (*command, *Session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entry.State != Active {
		return nil, nil, errState(l.entry.State)
	}
	if len(l.commands) >= most {
		return nil, nil, fault.New(fault.TooLarge, "execs", fmt.Sprintf("%d commands run in this lease already", most), "wait for one to end")
	}
	l.lastExec++
	x := newCommand(l, fmt.Sprintf("e-%d", l.lastExec), r)
	session := newSession(x)
	x.sub = session
	l.commands[x.id] = x
	if len(l.execs) >= mostListed {
		x.place = -1
		l.unlisted++
		return x, session, nil
	}
	x.place = len(l.execs)
	l.execs = append(l.execs, evidence.Exec{
		ID: x.id, Argv0: clipTo(r.Argv[0], mostArgv0), ArgvDigest: evidence.ArgvDigest(r.Argv), StartedAt: x.started.UTC(),
	})
	return x, session, nil
}

// notePlace queues what the record says of a command by now.
func (s *Supervisor) notePlace(x *command) {
	if x.place < 0 {
		return
	}
	x.lease.mu.Lock()
	p := progress{fencing: x.lease.entry.Fencing, kind: progressExec, index: uint32(x.place), value: x.lease.execs[x.place]}
	x.lease.mu.Unlock()
	s.later(p)
}

// finishUnstarted gives an end to a command that the jail did not take.
func (s *Supervisor) finishUnstarted(x *command, err error) {
	end := End{Cause: CauseInfrastructure, StartCode: codeNoStart, Detail: err.Error()}
	if l := x.lease; l.ctx.Err() != nil {
		did := actOf(l.snapshot().End)
		end.Cause, end.Detail = did.cause, did.detail
	}
	x.setOver()
	s.finishCommand(x, end)
}

// finishCommand gives a command its end, everywhere.
func (s *Supervisor) finishCommand(x *command, end End) {
	end.Detail = clipTo(end.Detail, mostExecDetail)
	l := x.lease
	l.mu.Lock()
	delete(l.commands, x.id)
	if x.place >= 0 && !l.sealed {
		rec := &l.execs[x.place]
		rec.EndedAt, rec.End = time.Now().UTC(), recordEnd(end)
		rec.Usage = recordUsage(end.Usage, end.Descendants)
	}
	if x.keep && !l.sealed {
		x.trim()
		l.finished = append(l.finished, x)
		if len(l.finished) > mostFinished {
			l.finished = slices.Delete(l.finished, 0, 1)
		}
	}
	l.mu.Unlock()
	s.notePlace(x)
	l.events.add(eventEnded, map[string]string{"exec_id": x.id, "cause": end.Cause.String()})
	x.finish(end)
}
