package api_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"cordon/api"
	"cordon/api/apitest"
	cordonv1 "cordon/api/v1"
	"cordon/api/wire"
	"cordon/internal/fault"
	"cordon/supervisor"
	"cordon/supervisor/hostpolicy"
)

// dial returns a bare client, which can do what api/client never would.
func dial(t testing.TB, socket string) (cordonv1.SupervisorClient, *grpc.ClientConn) {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return cordonv1.NewSupervisorClient(conn), conn
}

// acquire returns a lease of the fake.
func acquire(t testing.TB, c cordonv1.SupervisorClient) *cordonv1.LeaseRef {
	t.Helper()
	resp, err := c.Acquire(t.Context(), &cordonv1.AcquireRequest{Envelope: &cordonv1.Envelope{}, IdempotencyKey: t.Name()})
	if err != nil {
		t.Fatal(err)
	}
	return &cordonv1.LeaseRef{LeaseId: resp.GetLease().GetId(), LeaseSecret: resp.GetLeaseSecret()}
}

// wantError checks the code and the first detail of an error.
func wantError(t testing.TB, err error, code codes.Code, field string) {
	t.Helper()
	st := status.Convert(err)
	if st.Code() != code {
		t.Errorf("got %v, want %v", err, code)
		return
	}
	for _, d := range st.Details() {
		if detail, ok := d.(*cordonv1.ErrorDetail); ok {
			if detail.GetField() != field {
				t.Errorf("got a detail about %q, want %q (%v)", detail.GetField(), field, detail)
			}
			return
		}
	}
	t.Errorf("%v has no ErrorDetail", err)
}

// lockedBuffer is a log that goroutines write and a test reads.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// eventually polls for at most ten seconds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not within 10s: %s", what)
		}
	}
}

// recorder keeps the caller that the supervisor was told of.
type recorder struct {
	*apitest.Supervisor
	callers chan supervisor.Caller
}

func (r recorder) List(_ context.Context, caller supervisor.Caller) ([]supervisor.LeaseInfo, error) {
	r.callers <- caller
	return nil, nil
}

func TestCallerIsThePeer(t *testing.T) {
	r := recorder{apitest.NewSupervisor(), make(chan supervisor.Caller, 1)}
	var asked hostpolicy.Peer
	c, _ := dial(t, apitest.Start(t, r.Supervisor, func(cfg *api.Config) {
		cfg.Supervisor = r
		cfg.Tenants = func(p hostpolicy.Peer) []hostpolicy.Tenant {
			asked = p
			return []hostpolicy.Tenant{{Name: "acme"}}
		}
	}))
	if _, err := c.List(t.Context(), &cordonv1.ListRequest{}); err != nil {
		t.Fatal(err)
	}
	got := <-r.callers
	if got.UID != uint32(os.Geteuid()) || got.GID != uint32(os.Getegid()) {
		t.Errorf("caller is %+v, want this process (%d:%d)", got, os.Geteuid(), os.Getegid())
	}
	if diff := cmp.Diff(asked, got); diff != "" {
		t.Errorf("the policy was asked about somebody else:\n%s", diff)
	}
}

func TestUnknownFieldIsRefusedWithPath(t *testing.T) {
	fake := apitest.NewSupervisor()
	fake.Before = func(method string) error {
		t.Errorf("%s was reached", method)
		return errors.New("no")
	}
	c, _ := dial(t, apitest.Start(t, fake, nil))
	ref := &cordonv1.LeaseRef{}
	ref.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 77, protowire.VarintType), 1))

	_, err := c.Get(t.Context(), &cordonv1.GetRequest{Ref: ref})
	wantError(t, err, codes.InvalidArgument, "ref.#77")

	watch, err := c.Watch(t.Context(), &cordonv1.WatchRequest{Ref: ref})
	if err == nil {
		_, err = watch.Recv()
	}
	wantError(t, err, codes.InvalidArgument, "ref.#77")

	exec, err := c.Exec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	start := &cordonv1.ExecRequest{Kind: &cordonv1.ExecRequest_Start{Start: &cordonv1.ExecStart{Ref: ref}}}
	if err := exec.Send(start); err != nil {
		t.Fatal(err)
	}
	_, err = exec.Recv()
	wantError(t, err, codes.InvalidArgument, "start.ref.#77")
}

