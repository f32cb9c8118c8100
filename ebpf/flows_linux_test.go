package ebpf

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"cordon/supervisor"
)

func TestFlowsNameDestinations(t *testing.T) {
	h := newHost(t)
	f, lease, id := h.admitted(t)
	p := startProbe(t, lease)
	start := time.Now()
	p.do(t, "socket tcp4", "connect 127.0.0.1:80")
	p.do(t, "connect 127.0.0.1:80")
	p.do(t, "socket tcp6", "connect [::ffff:127.0.0.2]:81")
	p.do(t, "socket udp6", "sendto [::1]:53")
	p.do(t, "socket raw4")
	p.do(t, "socket mptcp6")
	p.do(t, "socket ping4")
	p.do(t, "socket udp4", "bind 10.1.2.3:4")
	got, err := f.Flows(id)
	if err != nil {
		t.Fatal(err)
	}
	row := func(hook, address string, port uint16, proto string, count uint64) supervisor.Destination {
		return supervisor.Destination{
			Hook: hook, Address: address, Port: port, Proto: proto,
			Verdict: "deny", Errno: "EPERM", Count: count,
		}
	}
	want := supervisor.Flows{
		Denied: 8,
		Destinations: []supervisor.Destination{
			row("connect4", "127.0.0.1", 80, "tcp", 2),
			row("connect6", "::ffff:127.0.0.2", 81, "tcp", 1),
			row("sendmsg6", "::1", 53, "udp", 1),
			row("sock_create", "", 0, "raw-icmp", 1),
			row("sock_create", "", 0, "mptcp", 1),
			row("sock_create", "", 0, "icmp", 1),
			row("bind4", "10.1.2.3", 4, "udp", 1),
		},
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(supervisor.Destination{}, "First", "Last")); diff != "" {
		t.Errorf("flows (-want +got):\n%s", diff)
	}
	for _, d := range got.Destinations {
		if d.First.Before(start.Add(-time.Second)) || d.Last.After(time.Now().Add(time.Second)) || d.Last.Before(d.First) {
			t.Errorf("%s: seen from %v to %v", d.Hook, d.First, d.Last)
		}
	}
}

func TestFloodIsCountedExactly(t *testing.T) {
	// Enough for the processes to overlap: a plain addition would lose some.
	const processes, each = 3, 20000
	h := newHost(t)
	f, lease, id := h.admitted(t)
	probes := make([]*remote, processes)
	for i := range probes {
		probes[i] = startProbe(t, lease)
		if got := probes[i].do(t, "socket tcp4"); got != "ok" {
			t.Fatal(got)
		}
		if _, err := fmt.Fprintf(probes[i].in, "repeat %d connect 127.0.0.1:9\n", each); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range probes {
		if !p.out.Scan() || p.out.Text() != fmt.Sprint("ok ", each) {
			t.Fatalf("flood: %q", p.out.Text())
		}
	}
	flows, err := f.Flows(id)
	if err != nil {
		t.Fatal(err)
	}
	c, err := f.Counters(id)
	if err != nil {
		t.Fatal(err)
	}
	const total = processes * each
	if c.Denied["connect4"] != total || flows.Denied != total {
		t.Errorf("denied: programs %d, flows %d, want %d", c.Denied["connect4"], flows.Denied, total)
	}
	if len(flows.Destinations) != 1 {
		t.Fatalf("destinations: %+v", flows.Destinations)
	}
	listed := flows.Destinations[0].Count
	if listed+c.Suppressed+c.Lost != total || listed+flows.Unlisted != total {
		t.Errorf("listed %d, suppressed %d, lost %d, unlisted %d: want them to make %d",
			listed, c.Suppressed, c.Lost, flows.Unlisted, total)
	}
	// The bucket's 128, and 100 a second while the flood lasted.
	if listed < 128 || listed > total/2 {
		t.Errorf("listed %d of %d: the limit did not hold", listed, total)
	}
	if since := time.Since(c.LastDenied); since < -time.Second || since > time.Minute {
		t.Errorf("last denied %v ago", since)
	}
}
