package ebpf

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"cordon/internal/fault"
)

func connectTo(cgroup, generation uint64, port uint16) programsEvent {
	return programsEvent{
		Cgroup: cgroup, Generation: generation, Hook: hookConnect4,
		Family: unix.AF_INET, Type: unix.SOCK_STREAM, Protocol: unix.IPPROTO_TCP,
		Port: port, Addr: [16]uint8{127, 0, 0, 1},
	}
}

func TestLedgerIsBounded(t *testing.T) {
	l := newLedger()
	l.open(7, 1)
	now := time.Unix(1000, 0)
	for port := range uint16(1000) {
		l.add(connectTo(7, 1, port), now)
	}
	l.add(connectTo(7, 1, 3), now.Add(time.Second))
	got := l.flows(7, 1500)
	if len(got.Destinations) != maxDestinations {
		t.Errorf("destinations: got %d, want %d", len(got.Destinations), maxDestinations)
	}
	if want := uint64(1500 - maxDestinations - 1); got.Unlisted != want {
		t.Errorf("unlisted: got %d, want %d", got.Unlisted, want)
	}
	for _, d := range got.Destinations {
		if d.Port == 3 && (d.Count != 2 || !d.First.Equal(now) || !d.Last.Equal(now.Add(time.Second))) {
			t.Errorf("destination seen twice: %+v", d)
		}
	}
}

func TestLedgerKeepsLeasesApart(t *testing.T) {
	l := newLedger()
	l.open(7, 2)
	now := time.Unix(1000, 0)
	l.add(connectTo(7, 1, 80), now) // of an earlier lease with the same id
	l.add(connectTo(8, 2, 80), now) // of no lease
	if got := l.flows(7, 0); len(got.Destinations) != 0 {
		t.Errorf("events of others: %+v", got.Destinations)
	}
	l.add(connectTo(7, 2, 80), now)
	l.close(7)
	if got := l.flows(7, 5); got.Denied != 5 || got.Unlisted != 5 || len(got.Destinations) != 0 {
		t.Errorf("after close: %+v", got)
	}
}

func TestProtoNames(t *testing.T) {
	tests := []struct {
		typ   uint8
		proto uint16
		want  string
	}{
		{unix.SOCK_STREAM, unix.IPPROTO_TCP, "tcp"},
		{unix.SOCK_DGRAM, unix.IPPROTO_UDP, "udp"},
		{unix.SOCK_STREAM, unix.IPPROTO_MPTCP, "mptcp"},
		{unix.SOCK_STREAM, unix.IPPROTO_SCTP, "sctp"},
		{unix.SOCK_DGRAM, unix.IPPROTO_ICMP, "icmp"},
		{unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6, "icmp6"},
		{unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE, "ip-136"},
		{unix.SOCK_RAW, unix.IPPROTO_RAW, "raw-ip-255"},
	}
	for _, tt := range tests {
		if got := proto(programsEvent{Type: tt.typ, Protocol: tt.proto}); got != tt.want {
			t.Errorf("type %d protocol %d: got %s, want %s", tt.typ, tt.proto, got, tt.want)
		}
	}
}

