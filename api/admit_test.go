package api

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	cordonv1 "cordon/api/v1"
	"cordon/api/wire"
	"cordon/supervisor/hostpolicy"
)

func nobody(hostpolicy.Peer) []hostpolicy.Tenant { return nil }

// rootChain is a chain to which only root is somebody.
func rootChain(log *slog.Logger) *chain {
	return &chain{log: log, tenants: nobody, limit: newCallLimit(Limits{}.withDefaults(), time.Now), patience: firstMessageTimeout}
}

// inFlight is how many places of an account are taken.
func inFlight(ch *chain, a account) int {
	ch.limit.mu.Lock()
	defer ch.limit.mu.Unlock()
	if p := ch.limit.peers[a]; p != nil {
		return p.inFlight
	}
	return 0
}

// A call's place is given back once, whatever ends first.
func TestPlaceIsGivenBackOnce(t *testing.T) {
	const method = cordonv1.Supervisor_List_FullMethodName
	root := account{kind: kindRoot}
	tests := []struct {
		name string
		call func(ch *chain, ctx context.Context, end func(), handler func(context.Context) error) error
		code codes.Code
	}{
		{"the handler, then the stream", func(ch *chain, ctx context.Context, end func(), handler func(context.Context) error) error {
			defer end()
			return ch.run(ctx, method, handler)
		}, codes.OK},
		{"the stream while the handler runs", func(ch *chain, ctx context.Context, end func(), handler func(context.Context) error) error {
			return ch.run(ctx, method, func(ctx context.Context) error {
				end()
				synctest.Wait()
				if n := inFlight(ch, root); n != 2 {
					t.Errorf("%d places are taken while the handler runs, want 2", n)
				}
				return handler(ctx)
			})
		}, codes.OK},
		{"the stream before the handler", func(ch *chain, ctx context.Context, end func(), _ func(context.Context) error) error {
			end()
			synctest.Wait()
			return ch.run(ctx, method, func(context.Context) error {
				t.Error("the handler was reached")
				return nil
			})
		}, codes.Canceled},
		{"a panic of the handler", func(ch *chain, ctx context.Context, end func(), _ func(context.Context) error) error {
			defer end()
			return ch.run(ctx, method, func(context.Context) error { panic("boom") })
		}, codes.Internal},
		{"no message", func(_ *chain, ctx context.Context, end func(), _ func(context.Context) error) error {
			<-ctx.Done() // as grpc's receive does
			end()
			return status.FromContextError(ctx.Err()).Err()
		}, codes.Canceled},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ch := rootChain(slog.New(slog.DiscardHandler))
				if _, err := ch.limit.take(root); err != nil { // another call
					t.Fatal(err)
				}
				stream, end := context.WithCancel(asPeer(t, 0))
				defer end()
				ctx, err := ch.admit(stream, &tap.Info{FullMethodName: method})
				if err != nil {
					t.Fatal(err)
				}
				err = tt.call(ch, ctx, end, func(context.Context) error { return nil })
				if status.Code(err) != tt.code {
					t.Errorf("got %v, want %v", err, tt.code)
				}
				synctest.Wait()
				if n := inFlight(ch, root); n != 1 {
					t.Errorf("%d places are taken afterwards, want the other call's", n)
				}
			})
		})
	}
}

// Refused calls hold no place, and neither their number nor their names make
// the log large.
func TestRefusalsAreFewShortLines(t *testing.T) {
	var log bytes.Buffer
	ch := rootChain(slog.New(slog.NewTextHandler(&log, nil)))
	const calls = 30
	for range calls {
		_, err := ch.admit(asPeer(t, 1001), &tap.Info{FullMethodName: "/" + strings.Repeat("x", 15<<10)})
		if status.Code(err) != codes.Unimplemented {
			t.Fatalf("got %v, want a refusal", err)
		}
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) < 1 || len(lines) > 12 {
		t.Errorf("%d lines of %d refusals, want some ten", len(lines), calls)
	}
	for _, l := range lines {
		if len(l) > 600 {
			t.Errorf("a line of %d bytes: %.100s", len(l), l)
		}
	}
	if n := inFlight(ch, account{uid: 1001}); n != 0 {
		t.Errorf("%d places are taken", n)
	}
}

func TestPanicOfPolicyIsRefusal(t *testing.T) {
	ch := rootChain(slog.New(slog.DiscardHandler))
	ch.tenants = func(hostpolicy.Peer) []hostpolicy.Tenant { panic("boom") }
	if _, err := ch.admit(asPeer(t, 0), &tap.Info{FullMethodName: cordonv1.Supervisor_Info_FullMethodName}); status.Code(err) != codes.Internal {
		t.Errorf("got %v, want an internal error", err)
	}
}

func TestLoggedErrorsAreClipped(t *testing.T) {
	var log bytes.Buffer
	err := panicked("x", strings.Repeat("y", 10<<10))
	_ = errStatus(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), err)
	if !strings.Contains(log.String(), "stack=") || strings.Count(log.String(), "y") > 2*maxLogged {
		t.Errorf("want a clipped error and the stack:\n%s", log.String())
	}
}

// A caller that opens calls and sends no message loses them soon, through
// grpc as it is.
func TestFirstMessageMustCome(t *testing.T) {
	ch := rootChain(slog.New(slog.DiscardHandler))
	ch.tenants = func(hostpolicy.Peer) []hostpolicy.Tenant { return []hostpolicy.Tenant{{Name: "acme"}} }
	ch.patience = 50 * time.Millisecond
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.Creds(&peerCreds{limit: newConnLimit(Limits{}.withDefaults(), time.Now), tenants: ch.tenants, log: ch.log}),
		grpc.InTapHandle(ch.admit), grpc.ChainUnaryInterceptor(ch.unary), grpc.ChainStreamInterceptor(ch.stream),
	)
	cordonv1.RegisterSupervisorServer(server, &handlers{receivers: new(sync.WaitGroup)})
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	conn, err := grpc.NewClient("unix:"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, method := range []string{
		cordonv1.Supervisor_Acquire_FullMethodName, // unary
		cordonv1.Supervisor_Watch_FullMethodName,   // one message, many replies
		cordonv1.Supervisor_Exec_FullMethodName,    // both ways
	} {
		desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
		stream, err := conn.NewStream(t.Context(), desc, method)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.RecvMsg(&cordonv1.Event{}); status.Code(err) != codes.Canceled {
			t.Errorf("%s without a message: %v, want Canceled", method, err)
		}
	}
}

// One byte more than the 32 KiB and grpc takes a buffer of 1 MiB.
func TestChunksFitBuffer(t *testing.T) {
	b := make([]byte, wire.ChunkBytes)
	for _, m := range []proto.Message{
		&cordonv1.ExecResponse{Kind: &cordonv1.ExecResponse_Stderr{Stderr: b}},
		&cordonv1.ExportResponse{Kind: &cordonv1.ExportResponse_Data{Data: b}},
		&cordonv1.ExecRequest{Kind: &cordonv1.ExecRequest_Stdin{Stdin: b}},
		&cordonv1.PutInputRequest{Kind: &cordonv1.PutInputRequest_Data{Data: b}},
	} {
		if n := proto.Size(m); n+5 > 32<<10 { // grpc's own prefix is 5 bytes
			t.Errorf("%T with a chunk is %d bytes", m, n)
		}
	}
}
