package ebpf

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// attachment is one pinned link as the kernel describes it.
type attachment struct {
	link    link.ID
	program ebpf.ProgramID
}

func attachments(t *testing.T, pins string) map[string]attachment {
	t.Helper()
	out := make(map[string]attachment)
	for _, h := range hooks() {
		l, err := link.LoadPinnedLink(filepath.Join(pins, h.pin()), nil)
		if err != nil {
			t.Fatal(err)
		}
		info, err := l.Info()
		if err != nil {
			t.Fatal(err)
		}
		out[h.name] = attachment{info.ID, info.Program}
		l.Close()
	}
	return out
}

// attachedTo counts the links, pinned or not, on a cgroup.
func attachedTo(t *testing.T, cgroupID uint64) int {
	t.Helper()
	n := 0
	it := new(link.Iterator)
	defer it.Close()
	for it.Next() {
		info, err := it.Link.Info()
		if err != nil {
			continue // ended meanwhile, and so not ours
		}
		if cg := info.Cgroup(); cg != nil && cg.CgroupId == cgroupID {
			n++
		}
	}
	if err := it.Err(); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestDenialOutlivesTheLoader(t *testing.T) {
	h := newHost(t)
	first, lease, id := h.admitted(t)
	p := startProbe(t, lease)
	p.do(t, "socket tcp4", "connect 127.0.0.1:1")
	before := attachments(t, h.pins)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatalf("second Close: %v", err)
	}
	if got := p.do(t, "connect 127.0.0.1:2"); got != "connect EPERM" {
		t.Errorf("with no loader: got %s, want connect EPERM", got)
	}
	if got := p.do(t, "socket raw4"); got != "socket EPERM" {
		t.Errorf("with no loader: got %s, want socket EPERM", got)
	}

	second := h.load(t)
	for name, now := range attachments(t, h.pins) {
		if now.link != before[name].link {
			t.Errorf("%s: link was made again, which leaves a gap", name)
		}
		if now.program == before[name].program {
			t.Errorf("%s: still runs the program of the earlier loader", name)
		}
	}
	if got := p.do(t, "socket tcp4", "connect 127.0.0.1:3"); got != "connect EPERM" {
		t.Errorf("taken over: got %s, want connect EPERM", got)
	}
	flows, err := second.Flows(id)
	if err != nil {
		t.Fatal(err)
	}
	if flows.Denied != 4 {
		t.Errorf("denied over both loaders: got %d, want 4", flows.Denied)
	}
	// The first loader had read port 1 or not; what it had not is still there.
	ports := make(map[uint16]bool)
	for _, d := range flows.Destinations {
		ports[d.Port] = true
	}
	if !ports[2] || !ports[3] {
		t.Errorf("destinations of the time without a loader are lost: %+v", flows.Destinations)
	}
	if ids, err := second.Entries(); err != nil || len(ids) != 1 || ids[0] != id {
		t.Errorf("entries taken over: %v, %v", ids, err)
	}
}

func TestSeveredLinksAreMadeAgain(t *testing.T) {
	h := newHost(t)
	first, _, _ := h.admitted(t)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	removeGroups(t, h.parent)
	mkdir(t, h.parent)
	second := h.load(t)
	if err := second.Verify(); err != nil {
		t.Error(err)
	}
	if ids, err := second.Entries(); err != nil || len(ids) != 0 {
		t.Errorf("entries of a removed parent: %v, %v", ids, err)
	}
	lease, id := h.lease(t, "b")
	if err := second.Admit(id, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if got := startProbe(t, lease).do(t, "socket tcp4", "connect 127.0.0.1:1"); got != "connect EPERM" {
		t.Errorf("below the new parent: got %s, want connect EPERM", got)
	}
}

func TestAnotherParentLeavesTheOldOne(t *testing.T) {
	h := newHost(t)
	first, _, _ := h.admitted(t)
	old := first.parent.id
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	h.parent = filepath.Join(h.top, "elsewhere", "leases")
	mkdir(t, h.parent)
	second := h.load(t)
	if n := attachedTo(t, old); n != 0 {
		t.Errorf("links left on the old parent: %d", n)
	}
	if n := attachedTo(t, second.parent.id); n != len(hooks()) {
		t.Errorf("links on the new parent: got %d, want %d", n, len(hooks()))
	}
	if want := first.parent.level + 1; second.parent.level != want {
		t.Errorf("level one deeper: got %d, want %d", second.parent.level, want)
	}
}

func TestForeignLayoutIsNotTakenOver(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(t *testing.T, h *host, f *Filter) Config
	}{
		{"other version", func(t *testing.T, h *host, f *Filter) Config {
			header := headerFor(f.parent)
			header.Version++
			if err := f.objs.Layout.Put(uint32(0), header); err != nil {
				t.Fatal(err)
			}
			return h.config()
		}},
		{"other size", func(_ *testing.T, h *host, _ *Filter) Config {
			cfg := h.config()
			cfg.MaxLeases++
			return cfg
		}},
		{"one map missing", func(t *testing.T, h *host, _ *Filter) Config {
			if err := os.Remove(filepath.Join(h.pins, mapPin(programsMapUnowned))); err != nil {
				t.Fatal(err)
			}
			return h.config()
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := newHost(t)
			first, lease, _ := h.admitted(t)
			p := startProbe(t, lease)
			cfg := tt.spoil(t, h, first)
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			second, err := Load(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer second.Remove()
			if ids, err := second.Entries(); err != nil || len(ids) != 0 {
				t.Errorf("entries: %v, %v", ids, err)
			}
			if got := p.do(t, "socket tcp4"); got != "socket EPERM" {
				t.Errorf("a lease without an entry: got %s, want socket EPERM", got)
			}
			// The new maps are the pinned ones now.
			if err := second.Close(); err != nil {
				t.Fatal(err)
			}
			third, err := Load(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := third.Remove(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestStalePinsAreSwept(t *testing.T) {
	h := newHost(t)
	first := h.load(t)
	stale := filepath.Join(h.pins, "link_of_an_older_version")
	l, err := hooks()[hookConnect4].attachTo(h.parent, &first.objs.programsPrograms)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Pin(stale); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := h.load(t)
	if _, err := os.Stat(stale); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("stale pin: %v", err)
	}
	if n := attachedTo(t, second.parent.id); n != len(hooks()) {
		t.Errorf("links on the parent: got %d, want %d", n, len(hooks()))
	}
}

func TestRemoveLeavesNothing(t *testing.T) {
	h := newHost(t)
	f, lease, _ := h.admitted(t)
	l := listen(t)
	p := startProbe(t, lease)
	if got := p.do(t, "socket tcp4", "connect "+l.tcp4); got != "connect EPERM" {
		t.Fatal(got)
	}
	if err := f.Remove(); err != nil {
		t.Fatal(err)
	}
	if got := p.do(t, "socket tcp4", "connect "+l.tcp4); got != "ok" {
		t.Errorf("after Remove: got %s, want ok", got)
	}
	if n := attachedTo(t, f.parent.id); n != 0 {
		t.Errorf("links left: %d", n)
	}
	left, err := os.ReadDir(h.pins)
	if err != nil || len(left) != 0 {
		t.Errorf("pins left: %v, %v", left, err)
	}
}