// rawCodec sends the bytes it is given.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }

func (rawCodec) Unmarshal(b []byte, v any) error {
	*v.(*[]byte) = b
	return nil
}

func (rawCodec) Name() string { return "proto" }

func TestMalformedMessagesAreRefused(t *testing.T) {
	fake := apitest.NewSupervisor()
	fake.Before = func(method string) error {
		t.Errorf("%s was reached", method)
		return errors.New("no")
	}
	_, conn := dial(t, apitest.Start(t, fake, nil))
	for name, body := range map[string][]byte{
		"invalid UTF-8": {0x0a, 0x02, 0xff, 0xfe}, // GetRecordRequest.lease_id
		"cut short":     {0x0a, 0x20, 'x'},
		"no message":    {0xff, 0xff, 0xff},
	} {
		var reply []byte
		err := conn.Invoke(t.Context(), cordonv1.Supervisor_GetRecord_FullMethodName, &body, &reply, grpc.ForceCodec(rawCodec{}))
		if code := status.Code(err); code != codes.Internal && code != codes.InvalidArgument {
			t.Errorf("%s: got %v, want a refusal", name, err)
		}
	}
}

func TestMessageSizeLimit(t *testing.T) {
	c, _ := dial(t, apitest.Start(t, apitest.NewSupervisor(), nil))
	_, err := c.GetRecord(t.Context(), &cordonv1.GetRecordRequest{LeaseId: strings.Repeat("x", wire.MaxMessageBytes)})
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v, want ResourceExhausted", err)
	}
}

func TestNoReflectionAndNoOtherMethods(t *testing.T) {
	var log lockedBuffer
	_, conn := dial(t, apitest.Start(t, apitest.NewSupervisor(), func(cfg *api.Config) {
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	}))
	for _, method := range []string{
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
		"/grpc.health.v1.Health/Check",
		"/cordon.v1.Supervisor/Nothing",
	} {
		err := conn.Invoke(t.Context(), method, &cordonv1.InfoRequest{}, &cordonv1.InfoResponse{})
		wantError(t, err, codes.Unimplemented, method)
		if !strings.Contains(log.String(), "method="+method) {
			t.Errorf("no audit line for %s", method)
		}
	}
}

func TestPanicGuard(t *testing.T) {
	var log lockedBuffer
	fake := apitest.NewSupervisor()
	fake.Before = func(method string) error {
		if method != "List" {
			panic("boom in " + method)
		}
		return nil
	}
	c, _ := dial(t, apitest.Start(t, fake, func(cfg *api.Config) {
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	}))
	_, err := c.Get(t.Context(), &cordonv1.GetRequest{})
	wantError(t, err, codes.Internal, "call")
	if strings.Contains(err.Error(), "boom") {
		t.Errorf("the caller learns what panicked: %v", err)
	}
	watch, err := c.Watch(t.Context(), &cordonv1.WatchRequest{})
	if err == nil {
		_, err = watch.Recv()
	}
	wantError(t, err, codes.Internal, "call")
	for _, want := range []string{"boom in Get", "boom in Watch", "code=Internal"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, log.String())
		}
	}
	if _, err := c.List(t.Context(), &cordonv1.ListRequest{}); err != nil {
		t.Errorf("after the panics: %v", err)
	}
}

