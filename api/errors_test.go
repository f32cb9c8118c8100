package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	cordonv1 "cordon/api/v1"
	"cordon/internal/fault"
)

// declaredCodes reads the codes of package fault, and the gRPC status that
// the comment of each promises, from its source.
func declaredCodes(t *testing.T) map[fault.Code]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../internal/fault/fault.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[fault.Code]string)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || fmt.Sprint(spec.Type) != "Code" {
			return true
		}
		value := spec.Values[0].(*ast.BasicLit).Value
		out[fault.Code(strings.Trim(value, `"`))] = strings.TrimSpace(spec.Comment.Text())
		return true
	})
	return out
}

func TestFaultCodesHaveTheirStatus(t *testing.T) {
	declared := declaredCodes(t)
	if len(declared) < 20 {
		t.Fatalf("found %d codes in package fault; the test no longer reads it right", len(declared))
	}
	for code, want := range declared {
		if got, ok := faultCodes[code]; !ok || got.String() != want {
			t.Errorf("%s travels with %v, want %s", code, got, want)
		}
	}
	for code := range faultCodes {
		if _, ok := declared[code]; !ok {
			t.Errorf("%s is mapped, and package fault does not have it", code)
		}
	}
}

func TestErrStatus(t *testing.T) {
	const secret = "open /secret/path"
	inner := errors.New(secret)
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	late, cancelLate := context.WithTimeout(context.Background(), -1)
	defer cancelLate()

	tests := []struct {
		name   string
		ctx    context.Context
		in     error
		code   codes.Code
		msg    string
		detail *cordonv1.ErrorDetail // nil: not compared
		logged bool
	}{
		{name: "nil", in: nil, code: codes.OK},
		{
			name: "fault", in: fault.New(fault.PolicyExceeded, "resources.memory_bytes", "asks for too much", "ask for less"),
			code: codes.PermissionDenied, msg: "resources.memory_bytes: asks for too much [ask for less]",
			detail: &cordonv1.ErrorDetail{Code: "policy_exceeded", Field: "resources.memory_bytes", Cause: "asks for too much", Remedy: "ask for less"},
		},
		{
			name: "wrapped fault", in: fmt.Errorf("acquire: %w", fault.New(fault.NotFound, "lease", "no such lease", "")),
			code: codes.NotFound, msg: "lease: no such lease",
			detail: &cordonv1.ErrorDetail{Code: "not_found", Field: "lease", Cause: "no such lease"},
		},
		{
			name: "fault around a cause", in: fault.Wrap(inner, fault.NotFound, "lease", "no such lease", ""),
			code: codes.NotFound, msg: "lease: no such lease", logged: true,
			detail: &cordonv1.ErrorDetail{Code: "not_found", Field: "lease", Cause: "no such lease"},
		},
		{
			name: "internal fault", in: fault.New(fault.ReadBackMismatch, "caps", "differ", "report it"),
			code: codes.Internal, msg: "caps: differ [report it]", logged: true,
			detail: &cordonv1.ErrorDetail{Code: "read_back_mismatch", Field: "caps", Cause: "differ", Remedy: "report it"},
		},
		{name: "other error", in: inner, code: codes.Internal, logged: true},
		{name: "fault of no known code", in: fault.New("made_up", "", secret, ""), code: codes.Internal, logged: true},
		{name: "deadline of our own", in: context.DeadlineExceeded, code: codes.Internal, logged: true},
		{
			name: "caller left", ctx: cancelled, in: fmt.Errorf("wait: %w", context.Canceled),
			code: codes.Canceled, msg: "call: cancelled by the caller",
		},
		{
			name: "caller's deadline", ctx: late, in: inner, code: codes.DeadlineExceeded,
			msg: "call: took longer than its deadline allows [allow more time, or see whether the host is overloaded]",
		},
		{name: "status", in: status.Error(codes.Aborted, "x"), code: codes.Aborted, msg: "x"},
		{name: "somebody else's status", in: fmt.Errorf("y: %w", status.Error(codes.Aborted, secret)), code: codes.Internal, logged: true},
		{
			name: "long and not UTF-8", in: fault.New(fault.InvalidArgument, "argv", strings.Repeat("\xff", 5000), ""),
			code: codes.InvalidArgument, msg: "argv: ?...",
			detail: &cordonv1.ErrorDetail{Code: "invalid_argument", Field: "argv", Cause: "?..."},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var logs bytes.Buffer
			ctx := tt.ctx
			if ctx == nil {
				ctx = t.Context()
			}
			err := errStatus(ctx, slog.New(slog.NewTextHandler(&logs, nil)), tt.in)
			st := status.Convert(err)
			if st.Code() != tt.code {
				t.Errorf("code %v, want %v (%v)", st.Code(), tt.code, err)
			}
			if tt.msg != "" && st.Message() != tt.msg {
				t.Errorf("message %q, want %q", st.Message(), tt.msg)
			}
			if strings.Contains(fmt.Sprint(st.Proto()), secret) {
				t.Errorf("the caller learns the inner error: %v", st.Proto())
			}
			if got := strings.Count(logs.String(), "\n"); got != map[bool]int{true: 1}[tt.logged] {
				t.Errorf("logged %d lines, want logged %v:\n%s", got, tt.logged, logs.String())
			}
			if tt.logged && errors.Is(tt.in, inner) && !strings.Contains(logs.String(), secret) {
				t.Errorf("the log lacks the cause: %s", logs.String())
			}
			if tt.detail != nil {
				if diff := cmp.Diff([]any{tt.detail}, st.Details(), protocmp.Transform()); diff != "" {
					t.Errorf("details (-want +got):\n%s", diff)
				}
			}
			// What the chain converts twice must stay as it is.
			if tt.code != codes.OK {
				again := errStatus(cancelled, slog.New(slog.DiscardHandler), err)
				if status.Code(again) != tt.code {
					t.Errorf("converted again it is %v", again)
				}
			}
		})
	}
}

