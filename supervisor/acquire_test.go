package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"cordon/internal/fault"
	"cordon/supervisor/envelope"
	"cordon/supervisor/evidence"
)

func TestAcquireAndRelease(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		began := time.Now()
		got, ref := h.acquire("k1", func(e *envelope.Envelope) {
			e.Filesystem.Inputs = []envelope.Input{{Name: "in", Digest: testImage}}
		})
		if len(got.Secret) != 32 || !strings.HasPrefix(ref.ID, "l-") || len(ref.ID) != 18 {
			t.Errorf("secret %q, id %q", got.Secret, ref.ID)
		}
		want := LeaseInfo{
			ID: ref.ID, State: Active, OwnerUID: 1000, Tenant: "acme", RunID: "run-1", AttemptID: "1",
			ImageDigest: testImage, EnvelopeDigest: got.Lease.EnvelopeDigest, PlanDigest: got.Lease.PlanDigest,
			AcquiredAt: got.Lease.AcquiredAt, ExpiresAt: began.Add(10 * time.Minute), MaxExpiresAt: began.Add(10 * time.Minute),
			Fencing: 1, Execs: []ExecInfo{},
		}
		if diff := cmp.Diff(want, got.Lease, cmp.Comparer(time.Time.Equal)); diff != "" {
			t.Errorf("lease (-want +got):\n%s", diff)
		}
		if got.Replayed || len(got.ReadBack) != 1 || got.Envelope.Resources.WallClock != 10*time.Minute {
			t.Errorf("got %+v", got)
		}
		if strings.Contains(h.log.String(), got.Secret) {
			t.Error("the secret is in the log")
		}

		until(3 * time.Second)
		report := h.release(ref)
		rec := report.Record
		h.empty()
		if rec.State != "closed" || rec.End.Cause != "released" || !rec.Cleanup.Clean || rec.Cleanup.Attempts != 1 {
			t.Errorf("record ends as %s, %+v, %+v", rec.State, rec.End, rec.Cleanup)
		}
		wantDigests := evidence.Digests{Envelope: got.Lease.EnvelopeDigest, HostPolicy: "sha256:policy", Plan: got.Lease.PlanDigest, Image: testImage}
		if diff := cmp.Diff(wantDigests, rec.Digests); diff != "" {
			t.Errorf("digests (-want +got):\n%s", diff)
		}
		wantUsage := evidence.Usage{CPUUserUS: 1500, MemoryPeakBytes: 4096, WallUS: 3e6}
		if diff := cmp.Diff(wantUsage, rec.Usage); diff != "" {
			t.Errorf("usage (-want +got):\n%s", diff)
		}
		kinds := []string{}
		for _, it := range rec.Cleanup.Items {
			kinds = append(kinds, it.Kind)
		}
		if diff := cmp.Diff([]string{"cgroups", "egress_entry", "inputs", "traces"}, kinds); diff != "" {
			t.Errorf("looked for (-want +got):\n%s", diff)
		}
		if rec.Host != (evidence.Host{Version: "0.1-test", RuntimeRevision: "rev-1", Kernel: "6.18.5", CgroupMode: "hybrid"}) ||
			rec.Lease.IDBase != 1<<20 || len(rec.ReadBack) != 1 || len(rec.Inputs) != 1 || len(rec.Network.Destinations) != 1 {
			t.Errorf("record %+v", rec)
		}
		if h.state(ref) != Closed {
			t.Errorf("state %s", h.state(ref))
		}
	})
}

// TestAcquireOrder holds the order of effects: nothing but a look at the image
// before the intent is journalled, and the filter before the lease is handed out.
func TestAcquireOrder(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		h.host.set(func(f *fakeHost) { f.calls = nil })
		_, ref := h.acquire("k1")
		want := []string{"store.image", "store.attach", "jailer.make", "egress.admit"}
		if got := h.host.called(); !slices.Equal(got, want) {
			t.Errorf("acquire: got %v, want %v", got, want)
		}
		h.host.set(func(f *fakeHost) { f.calls = nil })
		h.release(ref)
		want = []string{"jail.freeze", "jail.usage", "jail.close", "egress.forget", "store.detach", "store.attached", "jailer.strays"}
		if got := h.host.called(); !slices.Equal(got, want) {
			t.Errorf("release: got %v, want %v", got, want)
		}
	})
}