// TestDrainsBeginAfterTheRequest holds drains to its one promise with a reader
// that, like the real one, merges requests.
func TestDrainsBeginAfterTheRequest(t *testing.T) {
	requests := make(chan struct{}, 1)
	d := &drains{flush: func() error {
		select {
		case requests <- struct{}{}:
		default:
		}
		return nil
	}}
	var mu sync.Mutex
	written, read := 0, 0
	go func() {
		for range requests {
			mu.Lock()
			read = written
			mu.Unlock()
			d.finish()
		}
	}()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				mu.Lock()
				written++
				mine := written
				mu.Unlock()
				<-d.start()
				mu.Lock()
				if read < mine {
					t.Errorf("wrote %d, drained up to %d", mine, read)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	close(requests)
}

func TestMissingFeatureIsNamed(t *testing.T) {
	have := []Feature{{"map hash", nil}, {"sock_addr FnRingbufReserve", ebpf.ErrNotSupported}}
	inconclusive := []Feature{{"cgroup_skb", unix.EPERM}}
	tests := []struct {
		name string
		err  error
		want string
	}{
		{"feature", requireFeatures(have), "ebpf.sock_addr FnRingbufReserve"},
		{"probe that cannot tell", requireFeatures(inconclusive), "ebpf.cgroup_skb"},
		{"hook", hooks()[hookSendmsg6].missing("attach", ebpf.ErrNotSupported), "ebpf.sendmsg6"},
		{"attach type", hooks()[hookBind6].missing("attach", unix.EINVAL), "ebpf.bind6"},
		{"no link to pin", hooks()[hookBind4].missing("pin", ebpf.ErrNotSupported), "ebpf.bind4"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var f *fault.Fault
			if !errors.As(tt.err, &f) || f.Code != fault.MissingFeature || f.Field != tt.want {
				t.Fatalf("got %v", tt.err)
			}
			if !strings.Contains(f.Remedy, MinKernel) {
				t.Errorf("remedy %q does not name the kernel", f.Remedy)
			}
		})
	}
	if err := hooks()[0].missing("attach", unix.EPERM); fault.CodeOf(err) != "" || !errors.Is(err, unix.EPERM) {
		t.Errorf("any other error: %v", err)
	}
}

// TestLayoutVersion fails when a struct shared with pinned maps changes:
// raise layoutVersion, then change the text.
func TestLayoutVersion(t *testing.T) {
	got := fmt.Sprintf("version %d", layoutVersion)
	for _, v := range []any{programsLease{}, programsCounters{}, programsHeader{}, programsEvent{}} {
		typ := reflect.TypeOf(v)
		got += "\n" + typ.Name()
		for _, f := range reflect.VisibleFields(typ) {
			if f.Name != "_" {
				got += fmt.Sprintf(" %s %v @%d", f.Name, f.Type, f.Offset)
			}
		}
	}
	const want = `version 1
programsLease Generation uint64 @0 NotAfter uint64 @8 State uint32 @16 Reserved uint32 @20
programsCounters Denied [8]uint64 @0 Suppressed uint64 @64 Lost uint64 @72 LastDenied uint64 @80 Bucket uint64 @88 EgressPackets uint64 @96 EgressBytes uint64 @104 IngressPackets uint64 @112 IngressBytes uint64 @120
programsHeader Version uint64 @0 Parent uint64 @8 Level uint64 @16
programsEvent Cgroup uint64 @0 Generation uint64 @8 BootNs uint64 @16 Pid uint32 @24 Protocol uint16 @28 Port uint16 @30 Hook uint8 @32 Family uint8 @33 Type uint8 @34 Reserved [5]uint8 @35 Addr [16]uint8 @40 Comm [16]uint8 @56`
	if got != want {
		t.Errorf("layout:\n%s\nwant:\n%s", got, want)
	}
}

func TestBootClock(t *testing.T) {
	wall := time.Unix(5000, 0)
	c := bootClock{wall: wall, boot: uint64(100 * time.Second)}
	tests := []struct {
		at   time.Time
		want uint64
	}{
		{wall, uint64(100 * time.Second)},
		{wall.Add(time.Minute), uint64(160 * time.Second)},
		{wall.Add(-100 * time.Second), 0},
		{wall.Add(-101 * time.Second), 0},
		{time.Time{}, 0},
	}
	for _, tt := range tests {
		if got := c.toBoot(tt.at); got != tt.want {
			t.Errorf("%v: got %d, want %d", tt.at, got, tt.want)
		}
	}
	if got := c.toWall(uint64(90 * time.Second)); !got.Equal(wall.Add(-10 * time.Second)) {
		t.Errorf("back in time: got %v", got)
	}
}
