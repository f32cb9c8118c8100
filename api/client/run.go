package client

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	cordonv1 "cordon/api/v1"
	"cordon/api/wire"
)

// Size is the size of a terminal in characters.
type Size struct{ Rows, Cols uint16 }

// Command is one command to run in a lease.
type Command struct {
	Argv []string // required; Argv[0] is looked up in PATH if it has no slash
	Env  []string // NAME=value, added to the sandbox's few own
	Cwd  string   // default /workspace

	// Stdin is sent to the command as fast as it reads; nil is an empty one.
	// Run does not wait for a Read that is under way when the command ends, so
	// that a terminal cannot hold it up.
	Stdin io.Reader
	// Stdout and Stderr get what the command writes; nil discards it. With TTY
	// everything comes out of Stdout. A Write that fails ends the command.
	Stdout, Stderr io.Writer

	TTY    bool
	Size   Size        // of the terminal, with TTY
	Resize <-chan Size // optional
	// Signals are sent to the command; signal.Notify fits. Optional.
	Signals <-chan os.Signal

	// Timeout ends this command alone; 0: the lease's wall clock.
	Timeout time.Duration
	// Keep lets the command go on when Run is left early, for Attach.
	Keep bool
	// Started, if not nil, is told the command's id when it runs.
	Started func(execID string)
}

// Streams is the caller's side of a command that runs already. The fields are
// those of Command, except that a nil Stdin leaves the command's as it is.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Resize         <-chan Size
	Signals        <-chan os.Signal
}

// Run runs a command and returns how it ended. That it failed, or was killed
// for a limit, is an End and not an error; an error means that it is not known
// how it ended. When ctx ends, the command and its descendants are ended too,
// unless Keep is set.
func (l *Lease) Run(ctx context.Context, cmd Command) (End, error) {
	start, err := l.start(cmd)
	if err != nil {
		return End{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := l.c.rpc.Exec(ctx)
	if err != nil {
		return End{}, answer(err)
	}
	s := session{
		up:      &execSide{stream},
		cancel:  cancel,
		started: cmd.Started,
		streams: Streams{Stdin: cmd.Stdin, Stdout: cmd.Stdout, Stderr: cmd.Stderr, Resize: cmd.Resize, Signals: cmd.Signals},
	}
	if s.streams.Stdin == nil {
		s.streams.Stdin = eof{}
	}
	// An error of Send is only ever io.EOF: the reason comes with Recv.
	_ = stream.Send(&cordonv1.ExecRequest{Kind: &cordonv1.ExecRequest_Start{Start: start}})
	return s.run(ctx)
}

// Attach takes over the streams of a running command from whoever had them,
// starting with the tail of what it wrote, and returns how it ended. When ctx
// ends, the command is left as Keep says.
func (l *Lease) Attach(ctx context.Context, execID string, streams Streams) (End, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := l.c.rpc.Attach(ctx)
	if err != nil {
		return End{}, answer(err)
	}
	s := session{up: &attachSide{stream}, cancel: cancel, streams: streams}
	attach := &cordonv1.AttachStart{Ref: l.ref(), ExecId: execID}
	_ = stream.Send(&cordonv1.AttachRequest{Kind: &cordonv1.AttachRequest_Attach{Attach: attach}}) // as in Run
	return s.run(ctx)
}

// start builds and checks the first message.
func (l *Lease) start(cmd Command) (*cordonv1.ExecStart, error) {
	start := &cordonv1.ExecStart{
		Ref:  l.ref(),
		Argv: cmd.Argv,
		Env:  cmd.Env,
		Cwd:  cmd.Cwd,
		Tty:  cmd.TTY,
		Keep: cmd.Keep,
	}
	if cmd.TTY {
		start.Size = size(cmd.Size)
	}
	if cmd.Timeout != 0 {
		start.Timeout = durationpb.New(cmd.Timeout)
	}
	// The server would refuse it without being able to say which field it was.
	if n := proto.Size(start); n > wire.MaxMessageBytes-64 {
		return nil, &Error{
			Code: TooLarge, Field: "argv",
			Cause:  fmt.Sprintf("arguments and environment take %d bytes, and %d is the most", n, wire.MaxMessageBytes-64),
			Remedy: "pass the data on standard input, or as an input file",
		}
	}
	return start, nil
}

// eof is an empty reader.
type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

func size(s Size) *cordonv1.TerminalSize {
	return &cordonv1.TerminalSize{Rows: uint32(s.Rows), Cols: uint32(s.Cols)}
}

// side hides whether a stream is an Exec or an Attach.
type side interface {
	recv() (*cordonv1.ExecResponse, error)
	stdin(b []byte) error
	closeStdin() error
	signal(n int32) error
	resize(s Size) error
}

type execSide struct {
	s grpc.BidiStreamingClient[cordonv1.ExecRequest, cordonv1.ExecResponse]
}

func (e *execSide) recv() (*cordonv1.ExecResponse, error) { return e.s.Recv() }

func (e *execSide) stdin(b []byte) error {
	return e.s.Send(&cordonv1.ExecRequest{Kind: &cordonv1.ExecRequest_Stdin{Stdin: b}})
}

func (e *execSide) closeStdin() error {
	return e.s.Send(&cordonv1.ExecRequest{Kind: &cordonv1.ExecRequest_CloseStdin{CloseStdin: true}})
}

func (e *execSide) signal(n int32) error {
	return e.s.Send(&cordonv1.ExecRequest{Kind: &cordonv1.ExecRequest_Signal{Signal: n}})
}

func (e *execSide) resize(s Size) error {
	return e.s.Send(&cordonv1.ExecRequest{Kind: &cordonv1.ExecRequest_Resize{Resize: size(s)}})
}

type attachSide struct {
	s grpc.BidiStreamingClient[cordonv1.AttachRequest, cordonv1.ExecResponse]
}

func (a *attachSide) recv() (*cordonv1.ExecResponse, error) { return a.s.Recv() }

func (a *attachSide) stdin(b []byte) error {
	return a.s.Send(&cordonv1.AttachRequest{Kind: &cordonv1.AttachRequest_Stdin{Stdin: b}})
}

func (a *attachSide) closeStdin() error {
	return a.s.Send(&cordonv1.AttachRequest{Kind: &cordonv1.AttachRequest_CloseStdin{CloseStdin: true}})
}

func (a *attachSide) signal(n int32) error {
	return a.s.Send(&cordonv1.AttachRequest{Kind: &cordonv1.AttachRequest_Signal{Signal: n}})
}

func (a *attachSide) resize(s Size) error {
	return a.s.Send(&cordonv1.AttachRequest{Kind: &cordonv1.AttachRequest_Resize{Resize: size(s)}})
}
