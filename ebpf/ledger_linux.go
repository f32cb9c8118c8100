package ebpf

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"cordon/supervisor"
)

// maxDestinations bounds what one lease can make this process remember.
const maxDestinations = 64

// ledger gathers denied attempts by lease and destination. It is safe for
// concurrent use.
type ledger struct {
	mu     sync.Mutex
	leases map[uint64]*account
}

type account struct {
	generation   uint64
	destinations map[destination]*tally
}

type destination struct {
	hook    uint8
	address string
	port    uint16
	proto   string
}

type tally struct {
	count       uint64
	first, last time.Time
}

func newLedger() *ledger { return &ledger{leases: make(map[uint64]*account)} }

// open begins the account of a lease; events of other generations of the same
// cgroup id are not its own.
func (l *ledger) open(id, generation uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leases[id] = &account{generation: generation, destinations: make(map[destination]*tally)}
}

func (l *ledger) close(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.leases, id)
}

func (l *ledger) add(ev programsEvent, at time.Time) {
	key := destination{hook: ev.Hook, address: address(ev), port: ev.Port, proto: proto(ev)}
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.leases[ev.Cgroup]
	if a == nil || a.generation != ev.Generation {
		return
	}
	t := a.destinations[key]
	if t == nil {
		if len(a.destinations) == maxDestinations {
			return
		}
		t = &tally{first: at}
		a.destinations[key] = t
	}
	t.count++
	t.last = at
}

// flows is the account of a lease whose programs counted denied attempts.
// What is not in a destination is unlisted, whether it left no event or came
// after the list was full.
func (l *ledger) flows(id, denied uint64) supervisor.Flows {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := supervisor.Flows{Denied: denied, Destinations: []supervisor.Destination{}, Unlisted: denied}
	a := l.leases[id]
	if a == nil {
		return out
	}
	for k, t := range a.destinations {
		out.Destinations = append(out.Destinations, k.report(t))
		out.Unlisted -= min(t.count, out.Unlisted)
	}
	slices.SortFunc(out.Destinations, func(a, b supervisor.Destination) int {
		return cmp.Or(a.First.Compare(b.First), cmp.Compare(a.Hook, b.Hook),
			cmp.Compare(a.Address, b.Address), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Proto, b.Proto))
	})
	return out
}

func (d destination) report(t *tally) supervisor.Destination {
	out := supervisor.Destination{
		Hook:    "unknown",
		Address: d.address,
		Port:    d.port,
		Proto:   d.proto,
		Verdict: "deny",
		Errno:   "EPERM",
		Count:   t.count,
		First:   t.first,
		Last:    t.last,
	}
	if d.hook < deniedHooks {
		out.Hook = hooks()[d.hook].name
	}
	if d.hook == hookSkbEgress {
		// A dropped packet is an error to who sent it only with UDP.
		out.Errno = ""
	}
	return out
}

// address is empty where the attempt has none, as with a socket.
func address(ev programsEvent) string {
	if ev.Hook == hookSockCreate {
		return ""
	}
	if ev.Family == syscall.AF_INET {
		return netip.AddrFrom4([4]byte(ev.Addr[:4])).String()
	}
	return netip.AddrFrom16(ev.Addr).String()
}

const (
	protoICMP  = 1
	protoMPTCP = 262
)

func proto(ev programsEvent) string {
	var name string
	switch ev.Protocol {
	case protoICMP:
		name = "icmp"
	case syscall.IPPROTO_TCP:
		name = "tcp"
	case syscall.IPPROTO_UDP:
		name = "udp"
	case syscall.IPPROTO_ICMPV6:
		name = "icmp6"
	case syscall.IPPROTO_SCTP:
		name = "sctp"
	case protoMPTCP:
		name = "mptcp"
	default:
		name = fmt.Sprintf("ip-%d", ev.Protocol)
	}
	if ev.Type == syscall.SOCK_RAW {
		return "raw-" + name
	}
	return name
}