func TestAcquireRefuses(t *testing.T) {
	tests := []struct {
		name   string
		key    string
		change func(*envelope.Envelope)
		want   fault.Code
		field  string
	}{
		{"bad envelope", "k", func(e *envelope.Envelope) { e.Resources.MemoryBytes = 1 }, fault.InvalidEnvelope, "resources.memory_bytes"},
		{"no key", "", nil, fault.InvalidArgument, "idempotency_key"},
		{"long key", strings.Repeat("k", 256), nil, fault.InvalidArgument, "idempotency_key"},
		{"key with a space", "a b", nil, fault.InvalidArgument, "idempotency_key"},
		{"key that is not ASCII", "k\u00e9", nil, fault.InvalidArgument, "idempotency_key"},
		{"another revision", "k", func(e *envelope.Envelope) { e.RuntimeRevision = "rev-2" }, fault.MissingFeature, "runtime_revision"},
		{"another tenant", "k", func(e *envelope.Envelope) { e.Identity.Tenant = "stranger" }, fault.PermissionDenied, "identity.tenant"},
		{"authority is over", "k", func(e *envelope.Envelope) { e.Identity.AuthorityExpiry = "1999-01-01T00:00:00Z" }, fault.InvalidEnvelope, "identity.authority_expiry"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *harness) {
				h.host.set(func(f *fakeHost) { f.calls = nil })
				env := testEnvelope()
				if tt.change != nil {
					tt.change(&env)
				}
				_, err := h.sup.Acquire(t.Context(), owner, env, tt.key)
				wantCode(t, "acquire", err, tt.want)
				var f *fault.Fault
				if errors.As(err, &f) && f.Field != tt.field {
					t.Errorf("field: got %q, want %q", f.Field, tt.field)
				}
				if calls := h.host.called(); len(calls) != 0 {
					t.Errorf("refused, but called %v", calls)
				}
				h.empty()
				if list, _ := h.sup.List(t.Context(), owner); len(list) != 0 {
					t.Errorf("refused, but journalled %v", list)
				}
				if !strings.Contains(h.log.String(), "lease refused") {
					t.Error("no line about the refusal")
				}
			})
		})
	}
}

func TestAcquirePinnedRevision(t *testing.T) {
	bubble(t, func(_ *testing.T, h *harness) {
		h.acquire("k", func(e *envelope.Envelope) { e.RuntimeRevision = "rev-1" })
	})
}

func TestAcquireBeforeRecover(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		h.stop()
		h.open()
		_, err := h.sup.Acquire(t.Context(), owner, testEnvelope(), "k")
		wantCode(t, "acquire", err, fault.WrongState)
		if err := h.sup.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.run()
	})
}

// TestAcquireWithoutSources: a request for what is not there costs no more
// than its answer.
func TestAcquireWithoutSources(t *testing.T) {
	inputs := func(e *envelope.Envelope) { e.Filesystem.Inputs = []envelope.Input{{Name: "in", Digest: testImage}} }
	tests := []struct {
		at   string
		err  error
		want fault.Code
	}{
		{"store.image", fault.New(fault.UnknownImage, "image_digest", "unknown", "import it"), fault.UnknownImage},
		{"store.image", errors.New("boom"), ""},
		{"store.inputs", fault.New(fault.UnknownInput, "filesystem.inputs[0]", "unknown", "put it"), fault.UnknownInput},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.at, " ", tt.want), func(t *testing.T) {
			bubble(t, func(t *testing.T, h *harness) {
				h.host.failAt(tt.at, tt.err)
				h.room.Store(1) // one write, and the disk is full
				for range 3 {
					_, err := h.sup.Acquire(t.Context(), owner, testEnvelope(inputs), "k")
					if !errors.Is(err, tt.err) || fault.CodeOf(err) != tt.want {
						t.Errorf("got %v", err)
					}
				}
				if h.full.Load() {
					t.Error("refused, but written to the journal")
				}
				h.room.Store(0)
				h.empty()
				h.host.failAt(tt.at, nil)
				if got, _ := h.acquire("k", inputs); got.Replayed || got.Lease.Fencing != 1 {
					t.Errorf("next attempt: %+v", got)
				}
			})
		})
	}
}

// TestAcquireRate: an owner's attempts are bounded, whatever becomes of them,
// and another owner's are its own.
func TestAcquireRate(t *testing.T) {
	bubbleWith(t, func(c *Config) { c.AcquireRate, c.AcquireBurst = 2, 3 }, func(t *testing.T, h *harness) {
		bad := testEnvelope(func(e *envelope.Envelope) { e.Resources.MemoryBytes = 1 })
		try := func(want ...fault.Code) {
			t.Helper()
			for _, code := range want {
				_, err := h.sup.Acquire(t.Context(), owner, bad, "k")
				wantCode(t, "acquire", err, code)
			}
		}
		const no, full = fault.InvalidEnvelope, fault.HostFull
		try(no, no, no, full, full)
		if _, err := h.sup.Acquire(t.Context(), Caller{UID: 1001}, testEnvelope(), "k"); err != nil {
			t.Error(err)
		}
		until(500 * time.Millisecond)
		try(no, full)
		until(time.Hour)
		try(no, no, no, full)
	})
}

