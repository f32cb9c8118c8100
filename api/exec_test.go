package api_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"cordon/api"
	"cordon/api/apitest"
	cordonv1 "cordon/api/v1"
	"cordon/api/wire"
	"cordon/supervisor"
)

type execStream = grpc.BidiStreamingClient[cordonv1.ExecRequest, cordonv1.ExecResponse]

func execStart(ref *cordonv1.LeaseRef, argv ...string) *cordonv1.ExecRequest {
	return &cordonv1.ExecRequest{Kind: &cordonv1.ExecRequest_Start{Start: &cordonv1.ExecStart{Ref: ref, Argv: argv}}}
}

func execStdin(n int) *cordonv1.ExecRequest {
	return &cordonv1.ExecRequest{Kind: &cordonv1.ExecRequest_Stdin{Stdin: make([]byte, n)}}
}

func execSignal(n int32) *cordonv1.ExecRequest {
	return &cordonv1.ExecRequest{Kind: &cordonv1.ExecRequest_Signal{Signal: n}}
}

// waiter is a program that runs until it is killed, and tells.
func waiter(killed chan<- struct{}) apitest.Program {
	return func(p *apitest.Process) supervisor.End {
		<-p.Killed
		killed <- struct{}{}
		return apitest.Exit(0)
	}
}

// lastError receives up to the stream's end.
func lastError(s interface {
	Recv() (*cordonv1.ExecResponse, error)
},
) error {
	for {
		if _, err := s.Recv(); err != nil {
			return err
		}
	}
}

func TestExecProtocol(t *testing.T) {
	killed := make(chan struct{}, 1)
	fake := apitest.NewSupervisor()
	fake.Programs["wait"] = waiter(killed)
	c, _ := dial(t, apitest.Start(t, fake, nil))
	ref := acquire(t, c)
	size := func(rows uint32) *cordonv1.TerminalSize { return &cordonv1.TerminalSize{Rows: rows, Cols: 80} }
	closeStdin := &cordonv1.ExecRequest{Kind: &cordonv1.ExecRequest_CloseStdin{}}
	bigTerminal := execStart(ref, "wait")
	bigTerminal.GetStart().Size = size(70000)

	tests := []struct {
		name    string
		in      []*cordonv1.ExecRequest
		field   string
		started bool // a command runs by then, and must be ended
	}{
		{"nothing", nil, "start", false},
		{"stdin before start", []*cordonv1.ExecRequest{execStdin(1)}, "start", false},
		{"an empty message first", []*cordonv1.ExecRequest{{}}, "start", false},
		{"terminal too large", []*cordonv1.ExecRequest{bigTerminal}, "start.size", false},
		{"second start", []*cordonv1.ExecRequest{execStart(ref, "wait"), execStart(ref, "wait")}, "start", true},
		{"no kind", []*cordonv1.ExecRequest{execStart(ref, "wait"), {}}, "kind", true},
		{"signal 0", []*cordonv1.ExecRequest{execStart(ref, "wait"), execSignal(0)}, "signal", true},
		{"signal 65", []*cordonv1.ExecRequest{execStart(ref, "wait"), execSignal(65)}, "signal", true},
		{"signal -9", []*cordonv1.ExecRequest{execStart(ref, "wait"), execSignal(-9)}, "signal", true},
		{"chunk too large", []*cordonv1.ExecRequest{execStart(ref, "wait"), execStdin(wire.MaxChunkBytes + 1)}, "stdin", true},
		{"close_stdin false", []*cordonv1.ExecRequest{execStart(ref, "wait"), closeStdin}, "close_stdin", true},
		{"resize too large", []*cordonv1.ExecRequest{
			execStart(ref, "wait"),
			{Kind: &cordonv1.ExecRequest_Resize{Resize: size(65536)}},
		}, "resize", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			stream, err := c.Exec(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range tt.in {
				if err := stream.Send(m); err != nil {
					t.Fatal(err)
				}
			}
			if len(tt.in) == 0 {
				_ = stream.CloseSend()
			}
			wantError(t, lastError(stream), codes.InvalidArgument, tt.field)
			if tt.started {
				<-killed
			}
		})
	}
}

