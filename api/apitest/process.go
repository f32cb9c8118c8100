package apitest

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"

	"cordon/api"
	"cordon/internal/fault"
	"cordon/supervisor"
)

// Size is the size of a terminal.
type Size struct{ Rows, Cols uint16 }

// Process is what a Program sees of the world.
type Process struct {
	Request        supervisor.ExecRequest
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Signals        <-chan int  // holds up to 64
	Sizes          <-chan Size // holds up to 64
	Killed         <-chan struct{}
}

// Exit is the end of a program that exits by itself.
func Exit(code int) supervisor.End {
	return supervisor.End{Cause: supervisor.CauseExited, ExitCode: code, Witness: "kernel"}
}

// process is a command with its current session.
type process struct {
	id      string
	req     supervisor.ExecRequest
	stdin   chan []byte
	eof     chan struct{}
	signals chan int
	sizes   chan Size
	killed  chan struct{}
	done    chan struct{} // closed when end is set

	eofOnce, killOnce sync.Once

	mu  sync.Mutex
	sub *session
	end supervisor.End
}

func (p *process) kill()       { p.killOnce.Do(func() { close(p.killed) }) }
func (p *process) closeStdin() { p.eofOnce.Do(func() { close(p.eof) }) }

func (p *process) info() supervisor.ExecInfo {
	info := supervisor.ExecInfo{ID: p.id, Argv: p.req.Argv, Running: true}
	select {
	case <-p.done:
		info.Running, info.End = false, p.end
	default:
	}
	return info
}

func (p *process) run(program Program) {
	end := program(&Process{
		Request: p.req, Stdin: &stdinReader{p: p},
		Stdout: &outWriter{p: p, stream: supervisor.StreamStdout}, Stderr: &outWriter{p: p, stream: supervisor.StreamStderr},
		Signals: p.signals, Sizes: p.sizes, Killed: p.killed,
	})
	select {
	case <-p.killed:
		end = supervisor.End{Cause: supervisor.CauseCancelled, Witness: "kernel"}
	default:
	}
	p.end = end
	close(p.done)
}

// outWriter waits until the session has taken what is written; without a
// session it is lost.
type outWriter struct {
	p      *process
	stream supervisor.Stream
}

// Write hands b to the session.
func (w *outWriter) Write(b []byte) (int, error) {
	w.p.mu.Lock()
	sub := w.p.sub
	w.p.mu.Unlock()
	select {
	case <-w.p.killed:
		return 0, io.ErrClosedPipe
	default:
	}
	if sub == nil {
		return len(b), nil
	}
	select {
	case sub.out <- supervisor.Output{Stream: w.stream, Data: slices.Clone(b)}:
	case <-sub.gone:
	case <-w.p.killed:
		return 0, io.ErrClosedPipe
	}
	return len(b), nil
}

type stdinReader struct {
	p    *process
	rest []byte
}

// Read waits for input.
func (r *stdinReader) Read(b []byte) (int, error) {
	for len(r.rest) == 0 {
		select {
		case r.rest = <-r.p.stdin:
		case <-r.p.eof:
			return 0, io.EOF
		case <-r.p.killed:
			return 0, io.ErrClosedPipe
		}
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// session is a connection to a process.
type session struct {
	p    *process
	out  chan supervisor.Output
	gone chan struct{}
	once sync.Once

	started, ended bool // of Next's goroutine
}

// Exec starts one of Programs.
func (s *Supervisor) Exec(ctx context.Context, caller supervisor.Caller, ref supervisor.Ref, req supervisor.ExecRequest) (api.Session, error) {
	if len(req.Argv) == 0 {
		return nil, fault.New(fault.InvalidArgument, "argv", "names no command", "give at least the command's name")
	}
	program := s.Programs[req.Argv[0]]
	if program == nil {
		program = func(*Process) supervisor.End {
			end := Exit(127)
			end.StartCode, end.Detail = 127, req.Argv[0]+": not found"
			return end
		}
	}
	var p *process
	_, err := s.withLease("Exec", caller, ref, func(l *lease) {
		p = &process{
			id: fmt.Sprintf("e-%d", len(l.procs)+1), req: req,
			stdin: make(chan []byte), eof: make(chan struct{}),
			signals: make(chan int, 64), sizes: make(chan Size, 64),
			killed: make(chan struct{}), done: make(chan struct{}),
		}
		l.procs[p.id] = p
		s.eventLocked(l, "exec_started", map[string]string{"exec_id": p.id})
	})
	if err != nil {
		return nil, err
	}
	session := p.attach(ctx)
	go p.run(program) // ends with the program, which is the test's
	return session, nil
}

// Attach takes over the session of a command.
func (s *Supervisor) Attach(ctx context.Context, caller supervisor.Caller, ref supervisor.Ref, execID string) (api.Session, error) {
	var p *process
	if _, err := s.withLease("Attach", caller, ref, func(l *lease) { p = l.procs[execID] }); err != nil {
		return nil, err
	}
	if p == nil {
		return nil, fault.New(fault.NotFound, "exec_id", "is no command of this lease", "list them with get")
	}
	return p.attach(ctx), nil
}

func (p *process) attach(ctx context.Context) *session {
	next := &session{p: p, out: make(chan supervisor.Output), gone: make(chan struct{})}
	p.mu.Lock()
	older := p.sub
	p.sub = next
	p.mu.Unlock()
	if older != nil {
		older.leave()
	}
	context.AfterFunc(ctx, next.Detach)
	return next
}

func (c *session) leave() { c.once.Do(func() { close(c.gone) }) }

// Next returns the next output.
func (c *session) Next(ctx context.Context) (supervisor.Output, error) {
	if !c.started {
		c.started = true
		return supervisor.Output{Stream: supervisor.StreamStarted, ExecID: c.p.id}, nil
	}
	if c.ended {
		return supervisor.Output{}, io.EOF
	}
	select {
	case o := <-c.out:
		return o, nil
	case <-c.gone:
		return supervisor.Output{}, fault.New(fault.Conflict, "session", "another client has attached to this command", "attach again")
	case <-c.p.done:
		c.ended = true
		return supervisor.Output{Stream: supervisor.StreamEnd, End: c.p.end}, nil
	case <-ctx.Done():
		return supervisor.Output{}, context.Cause(ctx)
	}
}

// Write feeds the command.
func (c *session) Write(ctx context.Context, b []byte) error {
	select {
	case c.p.stdin <- slices.Clone(b):
		return nil
	case <-c.p.eof:
		return fault.New(fault.WrongState, "stdin", "is closed", "do not write after closing it")
	case <-c.p.done:
		return nil
	case <-c.gone:
		return fault.New(fault.WrongState, "session", "is detached", "attach again")
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// CloseStdin ends the command's input.
func (c *session) CloseStdin() error {
	c.p.closeStdin()
	return nil
}

// Signal puts sig into Process.Signals.
func (c *session) Signal(sig int) error {
	select {
	case c.p.signals <- sig:
	default:
	}
	return nil
}

// Resize puts a size into Process.Sizes.
func (c *session) Resize(rows, cols uint16) error {
	select {
	case c.p.sizes <- Size{rows, cols}:
	default:
	}
	return nil
}

// Detach kills the command unless it is kept or another session has it.
func (c *session) Detach() {
	c.p.mu.Lock()
	mine := c.p.sub == c
	if mine {
		c.p.sub = nil
	}
	c.p.mu.Unlock()
	c.leave()
	if mine && !c.p.req.Keep {
		c.p.kill()
	}
}