func TestAcquireRateForgets(t *testing.T) {
	r, now := newAcquireRate(1, 1), time.Unix(0, 0)
	for owner := range uint32(10 * mostRated) {
		if err := r.take(owner, now); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Millisecond)
	}
	if n := len(r.full); n > mostRated+1 {
		t.Errorf("%d owners are remembered", n)
	}
}

// TestRefusalLine: what was not checked does not fill the log.
func TestRefusalLine(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		worst := strings.Repeat("\x01", 1<<16)
		_, err := h.sup.Acquire(t.Context(), owner, testEnvelope(func(e *envelope.Envelope) {
			e.Identity.Tenant, e.Identity.RunID = worst, worst
			e.Artifacts.Allow = slices.Repeat([]string{worst}, 100)
		}), "k")
		wantCode(t, "acquire", err, fault.InvalidEnvelope)
		line := h.log.String()
		if n := len(line); n > 4*mostLogged*len(`\x01`) {
			t.Errorf("the line has %d bytes", n)
		}
		for _, want := range []string{"lease refused", "code=invalid_envelope", "field=", "findings="} {
			if !strings.Contains(line, want) {
				t.Errorf("%q is not in %.300q", want, line)
			}
		}
		if strings.Contains(line, "findings=1 ") {
			t.Error("joined findings count as one")
		}
	})
}

// TestAcquireUnwinds lets every port call of an Acquire fail in turn.
func TestAcquireUnwinds(t *testing.T) {
	boom := errors.New("boom")
	full := fmt.Errorf("write: %w", syscall.ENOSPC)
	tests := []struct {
		at   string
		err  error
		want fault.Code
	}{
		{"store.attach", fault.New(fault.UnknownInput, "filesystem.inputs[0]", "unknown", "put it"), fault.UnknownInput},
		{"store.attach", full, fault.DiskFull},
		{"jailer.make", boom, ""},
		{"jailer.make", full, fault.DiskFull},
		{"egress.admit", boom, ""},
		{"bad check", nil, fault.ReadBackMismatch},
		{"no checks", nil, fault.ReadBackMismatch},
		{"caller gone", nil, ""},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.at, " ", tt.want), func(t *testing.T) {
			bubble(t, func(t *testing.T, h *harness) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				switch tt.at {
				case "bad check":
					h.host.set(func(f *fakeHost) { f.badCheck = true })
				case "no checks":
					h.host.set(func(f *fakeHost) { f.noChecks = true })
				case "caller gone":
					h.host.set(func(f *fakeHost) { f.making = make(chan struct{}) })
					time.AfterFunc(time.Second, cancel)
				default:
					h.host.failAt(tt.at, tt.err)
				}
				_, err := h.sup.Acquire(ctx, owner, testEnvelope(), "k")
				if err == nil || fault.CodeOf(err) != tt.want {
					t.Errorf("got %v, want code %q", err, tt.want)
				}
				if tt.err != nil && !errors.Is(err, tt.err) {
					t.Errorf("got %v, which hides %v", err, tt.err)
				}
				h.empty()
				list, _ := h.sup.List(t.Context(), owner)
				if len(list) != 1 || list[0].State != Closed {
					t.Fatalf("journal has %+v", list)
				}
				rec := h.record(list[0].ID).Record
				wantCause := "infrastructure"
				if tt.at == "caller gone" {
					wantCause = "cancelled"
				}
				if rec.End.Cause != wantCause || rec.End.Detail == "" || !rec.Cleanup.Clean || !rec.Lease.ActiveAt.IsZero() {
					t.Errorf("record: end %+v, cleanup %+v", rec.End, rec.Cleanup)
				}
				if tt.at == "bad check" && !strings.Contains(rec.End.Detail, "pids.max") {
					t.Errorf("the record does not name the check: %q", rec.End.Detail)
				}

				// The key is free again, and so is the id range.
				h.host.set(func(f *fakeHost) { clear(f.fail); f.badCheck, f.noChecks, f.making = false, false, nil })
				got, ref := h.acquire("k")
				if got.Replayed || got.Lease.Fencing != 2 {
					t.Errorf("second attempt: %+v", got)
				}
				if base := h.release(ref).Record.Lease.IDBase; base != 1<<20 {
					t.Errorf("second attempt has id base %d", base)
				}
			})
		})
	}
}

