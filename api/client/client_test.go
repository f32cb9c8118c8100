package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cordon/api"
	"cordon/api/apitest"
	"cordon/api/client"
	"cordon/internal/fault"
	"cordon/supervisor/envelope"
)

// connect serves the fake and returns a client of it.
func connect(t testing.TB, fake *apitest.Supervisor, adjust func(*api.Config)) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), apitest.Start(t, fake, adjust))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func acquire(t testing.TB, c *client.Client) *client.Lease {
	t.Helper()
	l, err := c.Acquire(t.Context(), envelope.Envelope{Identity: envelope.Identity{Tenant: apitest.Tenant, RunID: "r1"}}, client.AcquireOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestDialSaysWhatToDo(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for path, want := range map[string]string{
		filepath.Join(dir, "none"): "no such socket; is cordond running?",
		stale:                      "nobody listens on this socket; is cordond running?",
	} {
		c, err := client.Dial(t.Context(), path)
		if err == nil {
			c.Close()
			t.Errorf("%s: connected to nobody", path)
			continue
		}
		var e *client.Error
		if !errors.As(err, &e) || e.Code != client.Unavailable || e.Field != path || e.Cause != want || e.Remedy == "" {
			t.Errorf("got %v, want %q about %s", err, want, path)
		}
	}
	if _, err := client.Dial(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v does not wrap what the operating system said", err)
	}
}

func TestLeaseLife(t *testing.T) {
	c := connect(t, apitest.NewSupervisor(), nil)
	ctx := t.Context()
	l := acquire(t, c)
	if l.ID() == "" || len(l.Secret()) != 32 || l.Replayed || l.Acquired.State != "active" || l.Acquired.Tenant != apitest.Tenant {
		t.Errorf("acquired %+v", l)
	}
	if l.Envelope.Resources.ProcessCount == 0 || !l.Envelope.Artifacts.Hash {
		t.Errorf("the defaults are not written out: %+v", l.Envelope)
	}
	if len(l.ReadBack) != 1 || !l.ReadBack[0].OK {
		t.Errorf("read back: %+v", l.ReadBack)
	}

	info, err := l.Renew(ctx, time.Hour)
	if err != nil || time.Until(info.ExpiresAt) < 50*time.Minute {
		t.Errorf("renewed to %v, %v; want an hour from now", info.ExpiresAt, err)
	}
	list, err := c.Leases(ctx)
	if err != nil || len(list) != 1 || list[0].ID != l.ID() {
		t.Errorf("leases: %+v, %v", list, err)
	}
	again := c.Lease(l.ID(), l.Secret())
	if got, err := again.Get(ctx); err != nil || got.ID != l.ID() {
		t.Errorf("resumed lease: %+v, %v", got, err)
	}
	if _, err := c.Lease(l.ID(), "wrong").Get(ctx); client.CodeOf(err) != client.NotFound {
		t.Errorf("wrong secret: %v, want not_found", err)
	}

	rec, err := l.Release(ctx)
	if err != nil || !json.Valid(rec.JSON) || rec.Head == "" || rec.State != "closed" {
		t.Errorf("record %+v, %v", rec, err)
	}
	same, err := c.Record(ctx, l.ID())
	if err != nil || cmp.Diff(rec, same) != "" {
		t.Errorf("record again: %+v, %v", same, err)
	}
	got, err := l.Get(ctx)
	if err != nil || got.State != "closed" || got.End == nil || got.End.Cause != client.Released {
		t.Errorf("after release: %+v, %v", got, err)
	}
}

func TestAcquireReplay(t *testing.T) {
	c := connect(t, apitest.NewSupervisor(), nil)
	first, err := c.Acquire(t.Context(), envelope.Envelope{}, client.AcquireOptions{Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	second, err := c.Acquire(t.Context(), envelope.Envelope{}, client.AcquireOptions{Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	if !second.Replayed || second.ID() != first.ID() || second.Secret() != "" {
		t.Errorf("second call: %+v, want the first's lease without its secret", second)
	}
	third := acquire(t, c)
	fourth := acquire(t, c)
	if third.ID() == fourth.ID() {
		t.Error("without a key, two calls are the same lease")
	}
}

func TestWatch(t *testing.T) {
	c := connect(t, apitest.NewSupervisor(), nil)
	l := acquire(t, c)
	var got []string
	for e, err := range l.Watch(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, strconv.FormatUint(e.Sequence, 10)+" "+e.Kind+" "+e.Attributes["state"])
		switch e.Kind {
		case "state":
			if e.Attributes["state"] != "active" {
				continue
			}
			if _, err := l.Renew(t.Context(), time.Hour); err != nil {
				t.Fatal(err)
			}
		case "renewed":
			if _, err := l.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	if diff := cmp.Diff([]string{"1 state active", "2 renewed ", "3 state closed"}, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	for e, err := range l.Watch(t.Context(), 2) { // leaving the loop ends the stream
		if err != nil || e.Sequence != 2 {
			t.Errorf("watching from 2 begins with %d, %v", e.Sequence, err)
		}
		break
	}
	for _, err := range c.Lease("l-none", "").Watch(t.Context(), 0) {
		if client.CodeOf(err) != client.NotFound {
			t.Errorf("got %v, want not_found", err)
		}
	}
}

func TestInfo(t *testing.T) {
	c := connect(t, apitest.NewSupervisor(), nil)
	got, err := c.Info(t.Context())
	want := client.Info{
		Version: "v0.0.0-test", Kernel: "6.1.0", CgroupMode: "v2", Leases: 1, Tenants: []string{apitest.Tenant},
		Terms: []client.Term{{Letter: "K", Name: "kernel", Given: true, Proof: "seccomp", LeftOver: "the kernel"}},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("info: %v (-want +got):\n%s", err, diff)
	}
}

func TestErrorsKeepWhatTheDaemonSays(t *testing.T) {
	fake := apitest.NewSupervisor()
	fake.Before = func(method string) error {
		if method == "List" {
			return errors.New("a secret of the daemon")
		}
		return errors.Join(
			fault.New(fault.InvalidEnvelope, "identity.uid", "0 is out of range", "use 1 to 65533"),
			fault.New(fault.Unsupported, "artifacts.scan", "this host has no scanner", "leave it out"),
		)
	}
	c := connect(t, fake, nil)
	_, err := c.Acquire(t.Context(), envelope.Envelope{}, client.AcquireOptions{})
	var e *client.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want a *client.Error", err)
	}
	if e.Code != client.InvalidEnvelope || e.Field != "identity.uid" || e.Cause != "0 is out of range" || e.Remedy != "use 1 to 65533" {
		t.Errorf("got %+v", e)
	}
	want := "identity.uid: 0 is out of range [use 1 to 65533]; artifacts.scan: this host has no scanner [leave it out]"
	if e.Error() != want {
		t.Errorf("got %q, want %q", e.Error(), want)
	}
	if len(e.Also) != 1 || e.Also[0].Code != client.Unsupported {
		t.Errorf("further reasons: %+v", e.Also)
	}

	_, err = c.Leases(t.Context())
	if client.CodeOf(err) != client.Internal || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "id ") {
		t.Errorf("got %v, want internal with an id and no more", err)
	}
}

func TestContextErrorsShow(t *testing.T) {
	fake := apitest.NewSupervisor()
	block := make(chan struct{})
	fake.Before = func(string) error {
		<-block
		return nil
	}
	c := connect(t, fake, nil)
	defer close(block)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := c.Leases(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || client.CodeOf(err) != client.DeadlineExceeded {
		t.Errorf("got %v, want deadline_exceeded", err)
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	_, err = c.Leases(ctx)
	if !errors.Is(err, context.Canceled) || client.CodeOf(err) != client.Cancelled {
		t.Errorf("got %v, want cancelled", err)
	}
}

// constants returns the string constants of a type in a Go file.
func constants(t *testing.T, path, typ string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if id, ok := spec.Type.(*ast.Ident); !ok || id.Name != typ {
			return true
		}
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, value)
		return true
	})
	if len(out) < 10 {
		t.Fatalf("%s: found %d constants of type %s", path, len(out), typ)
	}
	slices.Sort(out)
	return out
}

// The client has a name for every code that a daemon can answer with.
func TestCodesAreComplete(t *testing.T) {
	want := constants(t, "../../internal/fault/fault.go", "Code")
	want = append(want, "cancelled", "deadline_exceeded", "internal", "unavailable")
	slices.Sort(want)
	if diff := cmp.Diff(want, constants(t, "errors.go", "Code")); diff != "" {
		t.Errorf("codes (-want +got):\n%s", diff)
	}
}