func TestInternalErrorNamesItsLogLine(t *testing.T) {
	var logs bytes.Buffer
	err := errStatus(context.Background(), slog.New(slog.NewTextHandler(&logs, nil)), errors.New("boom"))
	_, rest, ok := strings.Cut(err.Error(), "(id ")
	id, _, _ := strings.Cut(rest, ")")
	if !ok || len(id) != 12 || !strings.Contains(logs.String(), "id="+id) {
		t.Errorf("the answer %v does not name the log line %s", err, logs.String())
	}
}

func ofTenant(uid uint32) account { return account{uid: uid, kind: kindTenant} }

func TestCallLimit(t *testing.T) {
	now := time.Unix(1000, 0)
	l := newCallLimit(Limits{CallsPerSecond: 10, CallBurst: 3, CallsInFlight: 2}, func() time.Time { return now })
	take := func(uid uint32, ok bool, wantTell int) {
		t.Helper()
		tell, err := l.take(ofTenant(uid))
		if (err == nil) != ok || tell != wantTell {
			t.Errorf("take %d: tell %d, %v; want ok %v and tell %d", uid, tell, err, ok, wantTell)
		}
		if err != nil && fault.CodeOf(err) != fault.HostFull {
			t.Errorf("take %d: %v is not host_full", uid, err)
		}
	}
	take(1, true, 0)
	take(1, true, 0)
	take(1, false, 1) // two in flight
	take(1, false, 0) // told within the second
	l.give(ofTenant(1))
	take(1, true, 0)
	l.give(ofTenant(1))
	take(1, false, 0) // the burst is used up
	take(2, true, 0)  // others do not feel it
	now = now.Add(time.Second)
	take(1, true, 0)
	take(1, false, 3) // two in flight again; the two untold are told now
	now = now.Add(time.Hour)
	l.give(ofTenant(1))
	l.give(ofTenant(1))
	l.give(ofTenant(2))
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid := range uint32(1100) {
		l.peers[ofTenant(10_000+uid)] = &peerCalls{bucket: l.peers[ofTenant(1)].bucket}
	}
	l.forgetIdleLocked(now)
	if len(l.peers) != 0 {
		t.Errorf("%d idle accounts were not forgotten", len(l.peers))
	}
}

func TestConnLimit(t *testing.T) {
	l := newConnLimit(Limits{Connections: 2, AllConnections: 3}, time.Now)
	for i, tt := range []struct {
		uid uint32
		ok  bool
	}{{1, true}, {1, true}, {1, false}, {2, true}, {2, false}} {
		if _, err := l.take(ofTenant(tt.uid)); (err == nil) != tt.ok {
			t.Errorf("step %d: take %d: %v, want ok %v", i, tt.uid, err, tt.ok)
		}
	}
	l.give(ofTenant(1))
	if _, err := l.take(ofTenant(2)); err != nil {
		t.Errorf("after one was given back: %v", err)
	}
	l.give(ofTenant(1))
	l.give(ofTenant(2))
	l.give(ofTenant(2))
	if l.total != 0 || len(l.open) != 0 {
		t.Errorf("all given back, still counted: %d, %v", l.total, l.open)
	}
}

// Who may ask for Info only gets little, and does not use up a tenant's share.
func TestLimitsByKind(t *testing.T) {
	l := newConnLimit(Limits{}.withDefaults(), time.Now)
	for _, tt := range []struct {
		kind kind
		want int
	}{{kindOther, 4}, {kindTenant, 64}, {kindRoot, 64}} {
		got := 0
		for got < 100 {
			if _, err := l.take(account{uid: 1, kind: tt.kind}); err != nil {
				break
			}
			got++
		}
		if got != tt.want {
			t.Errorf("%v: %d connections, want %d", tt.kind, got, tt.want)
		}
	}
	calls := newCallLimit(Limits{}.withDefaults(), time.Now)
	for i := range 9 {
		if _, err := calls.take(account{uid: 1}); (err == nil) != (i < 8) {
			t.Errorf("call %d at once: %v, want 8 admitted", i+1, err)
		}
	}
	if strict := (Limits{CallsInFlight: 2, Connections: 1}).withDefaults().of(kindOther); strict.CallsInFlight != 2 || strict.Connections != 1 {
		t.Errorf("the configured limits were raised: %+v", strict)
	}
}

func TestTurns(t *testing.T) {
	var turns turns
	var done []func()
	for range turnsAtOnce {
		d, err := turns.take(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		done = append(done, d)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := turns.take(ended, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("one turn too many: %v, want to wait for the end of ctx", err)
	}
	other, err := turns.take(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	other()
	waiting := make(chan error, 1)
	go func() {
		d, err := turns.take(t.Context(), 1)
		if err == nil {
			d()
		}
		waiting <- err
	}()
	for _, d := range done {
		d()
	}
	if err := <-waiting; err != nil {
		t.Error(err)
	}
	if len(turns.uids) != 0 {
		t.Errorf("nobody is there, and %d are remembered", len(turns.uids))
	}
}
