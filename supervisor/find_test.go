package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cordon/internal/fault"
)

// TestStrangers: every call on a lease gives everybody but its owner with its
// secret the same answer, whether the lease exists or not.
func TestStrangers(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, alive := h.acquire("a")
		h.exec(alive, ExecRequest{Argv: []string{"sleep", "100"}})
		_, other := h.acquire("b")
		_, closed := h.acquire("c")
		h.release(closed)
		calls := map[string]func(Caller, Ref) error{
			"get":   func(c Caller, r Ref) error { _, err := h.sup.Get(t.Context(), c, r); return err },
			"renew": func(c Caller, r Ref) error { _, err := h.sup.Renew(t.Context(), c, r, time.Hour); return err },
			"exec": func(c Caller, r Ref) error {
				_, err := h.sup.Exec(t.Context(), c, r, ExecRequest{Argv: []string{"a"}})
				return err
			},
			"attach": func(c Caller, r Ref) error { _, err := h.sup.Attach(t.Context(), c, r, "e-1"); return err },
			"export": func(c Caller, r Ref) error {
				_, err := h.sup.Export(t.Context(), c, r, "result.json", func(int64) (io.Writer, error) { return io.Discard, nil })
				return err
			},
			"watch":   func(c Caller, r Ref) error { _, err := h.sup.Watch(t.Context(), c, r, 0); return err },
			"release": func(c Caller, r Ref) error { _, err := h.sup.Release(t.Context(), c, r); return err },
		}
		strangers := []struct {
			name string
			who  Caller
			ref  Ref
		}{
			{"another uid", Caller{UID: 1001}, alive},
			{"root", Caller{UID: 0}, alive},
			{"a group", Caller{UID: 1001, GID: 1000, Groups: []uint32{1000}}, alive},
			{"no secret", owner, Ref{ID: alive.ID}},
			{"wrong secret", owner, Ref{ID: alive.ID, Secret: "0123456789abcdef0123456789abcdef"}},
			{"another lease's secret", owner, Ref{ID: alive.ID, Secret: other.Secret}},
			{"the secret's hash", owner, Ref{ID: alive.ID, Secret: string(hashSecret(alive.Secret))}},
			{"unknown lease", owner, Ref{ID: "l-0000000000000000", Secret: alive.Secret}},
			{"no lease", owner, Ref{}},
			{"closed, another uid", Caller{UID: 1001}, closed},
			{"closed, wrong secret", owner, Ref{ID: closed.ID, Secret: alive.Secret}},
		}
		want := errNoLease().Error()
		for name, call := range calls {
			for _, s := range strangers {
				if err := call(s.who, s.ref); err == nil || err.Error() != want || fault.CodeOf(err) != fault.NotFound {
					t.Errorf("%s by %s: got %v", name, s.name, err)
				}
			}
		}
		if h.state(alive) != Active || h.state(other) != Active {
			t.Error("a stranger changed something")
		}
		// The owner's own calls work, so that the table above means something.
		for _, name := range []string{"get", "renew", "exec", "attach", "watch", "release"} {
			if err := calls[name](owner, alive); err != nil {
				t.Errorf("%s by the owner: %v", name, err)
			}
		}
	})
}

func TestRecordAccess(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("a")
		_, err := h.sup.Record(t.Context(), owner, ref.ID)
		wantCode(t, "before the end", err, fault.WrongState)
		h.release(ref)
		for name, tt := range map[string]struct {
			who  Caller
			id   string
			want fault.Code
		}{
			"owner":         {owner, ref.ID, ""},
			"root":          {Caller{UID: 0}, ref.ID, ""},
			"another":       {Caller{UID: 1001}, ref.ID, fault.NotFound},
			"unknown":       {owner, "l-1", fault.NotFound},
			"root, unknown": {Caller{UID: 0}, "", fault.NotFound},
		} {
			if _, err := h.sup.Record(t.Context(), tt.who, tt.id); fault.CodeOf(err) != tt.want || (err != nil) != (tt.want != "") {
				t.Errorf("%s: got %v, want %q", name, err, tt.want)
			}
		}
	})
}

func TestList(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		var ids []string
		for _, uid := range []uint32{1000, 999, 1000, 1001, 1000} {
			got, err := h.sup.Acquire(t.Context(), Caller{UID: uid}, testEnvelope(), "k"+string(rune('a'+len(ids))))
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, got.Lease.ID)
			if len(ids) == 3 {
				h.release(Ref{ID: got.Lease.ID, Secret: got.Secret})
			}
		}
		listed := func(uid uint32) (out []string) {
			list, err := h.sup.List(t.Context(), Caller{UID: uid})
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range list {
				out = append(out, l.ID+" "+l.State.String())
			}
			return out
		}
		if diff := cmp.Diff([]string{ids[4] + " active", ids[2] + " closed", ids[0] + " active"}, listed(1000)); diff != "" {
			t.Errorf("owner (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{ids[1] + " active"}, listed(999)); diff != "" {
			t.Errorf("first uid (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{ids[3] + " active"}, listed(1001)); diff != "" {
			t.Errorf("last uid (-want +got):\n%s", diff)
		}
		if got := listed(0); got != nil {
			t.Errorf("root has %v", got)
		}
	})
}

// TestListIsBounded: the newest leases only, and none for a caller who has
// left.
func TestListIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		var ids []string
		for range mostListedLeases + 2 {
			e := entry{ID: fmt.Sprint("l-", len(ids)), OwnerUID: 1000, Key: fmt.Sprint(len(ids)), State: Requested}
			if err := h.sup.journal.request(&e); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, e.ID)
		}
		list, err := h.sup.List(t.Context(), Caller{UID: 1000})
		if err != nil {
			t.Fatal(err)
		}
		if len(list) != mostListedLeases || list[0].ID != ids[len(ids)-1] {
			t.Errorf("%d leases from %s on, want the %d newest", len(list), list[0].ID, mostListedLeases)
		}
		left, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := h.sup.List(left, Caller{UID: 1000}); !errors.Is(err, context.Canceled) {
			t.Errorf("for a caller who has left: %v, want cancelled", err)
		}
	})
}
