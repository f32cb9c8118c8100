package api

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	cordonv1 "cordon/api/v1"
	"cordon/internal/peer"
	"cordon/supervisor/hostpolicy"
)

// admitted is what the table must say, written a second time on purpose: a
// change of who may call what is a change of this test.
var admitted = map[string]string{
	"Acquire":      "root tenant",
	"Renew":        "root tenant",
	"Get":          "root tenant",
	"List":         "root tenant",
	"Exec":         "root tenant",
	"Attach":       "root tenant",
	"Export":       "root tenant",
	"Release":      "root tenant",
	"Watch":        "root tenant",
	"PutInput":     "root tenant",
	"ImportImage":  "root tenant",
	"SnapshotHost": "root",
	"ListImages":   "root tenant",
	"GetRecord":    "root tenant",
	"Info":         "root tenant other",
}

// methods are the full names of all methods in the API's description.
func methods(t *testing.T) map[string]string {
	t.Helper()
	out := make(map[string]string)
	services := cordonv1.File_v1_supervisor_proto.Services()
	for i := range services.Len() {
		service := services.Get(i)
		for j := range service.Methods().Len() {
			name := string(service.Methods().Get(j).Name())
			out[name] = fmt.Sprintf("/%s/%s", service.FullName(), name)
		}
	}
	if len(out) == 0 {
		t.Fatal("the API has no methods")
	}
	return out
}

func TestMethodTableIsComplete(t *testing.T) {
	all := methods(t)
	for name, full := range all {
		if _, ok := methodTable[full]; !ok {
			t.Errorf("%s has no row: nobody can call it", full)
		}
		if _, ok := admitted[name]; !ok {
			t.Errorf("%s is not in this test", name)
		}
	}
	for name := range admitted {
		if _, ok := all[name]; !ok {
			t.Errorf("%s is in this test, and no method", name)
		}
	}
	byFull := make(map[string]bool)
	for _, full := range all {
		byFull[full] = true
	}
	for full, r := range methodTable {
		if !byFull[full] {
			t.Errorf("stale row %s: there is no such method", full)
		}
		if r.ceiling == 0 {
			t.Errorf("%s has no ceiling", full)
		}
	}
}

// Every method by every kind of caller, through the whole chain.
func TestAuthorization(t *testing.T) {
	callers := map[string]uint32{"root": 0, "tenant": 1000, "other": 1001}
	ch := &chain{
		log: slog.New(slog.DiscardHandler), patience: time.Minute,
		tenants: func(p hostpolicy.Peer) []hostpolicy.Tenant {
			if p.UID == 1000 {
				return []hostpolicy.Tenant{{Name: "acme"}}
			}
			return nil
		},
		limit: newCallLimit(Limits{}.withDefaults(), time.Now),
	}
	for name, full := range methods(t) {
		for who, uid := range callers {
			t.Run(name+"/"+who, func(t *testing.T) {
				reached := false
				err := admitAndRun(asPeer(t, uid), ch, full, func(ctx context.Context) error {
					reached = true
					if got := callOf(ctx).kind.String(); got != who {
						t.Errorf("uid %d is %s, want %s", uid, got, who)
					}
					return nil
				})
				want := slices.Contains(strings.Fields(admitted[name]), who)
				if reached != want {
					t.Errorf("handler reached %v, want %v", reached, want)
				}
				if code := status.Code(err); (code == codes.OK) != want || !want && code != codes.PermissionDenied {
					t.Errorf("got %v, want admitted %v", err, want)
				}
			})
		}
	}
}

// admitAndRun takes a call through the whole chain, as grpc does.
func admitAndRun(ctx context.Context, ch *chain, method string, handler func(context.Context) error) error {
	ctx, err := ch.admit(ctx, &tap.Info{FullMethodName: method})
	if err != nil {
		return err
	}
	return ch.run(ctx, method, handler)
}

func asPeer(t *testing.T, uid uint32) context.Context {
	return grpcpeer.NewContext(t.Context(), &grpcpeer.Peer{AuthInfo: peerAuth{info: peer.Info{UID: uid, GID: uid, PID: 7}}})
}

type foreignAuth struct{ credentials.CommonAuthInfo }

func (foreignAuth) AuthType() string { return "foreign" }

