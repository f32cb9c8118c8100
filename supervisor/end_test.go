package supervisor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cordon/internal/fault"
	"cordon/jail"
	"cordon/supervisor/envelope"
)

func TestLeaseEndsByItself(t *testing.T) {
	lease := func(d time.Duration) func(*envelope.Envelope) {
		return func(e *envelope.Envelope) { e.Cleanup.Lease = d }
	}
	wall := func(d time.Duration) func(*envelope.Envelope) {
		return func(e *envelope.Envelope) { e.Resources.WallClock = d }
	}
	authority := func(e *envelope.Envelope) {
		e.Identity.AuthorityExpiry = time.Now().Add(20 * time.Second).UTC().Format(time.RFC3339)
	}
	tests := []struct {
		name    string
		change  func(*envelope.Envelope)
		after   time.Duration
		want    string
		command string
	}{
		{"lease", lease(30 * time.Second), 30 * time.Second, "lease_expired", "lease_expired"},
		{"wall clock", wall(10 * time.Second), 10 * time.Second, "timed_out", "timed_out"},
		{"authority", authority, 20 * time.Second, "lease_expired", "lease_expired"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *harness) {
				_, ref := h.acquire("k", tt.change)
				s := h.exec(ref, ExecRequest{Argv: []string{"sleep", "100000"}})
				until(tt.after - time.Millisecond)
				if got := h.state(ref); got != Active {
					t.Fatalf("too early: %s", got)
				}
				until(time.Millisecond)
				if got := h.state(ref); got != Closed {
					t.Fatalf("on time: %s", got)
				}
				h.empty()
				if _, _, end := h.drain(s); end.Cause.String() != tt.command {
					t.Errorf("command ended as %+v", end)
				}
				rec := h.record(ref.ID).Record
				if rec.End.Cause != tt.want || rec.Execs[0].End.Cause != tt.command {
					t.Errorf("record: %+v, command %+v", rec.End, rec.Execs[0].End)
				}
				if got := rec.Lease.EndedAt.Sub(rec.Lease.RequestedAt); got != tt.after {
					t.Errorf("ended after %s", got)
				}
			})
		})
	}
}

func TestInitDies(t *testing.T) {
	tests := []struct {
		name string
		oom  uint64
		fail error
		want string
	}{
		{"for no known reason", 0, nil, "infrastructure"},
		{"of an OOM kill", 1, nil, "oom_killed"},
		{"and usage is gone", 1, errors.New("boom"), "infrastructure"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *harness) {
				_, ref := h.acquire("k")
				s := h.exec(ref, ExecRequest{Argv: []string{"sleep", "100"}})
				h.host.set(func(f *fakeHost) { f.oomKills = tt.oom })
				h.host.failAt("jail.usage", tt.fail)
				h.jailOf(ref.ID).die()
				_, _, end := h.drain(s)
				synctest.Wait()
				if got := h.state(ref); got != Closed {
					t.Fatalf("state %s", got)
				}
				rec := h.record(ref.ID).Record
				if rec.End.Cause != tt.want || end.Cause.String() != tt.want || !strings.Contains(rec.End.Detail, "PID 1") {
					t.Errorf("lease %+v, command %+v", rec.End, end)
				}
				if (tt.fail != nil) != (len(rec.Gaps) != 0) {
					t.Errorf("gaps %v", rec.Gaps)
				}
			})
		})
	}
}

func TestRenew(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k", func(e *envelope.Envelope) {
			e.Cleanup.Lease = time.Minute
			e.Resources.WallClock = 2 * time.Hour
		})
		began := time.Now()
		h.exec(ref, ExecRequest{Argv: []string{"sleep", "100000"}})
		for _, step := range []struct {
			extend time.Duration
			want   time.Duration // expiry, from the beginning
		}{
			{30 * time.Second, time.Minute}, // never back
			{2 * time.Minute, 2 * time.Minute},
			{5 * time.Hour, time.Hour}, // the tenant's most
			{time.Minute, time.Hour},
		} {
			info, err := h.sup.Renew(t.Context(), owner, ref, step.extend)
			if err != nil || !info.ExpiresAt.Equal(began.Add(step.want)) {
				t.Errorf("extend %s: got %s, %v", step.extend, info.ExpiresAt.Sub(began), err)
			}
			h.host.mu.Lock()
			if until := h.host.egress[1]; !until.Equal(began.Add(step.want)) {
				t.Errorf("extend %s: egress until %s", step.extend, until.Sub(began))
			}
			h.host.mu.Unlock()
		}
		for _, bad := range []time.Duration{0, -time.Second} {
			_, err := h.sup.Renew(t.Context(), owner, ref, bad)
			wantCode(t, "extend", err, fault.InvalidArgument)
		}
		until(time.Hour - time.Millisecond)
		if got := h.state(ref); got != Active {
			t.Errorf("before: %s", got)
		}
		until(time.Millisecond)
		if got := h.state(ref); got != Closed {
			t.Errorf("after: %s", got)
		}
		_, err := h.sup.Renew(t.Context(), owner, ref, time.Minute)
		wantCode(t, "closed", err, fault.WrongState)
	})
}

