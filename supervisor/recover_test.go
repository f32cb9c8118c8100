package supervisor

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cordon/internal/fault"
	"cordon/supervisor/evidence"
)

// TestRecoverAfterCrash: kill -9 in the midst of everything, then a new
// daemon on the same host and journal.
func TestRecoverAfterCrash(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, closed := h.acquire("closed")
		h.release(closed)
		got, ref := h.acquire("active")
		h.drain(h.exec(ref, ExecRequest{Argv: []string{"exit", "3"}}))
		h.exec(ref, ExecRequest{Argv: []string{"sleep", "100"}})
		h.artifact("x")
		if _, err := h.export(ref, "result.json", &strings.Builder{}); err != nil {
			t.Fatal(err)
		}
		until(h.sup.cfg.FlushEvery)
		h.host.set(func(f *fakeHost) { f.making = make(chan struct{}) }) // a crash in Make
		go func() { _, _ = h.sup.Acquire(t.Context(), owner, testEnvelope(), "preparing") }()
		synctest.Wait()
		h.crash()
		if len(h.host.remains()) == 0 {
			t.Fatal("the crash left nothing, so that there is nothing to test")
		}
		h.host.set(func(f *fakeHost) {
			f.making = nil
			f.strays["l-stray"], f.attached["l-stray-inputs"], f.strays[closed.ID] = true, true, true
		})

		h.start()
		h.empty()
		rec := h.record(ref.ID).Record
		if rec.State != "closed" || rec.End.Cause != "infrastructure" || rec.End.Detail != restarted {
			t.Errorf("record: %s, %+v", rec.State, rec.End)
		}
		if len(rec.ReadBack) != 1 || rec.Digests.Plan != got.Lease.PlanDigest || len(rec.Network.Destinations) != 1 || len(rec.Gaps) == 0 {
			t.Errorf("record has read-back %v, plan %s, network %+v, gaps %v", rec.ReadBack, rec.Digests.Plan, rec.Network, rec.Gaps)
		}
		if len(rec.Execs) != 2 || rec.Execs[0].End.ExitCode != 3 || rec.Execs[1].End.Cause != "infrastructure" || rec.Execs[1].End.Detail != restarted {
			t.Errorf("commands %+v", rec.Execs)
		}
		if len(rec.Exports) != 1 || !rec.Exports[0].Complete {
			t.Errorf("exports %+v", rec.Exports)
		}
		if out := h.log.String(); !strings.Contains(out, "l-stray") || !strings.Contains(out, "l-stray-inputs") {
			t.Error("the log does not name the strays")
		}
		list, _ := h.sup.List(t.Context(), owner)
		if len(list) != 3 || list[0].State != Closed || !list[0].ExpiresAt.Equal(list[0].MaxExpiresAt) {
			t.Errorf("list %+v", list)
		}
		h.verifyChain()

		// The secret still opens the closed lease; keys and counters go on.
		if again := h.release(ref); again.Record.Lease.ID != ref.ID {
			t.Errorf("release: %+v", again.Record.Lease)
		}
		_, err := h.sup.Acquire(t.Context(), owner, testEnvelope(), "active")
		wantCode(t, "key of an ended lease", err, fault.WrongState)
		next, _ := h.acquire("preparing")
		if next.Replayed || next.Lease.Fencing != 4 {
			t.Errorf("key of a lease that never was: %+v", next.Lease)
		}
	})
}