// A lease's secret, arguments and environment must not be in the log.
func TestAuditLine(t *testing.T) {
	var log lockedBuffer
	fake := apitest.NewSupervisor()
	fake.Programs["tool"] = func(*apitest.Process) supervisor.End { return apitest.Exit(0) }
	c, _ := dial(t, apitest.Start(t, fake, func(cfg *api.Config) {
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	}))
	ref := acquire(t, c)
	stream, err := c.Exec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	start := &cordonv1.ExecStart{Ref: ref, Argv: []string{"tool", "hunter2"}, Env: []string{"TOKEN=hunter3"}}
	if err := stream.Send(&cordonv1.ExecRequest{Kind: &cordonv1.ExecRequest_Start{Start: start}}); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	wrong := &cordonv1.LeaseRef{LeaseId: ref.GetLeaseId(), LeaseSecret: "not-it"}
	_, err = c.Get(t.Context(), &cordonv1.GetRequest{Ref: wrong})
	wantError(t, err, codes.NotFound, "lease")

	eventually(t, "three lines", func() bool { return strings.Count(log.String(), "msg=call") == 3 })
	for _, want := range []string{
		"method=/cordon.v1.Supervisor/Acquire code=OK uid=" + fmt.Sprint(os.Geteuid()),
		"method=/cordon.v1.Supervisor/Exec code=OK",
		"method=/cordon.v1.Supervisor/Get code=NotFound",
		"pid=" + fmt.Sprint(os.Getpid()),
		"lease=" + ref.GetLeaseId(),
		"duration=",
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, log.String())
		}
	}
	for _, secret := range []string{ref.GetLeaseSecret(), "hunter2", "hunter3", "not-it"} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log has the secret %q:\n%s", secret, log.String())
		}
	}
}