func TestRenewCaps(t *testing.T) {
	tests := []struct {
		name   string
		change func(*envelope.Envelope)
		want   time.Duration
	}{
		{"wall clock", func(e *envelope.Envelope) { e.Resources.WallClock = 40 * time.Minute }, 40 * time.Minute},
		{"authority", func(e *envelope.Envelope) {
			e.Resources.WallClock = 2 * time.Hour
			e.Identity.AuthorityExpiry = time.Now().Add(30 * time.Minute).UTC().Format(time.RFC3339)
		}, 30 * time.Minute},
		{"tenant", func(e *envelope.Envelope) { e.Resources.WallClock = 2 * time.Hour }, time.Hour},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *harness) {
				began := time.Now()
				_, ref := h.acquire("k", tt.change)
				info, err := h.sup.Renew(t.Context(), owner, ref, 24*time.Hour)
				if err != nil || info.ExpiresAt.Sub(began) != tt.want || !info.MaxExpiresAt.Equal(info.ExpiresAt) {
					t.Errorf("got %s, %v", info.ExpiresAt.Sub(began), err)
				}
			})
		})
	}
}

func TestRenewFails(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		got, ref := h.acquire("k", func(e *envelope.Envelope) { e.Cleanup.Lease = time.Minute })
		boom := errors.New("boom")
		h.host.failAt("egress.admit", boom)
		if _, err := h.sup.Renew(t.Context(), owner, ref, 5*time.Minute); !errors.Is(err, boom) {
			t.Errorf("got %v", err)
		}
		e, _, err := h.sup.journal.byID(ref.ID)
		if err != nil || !e.ExpiresAt.Equal(got.Lease.ExpiresAt) {
			t.Errorf("journal has %s, %v", e.ExpiresAt, err)
		}
		until(time.Minute)
		if got := h.state(ref); got != Closed {
			t.Errorf("state %s", got)
		}
	})
}

func TestReleaseIsIdempotent(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		s := h.exec(ref, ExecRequest{Argv: []string{"sleep", "100"}})
		const n = 5
		recs := make([]SignedRecord, n)
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				var err error
				if recs[i], err = h.sup.Release(t.Context(), owner, ref); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		again, err := h.sup.Release(t.Context(), owner, ref)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range recs {
			if string(r.JSON) != string(again.JSON) || r.Head != again.Head || r.State != Closed {
				t.Errorf("records differ: %s and %s", r.Head, again.Head)
			}
		}
		if _, _, end := h.drain(s); end.Cause != CauseCancelled || end.Detail != "the lease was released" {
			t.Errorf("command ended as %+v", end)
		}
		for name, call := range map[string]func() error{
			"exec": func() error {
				_, err := h.sup.Exec(t.Context(), owner, ref, ExecRequest{Argv: []string{"a"}})
				return err
			},
			"attach": func() error { _, err := h.sup.Attach(t.Context(), owner, ref, "e-1"); return err },
			"renew":  func() error { _, err := h.sup.Renew(t.Context(), owner, ref, time.Hour); return err },
		} {
			wantCode(t, name, call(), fault.WrongState)
		}
	})
}

// TestReleaseCallerGone: the end goes on without the caller that began it.
func TestReleaseCallerGone(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := h.sup.Release(ctx, owner, ref); err != nil {
			t.Errorf("got %v", err)
		}
		h.empty()
	})
}

// TestReleaseSlowClient: output that nobody takes does not hold up the end.
func TestReleaseSlowClient(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		s := h.exec(ref, ExecRequest{Argv: []string{"yes", "1000000"}})
		synctest.Wait()
		began := time.Now()
		h.release(ref)
		if took := time.Since(began); took > time.Second {
			t.Errorf("took %s", took)
		}
		_, _, end := h.drain(s)
		if end.Cause != CauseCancelled || !strings.Contains(end.Detail, "dropped") {
			t.Errorf("got %+v", end)
		}
	})
}