func TestAttachProtocol(t *testing.T) {
	killed := make(chan struct{}, 1)
	fake := apitest.NewSupervisor()
	fake.Programs["wait"] = waiter(killed)
	c, _ := dial(t, apitest.Start(t, fake, nil))
	ref := acquire(t, c)
	kept := execStart(ref, "wait")
	kept.GetStart().Keep = true
	exec, err := c.Exec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := exec.Send(kept); err != nil {
		t.Fatal(err)
	}
	first, err := exec.Recv()
	if err != nil {
		t.Fatal(err)
	}
	id := first.GetStarted().GetExecId()
	attach := &cordonv1.AttachRequest{Kind: &cordonv1.AttachRequest_Attach{Attach: &cordonv1.AttachStart{Ref: ref, ExecId: id}}}
	unknown := &cordonv1.AttachRequest{Kind: &cordonv1.AttachRequest_Attach{Attach: &cordonv1.AttachStart{Ref: ref, ExecId: "e-99"}}}
	signal := &cordonv1.AttachRequest{Kind: &cordonv1.AttachRequest_Signal{Signal: 65}}
	for _, tt := range []struct {
		name  string
		in    []*cordonv1.AttachRequest
		code  codes.Code
		field string
	}{
		{"signal before attach", []*cordonv1.AttachRequest{signal}, codes.InvalidArgument, "attach"},
		{"no such command", []*cordonv1.AttachRequest{unknown}, codes.NotFound, "exec_id"},
		{"second attach", []*cordonv1.AttachRequest{attach, attach}, codes.InvalidArgument, "attach"},
		{"bad signal", []*cordonv1.AttachRequest{attach, signal}, codes.InvalidArgument, "signal"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stream, err := c.Attach(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range tt.in {
				if err := stream.Send(m); err != nil {
					t.Fatal(err)
				}
			}
			wantError(t, lastError(stream), tt.code, tt.field)
		})
	}
	// The first of them to attach took the command over from its Exec.
	wantError(t, lastError(exec), codes.AlreadyExists, "session")
	select {
	case <-killed:
		t.Error("a command that is kept was ended with its sessions")
	default:
	}
	if _, err := c.Release(t.Context(), &cordonv1.ReleaseRequest{Ref: ref}); err != nil {
		t.Fatal(err)
	}
	<-killed
}