// TestAcquireUnwindFails: what cannot be undone is quarantined, keeps its id
// range, and is cleaned later.
func TestAcquireUnwindFails(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		h.host.failAt("egress.admit", errors.New("boom"))
		h.host.set(func(f *fakeHost) { f.leftovers = []string{"cgroup x"} })
		if _, err := h.sup.Acquire(t.Context(), owner, testEnvelope(), "k"); err == nil {
			t.Fatal("acquired")
		}
		list, _ := h.sup.List(t.Context(), owner)
		if len(list) != 1 || list[0].State != Quarantined {
			t.Fatalf("journal has %+v", list)
		}
		first := h.record(list[0].ID)
		if first.Record.State != "quarantined" || first.Record.Cleanup.Clean {
			t.Errorf("record %+v", first.Record.Cleanup)
		}
		h.host.failAt("egress.admit", nil)
		_, other := h.acquire("k2")
		if base := h.jailOf(other.ID).plan.IDs.Base; base == first.Record.Lease.IDBase {
			t.Error("a quarantined id range was given away")
		}
		h.host.set(func(f *fakeHost) { f.leftovers = nil })
		until(10 * time.Second)
		second := h.record(list[0].ID)
		if second.Record.State != "closed" || second.Record.Supersedes != first.Head || second.Record.Cleanup.Attempts < 2 {
			t.Errorf("later record: %s, supersedes %q, attempts %d", second.Record.State, second.Record.Supersedes, second.Record.Cleanup.Attempts)
		}
		h.release(other)
		h.empty()
		h.verifyChain()
	})
}

// TestAcquireJournalFull lets the disk fill up at each commit of an Acquire.
func TestAcquireJournalFull(t *testing.T) {
	for commit := int64(1); commit <= 4; commit++ {
		t.Run(fmt.Sprint(commit), func(t *testing.T) {
			bubble(t, func(t *testing.T, h *harness) {
				h.room.Store(commit)
				got, err := h.sup.Acquire(t.Context(), owner, testEnvelope(), "k")
				if commit == 4 { // there are three
					if err != nil {
						t.Errorf("got %v", err)
					}
					h.room.Store(0)
					return
				}
				wantCode(t, "acquire", err, fault.DiskFull)
				if got.Secret != "" || len(h.host.remains()) != 0 {
					t.Errorf("got %+v, left on the host: %v", got, h.host.remains())
				}
				if wantLeft := map[bool]int{true: 0, false: 1}[commit == 1]; h.sup.Count() != wantLeft {
					t.Errorf("%d leases wait for their record", h.sup.Count())
				}
				h.full.Store(false)
				until(time.Minute)
				h.empty()
				list, _ := h.sup.List(t.Context(), owner)
				if commit > 1 && (len(list) != 1 || !strings.HasPrefix(list[0].End.Detail, "disk_full") || list[0].State != Closed) {
					t.Errorf("list %+v", list)
				}
				if again, _ := h.acquire("k"); again.Replayed {
					t.Error("a failed attempt kept the key")
				}
			})
		})
	}
}

func TestIdempotency(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		first, ref := h.acquire("k")
		again, _ := h.acquire("k")
		if !again.Replayed || again.Secret != "" || again.Lease.ID != first.Lease.ID || len(again.ReadBack) != 1 {
			t.Errorf("replay: %+v", again)
		}
		other := func(e *envelope.Envelope) { e.Resources.CPUMilli = 2000 }
		_, err := h.sup.Acquire(t.Context(), owner, testEnvelope(other), "k")
		wantCode(t, "other envelope", err, fault.Conflict)

		// Keys belong to owner and tenant.
		stranger := Caller{UID: 1001}
		got, err := h.sup.Acquire(t.Context(), stranger, testEnvelope(), "k")
		if err != nil || got.Replayed {
			t.Errorf("another owner: %+v, %v", got, err)
		}
		tenant := func(e *envelope.Envelope) { e.Identity.Tenant = "acme2" }
		if got, _ := h.acquire("k", tenant); got.Replayed {
			t.Error("another tenant: replayed")
		}

		h.release(ref)
		_, err = h.sup.Acquire(t.Context(), owner, testEnvelope(), "k")
		wantCode(t, "closed", err, fault.WrongState)
		_, err = h.sup.Acquire(t.Context(), owner, testEnvelope(other), "k")
		wantCode(t, "closed, other envelope", err, fault.Conflict)

		// All of it outlives the daemon.
		h.stop()
		h.start()
		_, err = h.sup.Acquire(t.Context(), owner, testEnvelope(), "k")
		wantCode(t, "closed, after a restart", err, fault.WrongState)
	})
}

