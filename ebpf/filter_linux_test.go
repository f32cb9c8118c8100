package ebpf

import (
	"net"
	"strings"
	"testing"
	"time"

	"cordon/internal/fault"
)

// attempts are the ways out that a process may try, all to the test's own
// listeners. Each must succeed outside the filter, or it proves nothing.
func attempts(l listeners) []struct{ name, socket, act, refused string } {
	mapped := func(a string) string { return strings.Replace(a, "127.0.0.1", "[::ffff:127.0.0.1]", 1) }
	any4 := strings.Replace(l.tcp4, "127.0.0.1", "0.0.0.0", 1)
	any6 := strings.Replace(l.tcp6, "[::1]", "[::]", 1)
	return []struct{ name, socket, act, refused string }{
		{"tcp4", "tcp4", "connect " + l.tcp4, "connect EPERM"},
		{"tcp4 any", "tcp4", "connect " + any4, "connect EPERM"},
		{"tcp6", "tcp6", "connect " + l.tcp6, "connect EPERM"},
		{"tcp6 any", "tcp6", "connect " + any6, "connect EPERM"},
		{"tcp mapped", "tcp6", "connect " + mapped(l.tcp4), "connect EPERM"},
		{"udp4 sendto", "udp4", "sendto " + l.udp4, "sendto EPERM"},
		{"udp6 sendto", "udp6", "sendto " + l.udp6, "sendto EPERM"},
		{"udp mapped sendto", "udp6", "sendto " + mapped(l.udp4), "sendto EPERM"},
		{"udp4 connect", "udp4", "connect " + l.udp4, "connect EPERM"},
		{"udp6 connect", "udp6", "connect " + l.udp6, "connect EPERM"},
		{"fast open", "tcp4", "fastopen " + l.tcp4, "fastopen EPERM"},
		{"fast open 6", "tcp6", "fastopen " + l.tcp6, "fastopen EPERM"},
		{"ping4", "ping4", "connect 127.0.0.1:0", "socket EPERM"},
		{"ping6", "ping6", "connect [::1]:0", "socket EPERM"},
		{"raw4", "raw4", "connect 127.0.0.1:0", "socket EPERM"},
		{"raw6", "raw6", "connect [::1]:0", "socket EPERM"},
		{"mptcp4", "mptcp4", "connect " + l.tcp4, "socket EPERM"},
		{"mptcp6", "mptcp6", "connect " + l.tcp6, "socket EPERM"},
		{"udp-lite", "udplite4", "bind 127.0.0.1:0", "socket EPERM"},
	}
}

func TestEveryWayOutIsRefused(t *testing.T) {
	h := newHost(t)
	_, lease, _ := h.admitted(t)
	inside, outside := startProbe(t, lease), startProbe(t, h.outside)
	deeper := lease + "/work/deep"
	mkdir(t, deeper)
	below := startProbe(t, deeper)
	for _, tt := range attempts(listen(t)) {
		t.Run(tt.name, func(t *testing.T) {
			if got := outside.do(t, "socket "+tt.socket, tt.act); !strings.HasPrefix(got, "ok") {
				t.Fatalf("negative control beside the parent: %s", got)
			}
			if got := inside.do(t, "socket "+tt.socket, tt.act); got != tt.refused {
				t.Errorf("in the lease: got %s, want %s", got, tt.refused)
			}
			if got := below.do(t, "socket "+tt.socket, tt.act); got != tt.refused {
				t.Errorf("in a descendant: got %s, want %s", got, tt.refused)
			}
		})
	}
}

