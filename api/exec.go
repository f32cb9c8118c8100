package api

import (
	"fmt"
	"math"

	"google.golang.org/grpc"

	cordonv1 "cordon/api/v1"
	"cordon/api/wire"
	"cordon/internal/fault"
	"cordon/supervisor"
)

// input is one message of a caller who is on a command's streams: stdin,
// closeStdin, sendSignal or resize.
type input interface{ isInput() }

type (
	stdin      []byte
	closeStdin struct{}
	sendSignal int
	resize     struct{ rows, cols uint16 }
)

func (stdin) isInput()      {}
func (closeStdin) isInput() {}
func (sendSignal) isInput() {}
func (resize) isInput()     {}

// Exec runs one command.
func (h *handlers) Exec(stream grpc.BidiStreamingServer[cordonv1.ExecRequest, cordonv1.ExecResponse]) error {
	ctx := stream.Context()
	first, err := stream.Recv()
	if err != nil {
		return early(err, "start")
	}
	start := first.GetStart()
	if start == nil {
		return violation("start", "must be the first message")
	}
	req, err := execRequest(start)
	if err != nil {
		return err
	}
	session, err := h.cfg.Supervisor.Exec(ctx, callerOf(ctx), leaseRef(ctx, start.GetRef()), req)
	if err != nil {
		return err
	}
	r := &relay{
		session: session,
		stdin:   newStdinQueue(),
		control: make(chan input),
		send:    stream.Send,
		// A command that others may attach to keeps its standard input.
		closeOnEOF: !start.GetKeep(),
		recv: func() (input, error) {
			m, err := stream.Recv()
			if err != nil {
				return nil, err
			}
			return execInput(m)
		},
	}
	return r.run(ctx, h.receivers)
}

// Attach takes over the streams of a running command.
func (h *handlers) Attach(stream grpc.BidiStreamingServer[cordonv1.AttachRequest, cordonv1.ExecResponse]) error {
	ctx := stream.Context()
	first, err := stream.Recv()
	if err != nil {
		return early(err, "attach")
	}
	attach := first.GetAttach()
	if attach == nil {
		return violation("attach", "must be the first message")
	}
	session, err := h.cfg.Supervisor.Attach(ctx, callerOf(ctx), leaseRef(ctx, attach.GetRef()), attach.GetExecId())
	if err != nil {
		return err
	}
	r := &relay{
		session: session,
		stdin:   newStdinQueue(),
		control: make(chan input),
		send:    stream.Send,
		recv: func() (input, error) {
			m, err := stream.Recv()
			if err != nil {
				return nil, err
			}
			return attachInput(m)
		},
	}
	return r.run(ctx, h.receivers)
}

func execRequest(m *cordonv1.ExecStart) (supervisor.ExecRequest, error) {
	timeout, err := wire.DurationOf(m.GetTimeout(), "start.timeout")
	if err != nil {
		return supervisor.ExecRequest{}, err
	}
	if timeout < 0 {
		return supervisor.ExecRequest{}, fault.New(fault.InvalidArgument, "start.timeout", "is negative", "leave it out for none")
	}
	size, err := terminalSize(m.GetSize(), "start.size")
	if err != nil {
		return supervisor.ExecRequest{}, err
	}
	return supervisor.ExecRequest{
		Argv:    m.GetArgv(),
		Env:     m.GetEnv(),
		Cwd:     m.GetCwd(),
		TTY:     m.GetTty(),
		Rows:    size.rows,
		Cols:    size.cols,
		Timeout: timeout,
		Keep:    m.GetKeep(),
	}, nil
}

func terminalSize(m *cordonv1.TerminalSize, field string) (resize, error) {
	rows, cols := m.GetRows(), m.GetCols()
	if rows > math.MaxUint16 || cols > math.MaxUint16 {
		return resize{}, fault.New(fault.InvalidArgument, field,
			fmt.Sprintf("%dx%d is more than a terminal can have", rows, cols), "give at most 65535 rows and columns")
	}
	return resize{rows: uint16(rows), cols: uint16(cols)}, nil
}

func execInput(m *cordonv1.ExecRequest) (input, error) {
	switch kind := m.GetKind().(type) {
	case *cordonv1.ExecRequest_Stdin:
		return stdinInput(kind.Stdin)
	case *cordonv1.ExecRequest_CloseStdin:
		return closeInput(kind.CloseStdin)
	case *cordonv1.ExecRequest_Signal:
		return signalInput(kind.Signal)
	case *cordonv1.ExecRequest_Resize:
		return terminalSize(kind.Resize, "resize")
	case *cordonv1.ExecRequest_Start:
		return nil, violation("start", "came a second time")
	default:
		return nil, violation("kind", "is missing")
	}
}

func attachInput(m *cordonv1.AttachRequest) (input, error) {
	switch kind := m.GetKind().(type) {
	case *cordonv1.AttachRequest_Stdin:
		return stdinInput(kind.Stdin)
	case *cordonv1.AttachRequest_CloseStdin:
		return closeInput(kind.CloseStdin)
	case *cordonv1.AttachRequest_Signal:
		return signalInput(kind.Signal)
	case *cordonv1.AttachRequest_Resize:
		return terminalSize(kind.Resize, "resize")
	case *cordonv1.AttachRequest_Attach:
		return nil, violation("attach", "came a second time")
	default:
		return nil, violation("kind", "is missing")
	}
}

func stdinInput(b []byte) (input, error) {
	if len(b) > wire.MaxChunkBytes {
		return nil, bigChunk("stdin", len(b))
	}
	return stdin(b), nil
}

func closeInput(yes bool) (input, error) {
	if !yes {
		return nil, violation("close_stdin", "is false, which says nothing")
	}
	return closeStdin{}, nil
}

func signalInput(n int32) (input, error) {
	if n < 1 || n > 64 {
		return nil, violation("signal", fmt.Sprintf("is %d; Linux has 1 to 64", n))
	}
	return sendSignal(n), nil
}
