package supervisor

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"

	"cordon/internal/fault"
)

// Stream says what an Output is.
type Stream int

// The kinds of Output. StreamStarted comes first and has ExecID; StreamStdout
// and StreamStderr have Data; StreamEnd comes last and has End.
const (
	StreamStarted Stream = iota + 1
	StreamStdout
	StreamStderr
	StreamEnd
)

// Output is one thing that a command says.
type Output struct {
	Stream Stream
	ExecID string
	Data   []byte // the receiver's own
	End    End
}

// Session is one client's connection to a command. A command has one session
// at a time; a newer one takes over.
type Session struct {
	x    *command
	out  chan Output   // unbuffered: what is sent has been taken
	gone chan struct{} // closed when the session is over for the client

	// Owned by the goroutine that calls Next.
	replay []Output
	ended  bool

	once sync.Once
	why  error // why it is gone; set before gone is closed
}

func newSession(x *command) *Session {
	return &Session{
		x: x, out: make(chan Output), gone: make(chan struct{}),
		replay: []Output{{Stream: StreamStarted, ExecID: x.id}},
	}
}

// ExecID names the command in its lease.
func (c *Session) ExecID() string { return c.x.id }

// errTakenOver is what an older session learns.
func errTakenOver() error {
	return fault.New(fault.Conflict, "session", "another client has attached to this command", "attach again to take it back")
}

// errDetached is what a session learns that was given up.
func errDetached() error {
	return fault.New(fault.WrongState, "session", "is detached", "attach again")
}

// hold detaches the session when ctx ends.
func (c *Session) hold(ctx context.Context) {
	context.AfterFunc(ctx, c.Detach)
}

// Next returns the next output: started first, then, after an Attach, the
// tails of both streams, then what comes, and the end last; after that,
// io.EOF. The command is read as fast as Next is called.
func (c *Session) Next(ctx context.Context) (Output, error) {
	if len(c.replay) > 0 {
		o := c.replay[0]
		c.replay = c.replay[1:]
		return o, nil
	}
	if c.ended {
		return Output{}, io.EOF
	}
	if err := c.current(); err != nil {
		return Output{}, err // also when the end is there by now
	}
	select {
	case o := <-c.out:
		return o, nil
	case <-c.gone:
		return Output{}, c.why
	case <-c.x.done:
		// The readers are through, and out has no buffer: nothing is left.
		c.ended = true
		c.x.mu.Lock()
		defer c.x.mu.Unlock()
		return Output{Stream: StreamEnd, ExecID: c.x.id, End: c.x.end}, nil
	case <-ctx.Done():
		return Output{}, context.Cause(ctx)
	}
}

// Write feeds the command's input; it returns when the command, or the pipe
// before it, has room again. Input to a command that has ended is dropped.
func (c *Session) Write(ctx context.Context, p []byte) error {
	if len(p) == 0 {
		return nil
	}
	select { // first, because the select below has no order
	case <-c.gone:
		return c.why
	case <-c.x.eof:
		return fault.New(fault.WrongState, "stdin", "is closed", "do not write after closing it")
	default:
	}
	select {
	case c.x.stdin <- slices.Clone(p):
		return nil
	case <-c.x.over:
		return nil
	case <-c.gone:
		return c.why
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// CloseStdin is the end of the command's input.
func (c *Session) CloseStdin() error {
	if err := c.current(); err != nil {
		return err
	}
	c.x.mu.Lock()
	defer c.x.mu.Unlock()
	if !c.x.eofSet {
		c.x.eofSet = true
		close(c.x.eof)
	}
	return nil
}

// mostSignal is Linux's last signal number.
const mostSignal = 64

// Signal sends a signal to the command's first process. To one that has
// ended, it does nothing.
func (c *Session) Signal(sig int) error {
	if sig < 1 || sig > mostSignal {
		return invalid("signal", fmt.Sprintf("%d is no signal", sig), fmt.Sprintf("use 1 to %d", mostSignal))
	}
	if err := c.current(); err != nil {
		return err
	}
	return c.x.use(func(e Exec) error { return e.Signal(sig) })
}

// Resize sets the size of the command's terminal.
func (c *Session) Resize(rows, cols uint16) error {
	switch {
	case !c.x.tty:
		return invalid("resize", "the command has no terminal", "start it with tty")
	case rows == 0 || cols == 0:
		return invalid("resize", fmt.Sprintf("%d by %d is no size", rows, cols), "give rows and columns")
	}
	if err := c.current(); err != nil {
		return err
	}
	return c.x.use(func(e Exec) error { return e.Resize(rows, cols) })
}

// Detach ends the session. Without Keep, a command whose current session
// ends is ended. It is idempotent.
func (c *Session) Detach() {
	c.x.mu.Lock()
	mine := c.x.sub == c
	if mine {
		c.x.sub = nil
	}
	c.x.mu.Unlock()
	c.leave(errDetached())
	if mine && !c.x.keep {
		// The error is the kill's; the end of the lease tries again.
		_ = c.x.stop(act{cause: CauseCancelled, detail: "the client went away"})
	}
}

func (c *Session) leave(why error) {
	c.once.Do(func() {
		c.why = why
		close(c.gone)
	})
}

// current refuses a session that is over.
func (c *Session) current() error {
	select {
	case <-c.gone:
		return c.why
	default:
		return nil
	}
}

// Attach takes over the streams of a command: the tails first, then what
// comes. The older session learns that it was taken over. Of commands that
// have ended, the last few with Keep can still be attached to.
func (s *Supervisor) Attach(ctx context.Context, caller Caller, ref Ref, execID string) (*Session, error) {
	l, err := s.active(caller, ref)
	if err != nil {
		return nil, err
	}
	x, err := l.findCommand(execID)
	if err != nil {
		return nil, err
	}
	session := newSession(x)
	x.mu.Lock()
	older := x.sub
	x.sub = session
	for _, t := range []struct {
		stream Stream
		tail   *tail
	}{{StreamStdout, &x.stdout}, {StreamStderr, &x.stderr}} {
		for chunk := range slices.Chunk(t.tail.last(), chunkBytes) {
			session.replay = append(session.replay, Output{Stream: t.stream, Data: chunk})
		}
	}
	x.mu.Unlock()
	if older != nil {
		older.leave(errTakenOver())
	}
	session.hold(ctx)
	return session, nil
}

func (l *lease) findCommand(id string) (*command, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if x := l.commands[id]; x != nil {
		return x, nil
	}
	for _, x := range l.finished {
		if x.id == id {
			return x, nil
		}
	}
	for _, x := range l.execs {
		if x.ID == id {
			return nil, fault.New(fault.WrongState, "exec_id", "has ended and its output is gone", "run commands with keep to attach to them after their end")
		}
	}
	return nil, fault.New(fault.NotFound, "exec_id", "is no command of this lease", "list them with get")
}