// Whatever goes wrong on the way, the handler is not reached.
func TestChainFailsClosed(t *testing.T) {
	ch := &chain{
		log: slog.New(slog.DiscardHandler), patience: time.Minute,
		tenants: func(hostpolicy.Peer) []hostpolicy.Tenant { return []hostpolicy.Tenant{{Name: "acme"}} },
		limit:   newCallLimit(Limits{}.withDefaults(), time.Now),
	}
	tests := []struct {
		name   string
		ctx    context.Context
		method string
		code   codes.Code
	}{
		{"no peer", context.Background(), cordonv1.Supervisor_Info_FullMethodName, codes.Internal},
		{
			"another kind of identity",
			grpcpeer.NewContext(context.Background(), &grpcpeer.Peer{AuthInfo: foreignAuth{}}),
			cordonv1.Supervisor_Info_FullMethodName, codes.Internal,
		},
		{"no such method", asPeer(t, 0), "/cordon.v1.Supervisor/Nothing", codes.Unimplemented},
		{"no method at all", asPeer(t, 0), "", codes.Unimplemented},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			unreached := func(context.Context) error {
				t.Error("the handler was reached")
				return nil
			}
			err := admitAndRun(tt.ctx, ch, tt.method, unreached)
			if status.Code(err) != tt.code {
				t.Errorf("got %v, want %v", err, tt.code)
			}
			if err := ch.run(tt.ctx, tt.method, unreached); status.Code(err) != codes.Internal {
				t.Errorf("without being admitted: %v, want an internal error", err)
			}
		})
	}
	if (rule{}).admits(kindRoot) || (rule{}).admits(kindTenant) || (rule{}).admits(kindOther) {
		t.Error("the zero rule admits somebody")
	}
	if (rule{root: true, tenant: true, other: true}).admits(kind(9)) {
		t.Error("a kind that does not exist is admitted")
	}
	if c := callOf(context.Background()); c.kind != kindOther {
		t.Errorf("a call that passed no chain is of kind %v", c.kind)
	}
}

func TestCeiling(t *testing.T) {
	ch := rootChain(slog.New(slog.DiscardHandler))
	for _, full := range methods(t) {
		ctx, err := ch.admit(asPeer(t, 0), &tap.Info{FullMethodName: full})
		if err != nil {
			t.Fatal(err)
		}
		deadline, ok := ctx.Deadline()
		want := methodTable[full].ceiling
		if ok != (want != whileLeased) {
			t.Errorf("%s has a deadline: %v", full, ok)
		}
		if left := time.Until(deadline); ok && (left > want || left < want-10*time.Second) {
			t.Errorf("%s may take %v, want %v", full, left, want)
		}
	}
	// A caller's own shorter deadline stays.
	near, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	ctx, release := bound(near, building)
	defer release()
	if got, _ := ctx.Deadline(); time.Until(got) > time.Second {
		t.Errorf("a deadline of 1ms became %v", time.Until(got))
	}
	// The bound is let go with the call.
	call, end := context.WithCancel(t.Context())
	ctx, release = bound(call, whileLeased)
	defer release()
	end()
	<-ctx.Done()
}

// stalled is a server whose PutInput waits for data.
type stalled struct {
	cordonv1.UnimplementedSupervisorServer

	got chan error
}

func (s stalled) PutInput(stream grpc.ClientStreamingServer[cordonv1.PutInputRequest, cordonv1.PutInputResponse]) error {
	_, err := stream.Recv()
	s.got <- err
	return err
}

// A caller that sends nothing and sets no deadline cannot hold a call open.
func TestCeilingEndsRecv(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.InTapHandle(func(ctx context.Context, _ *tap.Info) (context.Context, error) {
		ctx, _ = bound(ctx, 50*time.Millisecond) // let go with the call
		return ctx, nil
	}))
	got := make(chan error, 1)
	cordonv1.RegisterSupervisorServer(server, stalled{got: got})
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	conn, err := grpc.NewClient("unix:"+l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := cordonv1.NewSupervisorClient(conn).PutInput(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := <-got; status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("the handler's Recv ended with %v, want a deadline", err)
	}
	if err := stream.RecvMsg(&cordonv1.PutInputResponse{}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("the caller got %v, want a deadline", err)
	}
}