func TestIdempotencyConcurrent(t *testing.T) {
	for _, broken := range []bool{false, true} {
		t.Run(fmt.Sprint("broken ", broken), func(t *testing.T) {
			bubble(t, func(t *testing.T, h *harness) {
				gate := make(chan struct{})
				h.host.set(func(f *fakeHost) { f.making = gate })
				if broken {
					h.host.failAt("egress.admit", errors.New("boom"))
				}
				const n = 10
				got, errs := make([]Acquired, n), make([]error, n)
				var wg sync.WaitGroup
				for i := range n {
					wg.Go(func() { got[i], errs[i] = h.sup.Acquire(t.Context(), owner, testEnvelope(), "k") })
				}
				synctest.Wait()
				if c := h.sup.Count(); c != 1 {
					t.Errorf("%d leases for one key", c)
				}
				close(gate)
				wg.Wait()
				secrets, ids := 0, map[string]bool{}
				for i := range n {
					if (errs[i] != nil) != broken {
						t.Errorf("call %d: %v", i, errs[i])
					}
					if got[i].Secret != "" {
						secrets++
					}
					ids[got[i].Lease.ID] = true
				}
				if want := map[bool]int{false: 1, true: 0}[broken]; secrets != want || len(ids) != 1 {
					t.Errorf("%d secrets, %d ids", secrets, len(ids))
				}
			})
		})
	}
}

// TestIdempotencyFirstGivesUp: who waited for an attempt whose caller left is
// told to try again, and can.
func TestIdempotencyFirstGivesUp(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		h.host.set(func(f *fakeHost) { f.making = make(chan struct{}) })
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		errs := make(chan error, 2)
		for _, ctx := range []context.Context{ctx, t.Context()} {
			go func() {
				_, err := h.sup.Acquire(ctx, owner, testEnvelope(), "k")
				errs <- err
			}()
			synctest.Wait()
		}
		cancel()
		a, b := <-errs, <-errs
		if !errors.Is(a, context.Canceled) {
			a, b = b, a
		}
		if !errors.Is(a, context.Canceled) {
			t.Errorf("first: got %v", a)
		}
		wantCode(t, "waiter", b, fault.WrongState)
		h.host.set(func(f *fakeHost) { f.making = nil })
		h.acquire("k")
	})
}

// TestIdempotencyWaiterGivesUp: a second caller's context is its own.
func TestIdempotencyWaiterGivesUp(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		gate := make(chan struct{})
		h.host.set(func(f *fakeHost) { f.making = gate })
		first := make(chan error, 1)
		go func() {
			_, err := h.sup.Acquire(t.Context(), owner, testEnvelope(), "k")
			first <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := h.sup.Acquire(ctx, owner, testEnvelope(), "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("waiter: got %v", err)
		}
		close(gate)
		if err := <-first; err != nil {
			t.Errorf("first: %v", err)
		}
	})
}

func TestAdmissionSeesWhatIsInUse(t *testing.T) {
	bubbleWith(t, func(c *Config) { c.HostImage = func() string { return "sha256:host" } }, func(t *testing.T, h *harness) {
		_, ref := h.acquire("a")
		h.acquire("b", func(e *envelope.Envelope) { e.Identity.Tenant = "acme2" })
		h.release(ref)
		h.acquire("c")
		last := h.admit.seen[len(h.admit.seen)-1]
		if last.Host.Leases != 1 || last.Tenants["acme2"].Leases != 1 || last.Tenants["acme"].Leases != 0 || last.HostImage != "sha256:host" {
			t.Errorf("admission saw %+v", last)
		}
	})
}

func TestIDRanges(t *testing.T) {
	bubbleWith(t, func(c *Config) { c.IDRanges = 2 }, func(t *testing.T, h *harness) {
		_, a := h.acquire("a")
		_, b := h.acquire("b")
		_, err := h.sup.Acquire(t.Context(), owner, testEnvelope(), "c")
		wantCode(t, "third", err, fault.HostFull)
		h.release(a)
		_, c := h.acquire("c")
		if x, y := h.jailOf(b.ID).plan.IDs.Base, h.jailOf(c.ID).plan.IDs.Base; x != 1<<20+65536 || y != 1<<20 {
			t.Errorf("bases %d and %d", x, y)
		}
	})
}