func TestRateLimit(t *testing.T) {
	var log lockedBuffer
	c, _ := dial(t, apitest.Start(t, apitest.NewSupervisor(), func(cfg *api.Config) {
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
		cfg.Limits = api.Limits{CallsPerSecond: 0.001, CallBurst: 3}
	}))
	for range 3 {
		if _, err := c.Info(t.Context(), &cordonv1.InfoRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		_, err := c.Info(t.Context(), &cordonv1.InfoRequest{})
		wantError(t, err, codes.ResourceExhausted, "call rate")
	}
	if n := strings.Count(log.String(), "calls refused"); n < 1 || n > 3 {
		t.Errorf("20 refusals within a moment left %d lines, want one or so", n)
	}
}

func TestCallsInFlightLimit(t *testing.T) {
	fake := apitest.NewSupervisor()
	socket := apitest.Start(t, fake, func(cfg *api.Config) { cfg.Limits = api.Limits{CallsInFlight: 2} })
	c, _ := dial(t, socket)
	ref := acquire(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	for range 2 {
		stream, err := c.Watch(ctx, &cordonv1.WatchRequest{Ref: ref})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil { // it runs
			t.Fatal(err)
		}
	}
	// Through a connection of its own: grpc queues what exceeds one's streams.
	other, _ := dial(t, socket)
	_, err := other.Info(t.Context(), &cordonv1.InfoRequest{})
	wantError(t, err, codes.ResourceExhausted, "calls in flight")
	cancel()
	eventually(t, "room again", func() bool {
		_, err := other.Info(t.Context(), &cordonv1.InfoRequest{})
		return err == nil
	})
}

// A call counts from its headers on, before anything of its message is here.
func TestSilentCallsCount(t *testing.T) {
	var log lockedBuffer
	socket := apitest.Start(t, apitest.NewSupervisor(), func(cfg *api.Config) {
		cfg.Limits = api.Limits{CallsInFlight: 2}
		cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	_, conn := dial(t, socket)
	ctx, cancel := context.WithCancel(t.Context())
	for range 2 {
		desc := &grpc.StreamDesc{ClientStreams: true}
		if _, err := conn.NewStream(ctx, desc, cordonv1.Supervisor_Acquire_FullMethodName); err != nil {
			t.Fatal(err)
		}
	}
	other, _ := dial(t, socket)
	eventually(t, "no more room", func() bool {
		_, err := other.Info(t.Context(), &cordonv1.InfoRequest{})
		return status.Code(err) == codes.ResourceExhausted
	})
	cancel()
	eventually(t, "room again", func() bool {
		_, err := other.Info(t.Context(), &cordonv1.InfoRequest{})
		return err == nil
	})
	eventually(t, "a line of each", func() bool {
		return strings.Count(log.String(), "method=/cordon.v1.Supervisor/Acquire code=Canceled") == 2
	})
}

func TestConnectionLimit(t *testing.T) {
	socket := apitest.Start(t, apitest.NewSupervisor(), func(cfg *api.Config) { cfg.Limits = api.Limits{Connections: 1} })
	first, conn := dial(t, socket)
	if _, err := first.Info(t.Context(), &cordonv1.InfoRequest{}); err != nil {
		t.Fatal(err)
	}
	second, _ := dial(t, socket)
	if _, err := second.Info(t.Context(), &cordonv1.InfoRequest{}); status.Code(err) != codes.Unavailable {
		t.Errorf("got %v, want Unavailable", err)
	}
	conn.Close()
	eventually(t, "a place for the second", func() bool {
		_, err := second.Info(t.Context(), &cordonv1.InfoRequest{}, grpc.WaitForReady(true))
		return err == nil
	})
}

func TestFaultsTravel(t *testing.T) {
	fake := apitest.NewSupervisor()
	fake.Before = func(string) error {
		return errors.Join(
			fault.New(fault.InvalidEnvelope, "identity.uid", "0 is out of range", "use 1 to 65533"),
			fault.New(fault.Unsupported, "artifacts.scan", "this host has no scanner", "leave it out"),
		)
	}
	c, _ := dial(t, apitest.Start(t, fake, nil))
	_, err := c.Acquire(t.Context(), &cordonv1.AcquireRequest{Envelope: &cordonv1.Envelope{}})
	wantError(t, err, codes.InvalidArgument, "identity.uid")
	if n := len(status.Convert(err).Details()); n != 2 {
		t.Errorf("%d details, want both reasons: %v", n, err)
	}
	// The envelope's own conversion comes before the supervisor.
	_, err = c.Acquire(t.Context(), &cordonv1.AcquireRequest{})
	wantError(t, err, codes.InvalidArgument, "envelope")
}

// Everything that a server starts is gone when Run has returned, and so are
// its descriptors.
func TestRunLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	fds := openFiles(t)
	t.Run("server", func(t *testing.T) {
		fake := apitest.NewSupervisor()
		fake.Programs["wait"] = func(p *apitest.Process) supervisor.End {
			<-p.Killed
			return apitest.Exit(0)
		}
		// Closed after the server has stopped, which so has to end live calls.
		var conn *grpc.ClientConn
		t.Cleanup(func() { conn.Close() })
		socket := apitest.Start(t, fake, nil)
		var err error
		conn, err = grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		c := cordonv1.NewSupervisorClient(conn)
		ref := acquire(t, c)
		for range 5 {
			stream, err := c.Exec(context.Background()) // ends with the server
			if err != nil {
				t.Fatal(err)
			}
			start := &cordonv1.ExecStart{Ref: ref, Argv: []string{"wait"}}
			if err := stream.Send(&cordonv1.ExecRequest{Kind: &cordonv1.ExecRequest_Start{Start: start}}); err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}
	})
	eventually(t, "goroutines gone", func() bool { return runtime.NumGoroutine() <= before })
	eventually(t, "descriptors closed", func() bool { return openFiles(t) <= fds })
}

func openFiles(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestNewWantsEverything(t *testing.T) {
	_, err := api.New(api.Config{})
	if err == nil {
		t.Fatal("an empty config is taken")
	}
	for _, name := range []string{"Supervisor", "Images", "Tenants", "Info", "Logger"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%v does not name %s", err, name)
		}
	}
}

func TestRecordsTravelWhole(t *testing.T) {
	fake := apitest.NewSupervisor()
	c, _ := dial(t, apitest.Start(t, fake, nil))
	ref := acquire(t, c)
	released, err := c.Release(t.Context(), &cordonv1.ReleaseRequest{Ref: ref})
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.GetRecord(t.Context(), &cordonv1.GetRecordRequest{LeaseId: ref.GetLeaseId()})
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(released.GetRecord(), got.GetRecord()) || got.GetRecord().GetState() != cordonv1.LeaseState_LEASE_STATE_CLOSED {
		t.Errorf("records differ: %v and %v", released.GetRecord(), got.GetRecord())
	}
}