// TestEndGoesOnAfterErrors lets every port call of an end fail in turn. The
// lease is quarantined, everything else is removed all the same, and when the
// port works again the lease is closed.
func TestEndGoesOnAfterErrors(t *testing.T) {
	boom := errors.New("boom")
	for _, at := range []string{"jail.close", "egress.forget", "store.detach", "store.attached", "jailer.strays"} {
		t.Run(at, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *harness) {
				_, ref := h.acquire("k")
				h.host.failAt(at, boom)
				if at == "jail.close" {
					h.host.failAt("jailer.sweep", boom)
				}
				first := h.release(ref)
				if first.Record.State != "quarantined" || len(first.Record.Cleanup.Errors) == 0 ||
					!strings.Contains(strings.Join(first.Record.Cleanup.Errors, " "), "boom") {
					t.Fatalf("record: %s, %+v", first.Record.State, first.Record.Cleanup)
				}
				if left := len(h.host.remains()); left > 1 {
					t.Errorf("%d things were not even tried: %v", left, h.host.remains())
				}
				if got := h.state(ref); got != Quarantined {
					t.Errorf("state %s", got)
				}
				_, err := h.sup.Exec(t.Context(), owner, ref, ExecRequest{Argv: []string{"a"}})
				wantCode(t, "exec", err, fault.WrongState)
				if again := h.release(ref); again.Head != first.Head {
					t.Error("a second release made another record")
				}

				until(time.Minute) // retries that fail make no records
				if n := h.verifyChain().Link.Sequence; n != 1 {
					t.Errorf("%d records", n)
				}
				h.host.failAt(at, nil)
				h.host.failAt("jailer.sweep", nil)
				until(10 * time.Minute)
				h.empty()
				last := h.release(ref)
				if last.Record.State != "closed" || last.Record.Supersedes != first.Head || last.Record.End.Cause != "released" {
					t.Errorf("later record: %s, %+v", last.Record.State, last.Record.End)
				}
				h.verifyChain()
			})
		})
	}
	for _, at := range []string{"jail.freeze", "jail.usage", "egress.flows"} {
		t.Run(at+" is no leftover", func(t *testing.T) {
			bubble(t, func(t *testing.T, h *harness) {
				_, ref := h.acquire("k")
				h.host.failAt(at, boom)
				h.drain(h.exec(ref, ExecRequest{Argv: []string{"true"}}))
				if rec := h.release(ref).Record; rec.State != "closed" {
					t.Errorf("record: %s", rec.State)
				}
				h.empty()
			})
		})
	}
}

// TestSweepHelpsClose: what a jail's own Close cannot do, the next attempt
// does by name.
func TestSweepHelpsClose(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		h.host.failAt("jail.close", errors.New("boom"))
		if first := h.release(ref); first.Record.State != "quarantined" {
			t.Fatalf("record: %s", first.Record.State)
		}
		until(time.Minute)
		h.empty()
	})
}

// TestJournalFullAtTheEnd: without room for the record the lease is torn
// down, kept, and sealed when there is room.
func TestJournalFullAtTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		h.full.Store(true)
		_, err := h.sup.Release(t.Context(), owner, ref)
		wantCode(t, "release", err, fault.DiskFull)
		if left := h.host.remains(); len(left) != 0 {
			t.Errorf("left on the host: %v", left)
		}
		if got := h.state(ref); got != Quarantined {
			t.Errorf("state %s", got)
		}
		h.full.Store(false)
		until(10 * time.Second)
		h.empty()
		if rec := h.release(ref).Record; rec.State != "closed" || rec.End.Cause != "released" || rec.Cleanup.Attempts != 1 {
			t.Errorf("record: %s, %+v, %+v", rec.State, rec.End, rec.Cleanup)
		}
	})
}

