package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"cordon/supervisor/envelope"
)

func watchAll(t *testing.T, w *Watcher) (out []string) {
	t.Helper()
	for {
		e, err := w.Next(t.Context())
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprint(e.Sequence, " ", e.Kind, " ", e.Attributes["state"]+e.Attributes["cause"]+e.Attributes["total"]+e.Attributes["from"]))
	}
}

func TestWatch(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k", func(e *envelope.Envelope) { e.Cleanup.Lease = time.Minute })
		w, err := h.sup.Watch(t.Context(), owner, ref, 0)
		if err != nil {
			t.Fatal(err)
		}
		var live []string
		done := make(chan struct{})
		go func() { defer close(done); live = watchAll(t, w) }()
		h.host.set(func(f *fakeHost) { f.denied = 3 })
		h.drain(h.exec(ref, ExecRequest{Argv: []string{"sleep", "2"}}))
		synctest.Wait()
		if _, err := h.sup.Renew(t.Context(), owner, ref, 5*time.Minute); err != nil {
			t.Fatal(err)
		}
		h.artifact("x")
		if _, err := h.export(ref, "result.json", io.Discard); err != nil {
			t.Fatal(err)
		}
		late, err := h.sup.Watch(t.Context(), owner, ref, 8)
		if err != nil {
			t.Fatal(err)
		}
		h.release(ref)
		<-done
		want := []string{
			"1 state requested", "2 state preparing", "3 state active",
			"4 exec_started ", "5 egress_denied 3", "6 exec_ended exited",
			"7 renewed ", "8 exported ", "9 state draining", "10 state closing", "11 state closed",
		}
		if diff := cmp.Diff(want, live); diff != "" {
			t.Errorf("live (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(want[7:], watchAll(t, late)); diff != "" {
			t.Errorf("from 8 (-want +got):\n%s", diff)
		}
		for from, name := range map[uint64]string{0: "start", 11: "last", 99: "beyond"} {
			past, err := h.sup.Watch(t.Context(), owner, ref, from)
			if err != nil {
				t.Fatal(err)
			}
			want := []string{"11 state closed"}
			if from == 0 {
				want = []string{"10 lost 1", "11 state closed"}
			}
			if diff := cmp.Diff(want, watchAll(t, past)); diff != "" {
				t.Errorf("closed, from the %s (-want +got):\n%s", name, diff)
			}
		}
	})
}

func TestWatchEndsWithItsContext(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		w, err := h.sup.Watch(t.Context(), owner, ref, 1000) // the next, whatever its number
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := w.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		h.release(ref)
		if e, err := w.Next(t.Context()); err != nil || e.Sequence != 4 {
			t.Errorf("got %+v, %v", e, err)
		}
	})
}

// TestEventLogIsBounded: a watcher that falls behind learns what it missed.
func TestEventLogIsBounded(t *testing.T) {
	g := newEventLog()
	w := &Watcher{log: g, next: 1}
	const n = 10 * mostEvents
	for range n {
		g.add("x", nil)
	}
	g.close()
	g.add("after the end", nil)
	if len(g.kept) > mostEvents {
		t.Errorf("%d events are kept", len(g.kept))
	}
	lost, err := w.Next(t.Context())
	if err != nil || lost.Kind != eventLost || lost.Attributes["from"] != "1" {
		t.Fatalf("got %+v, %v", lost, err)
	}
	seen := lost.Sequence
	for {
		e, err := w.Next(t.Context())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || e.Sequence != seen+1 || e.Kind != "x" {
			t.Fatalf("after %d: got %+v, %v", seen, e, err)
		}
		seen = e.Sequence
	}
	if seen != n {
		t.Errorf("the last is %d", seen)
	}
}