// A client whose process ends takes its command along, unless it is kept.
func TestClientVanishes(t *testing.T) {
	for _, keep := range []bool{false, true} {
		killed := make(chan struct{}, 1)
		fake := apitest.NewSupervisor()
		fake.Programs["wait"] = waiter(killed)
		socket := apitest.Start(t, fake, nil)
		c, conn := dial(t, socket)
		ref := acquire(t, c)
		stream, err := c.Exec(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		start := execStart(ref, "wait")
		start.GetStart().Keep = keep
		if err := stream.Send(start); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		// With input under way that nobody reads.
		for range 3 {
			if err := stream.Send(execStdin(wire.MaxChunkBytes)); err != nil {
				t.Fatal(err)
			}
		}
		conn.Close()
		if !keep {
			<-killed
			continue
		}
		other, _ := dial(t, socket)
		info, err := other.Get(t.Context(), &cordonv1.GetRequest{Ref: ref})
		if err != nil {
			t.Fatal(err)
		}
		if x := info.GetLease().GetExecs(); len(x) != 1 || !x[0].GetRunning() {
			t.Errorf("the kept command does not run: %v", x)
		}
		if _, err := other.Release(t.Context(), &cordonv1.ReleaseRequest{Ref: ref}); err != nil {
			t.Fatal(err)
		}
		<-killed
	}
}

// A caller that does not acknowledge still gets its signals through as long
// as it keeps to the window.
func TestSignalOvertakesStdin(t *testing.T) {
	fake := apitest.NewSupervisor()
	fake.Programs["deaf"] = func(p *apitest.Process) supervisor.End {
		return supervisor.End{Cause: supervisor.CauseSignalled, Signal: <-p.Signals}
	}
	c, _ := dial(t, apitest.Start(t, fake, nil))
	stream, err := c.Exec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	in := []*cordonv1.ExecRequest{execStart(acquire(t, c), "deaf")}
	for range wire.StdinWindow / wire.MaxChunkBytes {
		in = append(in, execStdin(wire.MaxChunkBytes))
	}
	for _, m := range append(in, execSignal(15)) {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if end := resp.GetEnd(); end != nil {
			if end.GetSignal() != 15 {
				t.Errorf("got %v, want signal 15", end)
			}
			return
		}
	}
}

// Half-closing the stream closes a command's input, and acknowledgements add
// up to what was taken.
func TestHalfCloseEndsStdin(t *testing.T) {
	fake := apitest.NewSupervisor()
	fake.Programs["count"] = func(p *apitest.Process) supervisor.End {
		n, _ := io.Copy(io.Discard, p.Stdin)
		return apitest.Exit(int(n >> 16))
	}
	c, _ := dial(t, apitest.Start(t, fake, nil))
	stream, err := c.Exec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*cordonv1.ExecRequest{execStart(acquire(t, c), "count"), execStdin(wire.MaxChunkBytes), execStdin(wire.MaxChunkBytes), execStdin(10)} {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	var taken uint32
	var ended *cordonv1.End
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if ended != nil {
			t.Errorf("%v came after the end", resp)
		}
		taken += resp.GetStdinTaken()
		if resp.GetEnd() != nil {
			ended = resp.GetEnd()
		}
	}
	if ended.GetExitCode() != 2 {
		t.Errorf("the command read %d chunks, want 2 and a bit", ended.GetExitCode())
	}
	if taken < 2*wire.MaxChunkBytes || taken > 2*wire.MaxChunkBytes+10 {
		t.Errorf("%d bytes acknowledged, want about %d", taken, 2*wire.MaxChunkBytes)
	}
}

// broken is a service whose sessions panic where the handler's own guard does
// not reach.
type broken struct{ *apitest.Supervisor }

type brokenSession struct{ api.Session }

func (brokenSession) Signal(int) error { panic("boom in signal") }

func (b broken) Exec(ctx context.Context, caller supervisor.Caller, ref supervisor.Ref, req supervisor.ExecRequest) (api.Session, error) {
	s, err := b.Supervisor.Exec(ctx, caller, ref, req)
	return brokenSession{s}, err
}

func TestPanicInSession(t *testing.T) {
	var log lockedBuffer
	killed := make(chan struct{}, 1)
	fake := apitest.NewSupervisor()
	fake.Programs["wait"] = waiter(killed)
	c, _ := dial(t, apitest.Start(t, fake, func(cfg *api.Config) {
		cfg.Supervisor = broken{fake}
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	}))
	stream, err := c.Exec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []*cordonv1.ExecRequest{execStart(acquire(t, c), "wait"), execSignal(1)} {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := lastError(stream); status.Code(err) != codes.Internal || strings.Contains(err.Error(), "boom") {
		t.Errorf("got %v, want an internal error without its cause", err)
	}
	<-killed
	if !strings.Contains(log.String(), "boom in signal") {
		t.Errorf("the log lacks the panic:\n%s", log.String())
	}
}

// The order of outputs is the order in which the command wrote.
func TestOutputComesBeforeEnd(t *testing.T) {
	fake := apitest.NewSupervisor()
	fake.Programs["talk"] = func(p *apitest.Process) supervisor.End {
		_, _ = io.WriteString(p.Stdout, strings.Repeat("a", 100_000))
		_, _ = io.WriteString(p.Stderr, "b")
		_, _ = io.WriteString(p.Stdout, "c")
		return apitest.Exit(3)
	}
	c, _ := dial(t, apitest.Start(t, fake, nil))
	ref := acquire(t, c)
	var stream execStream
	stream, err := c.Exec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(execStart(ref, "talk")); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch kind := resp.GetKind().(type) {
		case *cordonv1.ExecResponse_Started:
			got.WriteString("S")
		case *cordonv1.ExecResponse_Stdout:
			if len(kind.Stdout) > wire.ChunkBytes {
				t.Errorf("a chunk of %d bytes", len(kind.Stdout))
			}
			got.Write(kind.Stdout)
		case *cordonv1.ExecResponse_Stderr:
			got.Write(kind.Stderr)
		case *cordonv1.ExecResponse_End:
			got.WriteString("E")
		}
	}
	if want := "S" + strings.Repeat("a", 100_000) + "bcE"; got.String() != want {
		t.Errorf("got %d bytes, want %d in the order in which they were written", got.Len(), len(want))
	}
}