func TestCloseEndsAllLeases(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		var refs []Ref
		for i := range 5 {
			_, ref := h.acquire(fmt.Sprint("k", i))
			refs = append(refs, ref)
		}
		s := h.exec(refs[0], ExecRequest{Argv: []string{"sleep", "100"}})
		h.host.set(func(f *fakeHost) { f.making = make(chan struct{}) }) // one is under way
		under := make(chan error, 1)
		go func() {
			_, err := h.sup.Acquire(t.Context(), owner, testEnvelope(), "under-way")
			under <- err
		}()
		synctest.Wait()
		if err := h.sup.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := h.sup.Close(t.Context()); err != nil {
			t.Errorf("second close: %v", err)
		}
		if err := <-h.runEnd; err != nil {
			t.Errorf("run: %v", err)
		}
		wantCode(t, "acquire under way", <-under, fault.WrongState)
		_, err := h.sup.Acquire(t.Context(), owner, testEnvelope(), "late")
		wantCode(t, "late acquire", err, fault.WrongState)
		if _, _, end := h.drain(s); end.Cause != CauseInfrastructure || end.Detail != "daemon stopped" {
			t.Errorf("command ended as %+v", end)
		}
		if left := h.host.remains(); len(left) != 0 {
			t.Errorf("left on the host: %v", left)
		}
		h.host.set(func(f *fakeHost) { f.making = nil })
		h.start()
		h.empty()
		for _, ref := range refs {
			if rec := h.record(ref.ID).Record; rec.End.Cause != "infrastructure" || rec.End.Detail != "daemon stopped" {
				t.Errorf("record: %+v", rec.End)
			}
		}
		h.verifyChain()
	})
	if err := (*Supervisor)(nil).Close(t.Context()); err != nil {
		t.Errorf("nil: %v", err)
	}
}

// TestPanicEndsRun: a panic in a goroutine of the package is an error of Run,
// not the end of the process before anything can be undone.
// gatedStore opens images when it is let.
type gatedStore struct {
	fakeStore
	gate chan struct{}
}

func (g gatedStore) OpenImage(digest string) (jail.Image, error) {
	<-g.gate
	return g.fakeStore.OpenImage(digest)
}

// TestCloseBeforeTheIntent: an attempt that fails before it is journalled
// leaves nothing to end.
func TestCloseBeforeTheIntent(t *testing.T) {
	var gate chan struct{}
	open := func(c *Config) {
		gate = make(chan struct{})
		c.Store = gatedStore{c.Store.(fakeStore), gate}
	}
	bubbleWith(t, open, func(t *testing.T, h *harness) {
		h.host.failAt("store.image", errors.New("boom"))
		acquired, closed := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := h.sup.Acquire(t.Context(), owner, testEnvelope(), "k")
			acquired <- err
		}()
		synctest.Wait()
		go func() { closed <- h.sup.Close(t.Context()) }()
		synctest.Wait()
		close(gate)
		if err := <-acquired; err == nil {
			t.Error("acquired")
		}
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if n := h.sup.Count(); n != 0 || strings.Contains(h.log.String(), "level=ERROR") {
			t.Errorf("%d leases, log:\n%s", n, h.log)
		}
	})
}

// TestOutputOfACommandWithoutAnEnd: a record that is made while a command
// still talks says what it has said.
func TestOutputOfACommandWithoutAnEnd(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		h.exec(ref, ExecRequest{Argv: []string{"yes", "1048576"}}) // nobody reads it
		synctest.Wait()
		at, _ := h.sup.lookUp(ref.ID)
		at.live.mu.Lock()
		defer at.live.mu.Unlock()
		x := at.live.execsLocked()[0]
		if x.Usage.OutputBytes == 0 || x.Usage.OutputBytes != at.live.output.Load() || x.End.Cause != "infrastructure" {
			t.Errorf("record has %+v, %d bytes were read", x, at.live.output.Load())
		}
	})
}

func TestPanicEndsRun(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		h.sup.spawn(func() { panic("boom") })
		err := <-h.runEnd
		if err == nil || !strings.Contains(err.Error(), "boom") {
			t.Errorf("run: got %v", err)
		}
		h.runEnd <- nil // for stop
	})
}

func TestRunTwice(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		if err := h.sup.Run(t.Context()); err == nil {
			t.Error("ran twice")
		}
	})
}

// TestRunAgain: leases outlive a Run, and the next one takes them over.
func TestRunAgain(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k", func(e *envelope.Envelope) { e.Cleanup.Lease = time.Minute })
		h.cancel()
		if err := <-h.runEnd; err != nil {
			t.Fatal(err)
		}
		until(2 * time.Minute)
		if got := h.state(ref); got != Active {
			t.Errorf("nobody watches, but it is %s", got)
		}
		h.run()
		if got := h.state(ref); got != Closed {
			t.Errorf("state %s", got)
		}
	})
}