func TestBind(t *testing.T) {
	h := newHost(t)
	f, lease, id := h.admitted(t)
	inside := startProbe(t, lease)
	tests := []struct {
		socket, addr string
		want         string
	}{
		{"tcp4", "127.0.0.1:0", "ok"},
		{"tcp4", "127.255.255.254:0", "ok"},
		{"tcp4", "0.0.0.0:0", "ok"},
		{"udp4", "127.0.0.1:0", "ok"},
		{"tcp6", "[::1]:0", "ok"},
		{"tcp6", "[::]:0", "ok"},
		{"tcp6", "[::ffff:127.0.0.1]:0", "ok"},
		{"tcp6", "[::ffff:0.0.0.0]:0", "ok"},
		{"tcp4", "128.0.0.1:0", "bind EPERM"},
		{"tcp4", "126.255.255.255:0", "bind EPERM"},
		{"udp4", "10.0.0.1:53", "bind EPERM"},
		{"tcp4", "255.255.255.255:0", "bind EPERM"},
		{"udp4", "224.0.0.1:0", "bind EPERM"},
		{"tcp6", "[::2]:0", "bind EPERM"},
		{"tcp6", "[::127.0.0.1]:0", "bind EPERM"},
		{"tcp6", "[::ffff:10.0.0.1]:0", "bind EPERM"},
		{"tcp6", "[1::1]:0", "bind EPERM"},
		{"tcp6", "[0:0:1::1]:0", "bind EPERM"},
		{"udp6", "[ff02::1]:0", "bind EPERM"},
	}
	want := uint64(0)
	for _, tt := range tests {
		got := inside.do(t, "socket "+tt.socket, "bind "+tt.addr)
		if strings.Fields(got)[0] != "ok" && got != tt.want || strings.Fields(got)[0] == "ok" && tt.want != "ok" {
			t.Errorf("%s bind %s: got %s, want %s", tt.socket, tt.addr, got, tt.want)
		}
		if tt.want != "ok" {
			want++
		}
	}
	c, err := f.Counters(id)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Denied["bind4"] + c.Denied["bind6"]; got != want {
		t.Errorf("binds counted: got %d, want %d", got, want)
	}
}

func TestNoEntryRefusesEverything(t *testing.T) {
	h := newHost(t)
	f := h.load(t)
	never, _ := h.lease(t, "never")
	for _, group := range []string{never, h.parent} {
		p := startProbe(t, group)
		if got := p.do(t, "socket tcp4"); got != "socket EPERM" {
			t.Errorf("in %s: got %s, want socket EPERM", group, got)
		}
		if got := p.do(t, "socket unix"); got != "ok" {
			t.Errorf("unix socket in %s: got %s, want ok", group, got)
		}
	}
	got, err := f.Unowned()
	if err != nil {
		t.Fatal(err)
	}
	if got["sock_create"] != 2 {
		t.Errorf("unowned sock_create: got %d, want 2", got["sock_create"])
	}
}

func TestForgetRefusesWhatIsOpen(t *testing.T) {
	h := newHost(t)
	f, lease, id := h.admitted(t)
	l := listen(t)
	p := startProbe(t, lease)
	if got := p.do(t, "socket udp4", "bind 127.0.0.1:0"); !strings.HasPrefix(got, "ok") {
		t.Fatal(got)
	}
	if got := p.do(t, "sendto "+l.udp4); got != "sendto EPERM" {
		t.Fatal(got)
	}
	flows, err := f.Forget(id)
	if err != nil {
		t.Fatal(err)
	}
	if flows.Denied != 1 {
		t.Errorf("denied at the end: got %d, want 1", flows.Denied)
	}
	for _, act := range []string{"sendto " + l.udp4, "connect " + l.udp4, "bind 127.0.0.1:0"} {
		if got, want := p.do(t, act), strings.Fields(act)[0]+" EPERM"; got != want {
			t.Errorf("after Forget: got %s, want %s", got, want)
		}
	}
	if ids, err := f.Entries(); err != nil || len(ids) != 0 {
		t.Errorf("entries after Forget: %v, %v", ids, err)
	}
	unowned, err := f.Unowned()
	if err != nil {
		t.Fatal(err)
	}
	if got := unowned["sendmsg4"] + unowned["connect4"] + unowned["bind4"]; got != 3 {
		t.Errorf("unowned after Forget: got %d, want 3", got)
	}
	if _, err := f.Flows(id); fault.CodeOf(err) != fault.NotFound {
		t.Errorf("flows of a forgotten lease: %v", err)
	}
}