// TestRecoverStates crashes in every state that the journal can hold.
func TestRecoverStates(t *testing.T) {
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	states := []struct {
		name string
		edit func(*entry)
		want evidence.End
	}{
		{"requested", func(*entry) {}, evidence.End{Cause: "infrastructure", Detail: restarted}},
		{"preparing", func(e *entry) { e.State, e.PlanDigest = Preparing, "sha256:p" }, evidence.End{Cause: "infrastructure", Detail: restarted}},
		{"active", func(e *entry) { e.State, e.ActiveAt, e.CgroupID = Active, now, 5 }, evidence.End{Cause: "infrastructure", Detail: restarted}},
		{"draining", func(e *entry) {
			e.State, e.ActiveAt, e.EndedAt, e.End = Draining, now, now, End{Cause: CauseReleased}
		}, evidence.End{Cause: "released", Detail: restarted + " while the lease was ending"}},
	}
	for _, tt := range states {
		for _, sticky := range []bool{false, true} {
			t.Run(fmt.Sprint(tt.name, " sticky ", sticky), func(t *testing.T) {
				bubble(t, func(t *testing.T, h *harness) {
					h.stop()
					h.open()
					e := journalled(t, h, "l-old")
					if err := h.sup.journal.change(e.Fencing, tt.edit); err != nil {
						t.Fatal(err)
					}
					h.host.set(func(f *fakeHost) {
						f.strays["l-old"], f.attached["l-old"], f.egress[5] = true, true, time.Time{}
						if sticky {
							f.leftovers = []string{"mount x"}
						}
					})
					if tt.name != "active" {
						h.host.set(func(f *fakeHost) { delete(f.egress, 5) })
					}
					if err := h.sup.Recover(t.Context()); err != nil {
						t.Fatal(err)
					}
					h.run()
					rec := h.record("l-old").Record
					if rec.End != tt.want {
						t.Errorf("end %+v, want %+v", rec.End, tt.want)
					}
					if !sticky {
						h.empty()
						return
					}
					if rec.State != "quarantined" || !slices.Contains(rec.Cleanup.Items[0].Leftovers, "mount x") {
						t.Errorf("record: %s, %+v", rec.State, rec.Cleanup)
					}
					// And again: a quarantined lease outlives daemons.
					h.crash()
					h.start()
					if n := h.sup.Count(); n != 1 {
						t.Errorf("%d leases", n)
					}
					h.host.set(func(f *fakeHost) { f.leftovers = nil })
					until(time.Minute)
					h.empty()
					last := h.record("l-old").Record
					if last.State != "closed" || last.End != tt.want {
						t.Errorf("later record: %s, %+v", last.State, last.End)
					}
					h.verifyChain()
				})
			})
		}
	}
}

// journalled writes a lease as an Acquire would, and stops there.
func journalled(t *testing.T, h *harness, id string) entry {
	t.Helper()
	env, digest, err := h.sup.checkEnvelope(testEnvelope())
	if err != nil {
		t.Fatal(err)
	}
	e := entry{
		ID: id, State: Requested, OwnerUID: owner.UID, Key: "k-" + id, Envelope: env, EnvelopeDigest: digest,
		IDBase: 1 << 20, SecretHash: hashSecret("s"), RequestedAt: time.Now(),
	}
	if err := h.sup.journal.request(&e); err != nil {
		t.Fatal(err)
	}
	return e
}

func TestRecoverKeepsIDRanges(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		h.stop()
		h.open()
		journalled(t, h, "l-old")
		h.host.set(func(f *fakeHost) { f.leftovers = []string{"process 7"} })
		if err := h.sup.Recover(t.Context()); err != nil {
			t.Fatal(err)
		}
		h.run()
		_, ref := h.acquire("k")
		if base := h.jailOf(ref.ID).plan.IDs.Base; base == 1<<20 {
			t.Error("a quarantined lease's id range was given away")
		}
	})
}

func TestRecoverFails(t *testing.T) {
	for _, at := range []string{"jailer.strays", "store.attached"} {
		bubble(t, func(t *testing.T, h *harness) {
			h.stop()
			h.open()
			boom := errors.New("boom")
			h.host.failAt(at, boom)
			if err := h.sup.Recover(t.Context()); !errors.Is(err, boom) {
				t.Errorf("%s: got %v", at, err)
			}
			_, err := h.sup.Acquire(t.Context(), owner, testEnvelope(), "k")
			wantCode(t, "acquire", err, fault.WrongState)
			h.host.failAt(at, nil)
			if err := h.sup.Recover(t.Context()); err != nil {
				t.Errorf("again: %v", err)
			}
			if err := h.sup.Recover(t.Context()); err == nil {
				t.Error("recovered twice")
			}
			h.run()
		})
	}
}

func TestRecoverManyAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		for i := range 3 * sweepsAtOnce {
			h.acquire(fmt.Sprint("k", i))
		}
		h.crash()
		h.start()
		h.empty()
		if n := h.verifyChain().Link.Sequence; n != 3*sweepsAtOnce {
			t.Errorf("%d records", n)
		}
	})
}