func TestDeadline(t *testing.T) {
	h := newHost(t)
	f := h.load(t)
	lease, id := h.lease(t, "a")
	p := startProbe(t, lease)
	steps := []struct {
		notAfter time.Time
		want     string
		denied   uint64
	}{
		{time.Now().Add(-time.Second), "socket EPERM", 1},
		{time.Now().Add(time.Hour), "ok", 1}, // moved on, the count kept
		{time.Time{}, "socket EPERM", 2},
	}
	for i, s := range steps {
		if err := f.Admit(id, s.notAfter); err != nil {
			t.Fatal(err)
		}
		if got := p.do(t, "socket tcp4"); got != s.want {
			t.Errorf("step %d: got %s, want %s", i, got, s.want)
		}
		flows, err := f.Flows(id)
		if err != nil {
			t.Fatal(err)
		}
		if flows.Denied != s.denied {
			t.Errorf("step %d: denied %d, want %d", i, flows.Denied, s.denied)
		}
	}
	// An entry is in force only when it says so.
	var entry programsLease
	if err := f.objs.Leases.Lookup(id, &entry); err != nil {
		t.Fatal(err)
	}
	entry.State, entry.NotAfter = 0, 1<<63
	if err := f.objs.Leases.Put(id, entry); err != nil {
		t.Fatal(err)
	}
	if got := p.do(t, "socket tcp4"); got != "socket EPERM" {
		t.Errorf("state zero: got %s, want socket EPERM", got)
	}
	// The kernel ends it by itself, with nobody writing.
	if err := f.Admit(id, time.Now().Add(50*time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(waitLimit)
	for p.do(t, "socket tcp4") == "ok" {
		if time.Now().After(deadline) {
			t.Fatal("entry still in force long after its deadline")
		}
	}
}

func TestLoopbackReachesAListenerInside(t *testing.T) {
	h := newHost(t)
	f, lease, id := h.admitted(t)
	p := startProbe(t, lease)
	answer := p.do(t, "socket tcp4", "bind 127.0.0.1:0")
	port, ok := strings.CutPrefix(answer, "ok ")
	if !ok {
		t.Fatal(answer)
	}
	if got := p.do(t, "serve"); got != "ok" {
		t.Fatal(got)
	}
	conn, err := net.DialTimeout("tcp4", "127.0.0.1:"+port, waitLimit)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(waitLimit)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte{'y'}); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1)
	if n, err := conn.Read(buf); n != 1 || buf[0] != 'y' {
		t.Fatalf("echo: %d bytes, %v", n, err)
	}
	c, err := f.Counters(id)
	if err != nil {
		t.Fatal(err)
	}
	if c.IngressPackets == 0 || c.IngressBytes < 40 || c.EgressPackets == 0 || c.EgressBytes < 40 {
		t.Errorf("packets not counted: %+v", c)
	}
	if c.Denied["skb_egress"] != 0 {
		t.Errorf("packets over lo dropped: %d", c.Denied["skb_egress"])
	}
}

func TestMaxLeases(t *testing.T) {
	h := newHost(t)
	f := h.load(t)
	later := time.Now().Add(time.Hour)
	for i := range uint64(8) {
		if err := f.Admit(1000+i, later); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Admit(2000, later); fault.CodeOf(err) != fault.HostFull {
		t.Errorf("ninth lease of eight: %v", err)
	}
	if err := f.Admit(1000, later); err != nil {
		t.Errorf("renew when full: %v", err)
	}
	if err := f.Admit(0, later); fault.CodeOf(err) != fault.InvalidArgument {
		t.Errorf("cgroup 0: %v", err)
	}
	ids, err := f.Entries()
	if err != nil || len(ids) != 8 {
		t.Errorf("entries: %v, %v", ids, err)
	}
}
