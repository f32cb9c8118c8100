package ebpf

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/ringbuf"

	"cordon/internal/fault"
	"cordon/supervisor"
)

var _ supervisor.Egress = (*Filter)(nil)

// Filter is the loaded and attached program set.
type Filter struct {
	cfg    Config
	parent cgroup
	objs   programsObjects
	links  []link.Link // in the order of hooks

	ledger *ledger
	ring   *ringbuf.Reader
	drains drains
	done   chan struct{} // closed when the reader has ended

	closeOnce sync.Once
	closeErr  error
}

// Counters is what the programs counted for one lease.
type Counters struct {
	Denied map[string]uint64 // by hook; exact
	// Suppressed and Lost are denials that left no event, because the lease
	// had no token or the ring was full.
	Suppressed, Lost             uint64
	LastDenied                   time.Time // zero: never
	EgressPackets, EgressBytes   uint64
	IngressPackets, IngressBytes uint64
}

// Admit writes the lease's entry. For a lease that has one it moves the
// deadline and keeps the counts. A deadline in the past refuses everything.
//
// Calls of Admit and Forget for one lease are the caller's to order.
func (f *Filter) Admit(cgroupID uint64, notAfter time.Time) error {
	if cgroupID == 0 {
		return fault.New(fault.InvalidArgument, "cgroup_id", "zero is no cgroup", "pass the id of the lease's cgroup")
	}
	clock, err := readBootClock()
	if err != nil {
		return err
	}
	entry := programsLease{
		Generation: clock.boot,
		NotAfter:   clock.toBoot(notAfter),
		State:      stateActive,
	}
	var old programsLease
	switch err := f.objs.Leases.Lookup(cgroupID, &old); {
	case err == nil:
		entry.Generation = old.Generation
	case !errors.Is(err, ebpf.ErrKeyNotExist):
		return fmt.Errorf("look up lease %d: %w", cgroupID, err)
	default:
		// A lease is not handed out behind a filter that somebody took away.
		if err := f.Verify(); err != nil {
			return fault.Wrap(err, fault.ReadBackMismatch, "egress filter", "it is not attached as it was loaded", "restart cordond, and find out who removed it")
		}
		// Counters first: an entry without them would refuse what it should
		// count. Any that are there were left by a Forget cut short.
		if err := f.objs.Counted.Put(cgroupID, programsCounters{}); err != nil {
			return f.full(cgroupID, err)
		}
		f.ledger.open(cgroupID, entry.Generation)
	}
	if err := f.objs.Leases.Put(cgroupID, entry); err != nil {
		return f.full(cgroupID, err)
	}
	return nil
}

// adoptEntries opens an account for every entry of an earlier process, so that
// events still in the ring find theirs.
func (f *Filter) adoptEntries() error {
	ids, err := keysOf(f.objs.Leases)
	if err != nil {
		return fmt.Errorf("list entries: %w", err)
	}
	for _, id := range ids {
		var entry programsLease
		if err := f.objs.Leases.Lookup(id, &entry); err != nil {
			return fmt.Errorf("look up lease %d: %w", id, err)
		}
		f.ledger.open(id, entry.Generation)
	}
	f.cfg.Logger.Info("filter taken over", slog.Int("leases", len(ids)))
	return nil
}

func (f *Filter) full(cgroupID uint64, err error) error {
	if errors.Is(err, syscall.E2BIG) {
		return fault.Wrap(err, fault.HostFull, "ebpf.max_leases",
			fmt.Sprintf("the filter holds its limit of %d leases", f.cfg.MaxLeases),
			"release leases or raise the limit")
	}
	return fmt.Errorf("write lease %d: %w", cgroupID, err)
}

// Flows reports what the lease was refused so far. Whatever was refused before
// the call is in the answer.
func (f *Filter) Flows(cgroupID uint64) (supervisor.Flows, error) {
	f.drain()
	var c programsCounters
	// Read after the ring: every event's denial was counted before it.
	if err := f.objs.Counted.Lookup(cgroupID, &c); err != nil {
		return supervisor.Flows{}, lookupError(cgroupID, err)
	}
	return f.ledger.flows(cgroupID, sum(c.Denied)), nil
}

// Forget removes the lease's entry and returns the last count. From then on
// the lease is refused everything and counted under no lease. Call it when the
// lease's processes are gone: what races with it may miss the count.
func (f *Filter) Forget(cgroupID uint64) (supervisor.Flows, error) {
	if err := f.objs.Leases.Delete(cgroupID); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return supervisor.Flows{}, fmt.Errorf("remove lease %d: %w", cgroupID, err)
	}
	f.drain()
	var c programsCounters
	if err := f.objs.Counted.LookupAndDelete(cgroupID, &c); err != nil {
		return supervisor.Flows{}, lookupError(cgroupID, err)
	}
	flows := f.ledger.flows(cgroupID, sum(c.Denied))
	f.ledger.close(cgroupID)
	return flows, nil
}

func lookupError(cgroupID uint64, err error) error {
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return fault.Wrap(err, fault.NotFound, "cgroup_id",
			fmt.Sprintf("no entry for cgroup %d", cgroupID), "admit the lease first")
	}
	return fmt.Errorf("look up counters of %d: %w", cgroupID, err)
}

func sum(v [deniedHooks]uint64) (total uint64) {
	for _, n := range v {
		total += n
	}
	return total
}

// Counters returns the programs' own count for a lease.
func (f *Filter) Counters(cgroupID uint64) (Counters, error) {
	var c programsCounters
	if err := f.objs.Counted.Lookup(cgroupID, &c); err != nil {
		return Counters{}, lookupError(cgroupID, err)
	}
	out := Counters{
		Denied:     byHook(c.Denied),
		Suppressed: c.Suppressed, Lost: c.Lost,
		EgressPackets: c.EgressPackets, EgressBytes: c.EgressBytes,
		IngressPackets: c.IngressPackets, IngressBytes: c.IngressBytes,
	}
	if c.LastDenied != 0 {
		clock, err := readBootClock()
		if err != nil {
			return Counters{}, err
		}
		out.LastDenied = clock.toWall(c.LastDenied)
	}
	return out, nil
}

// Unowned returns, by hook, the denials below the parent cgroup that belong to
// no entry.
func (f *Filter) Unowned() (map[string]uint64, error) {
	var v [deniedHooks]uint64
	for i := range v {
		if err := f.objs.Unowned.Lookup(uint32(i), &v[i]); err != nil {
			return nil, fmt.Errorf("look up unowned denials: %w", err)
		}
	}
	return byHook(v), nil
}

func byHook(v [deniedHooks]uint64) map[string]uint64 {
	out := make(map[string]uint64, len(v))
	for i, n := range v {
		out[hooks()[i].name] = n
	}
	return out
}

// Entries lists the cgroup ids that have an entry, or counters left from one.
func (f *Filter) Entries() ([]uint64, error) {
	var out []uint64
	for _, m := range []*ebpf.Map{f.objs.Leases, f.objs.Counted} {
		keys, err := keysOf(m)
		if err != nil {
			return nil, fmt.Errorf("list entries: %w", err)
		}
		out = append(out, keys...)
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// keysOf starts again when the map changed so much during the walk that it
// lost its place.
func keysOf(m *ebpf.Map) ([]uint64, error) {
	for try := 0; ; try++ {
		var keys []uint64
		var key uint64
		value := make([]byte, m.ValueSize())
		it := m.Iterate()
		for it.Next(&key, &value) {
			keys = append(keys, key)
		}
		err := it.Err()
		if err == nil || !errors.Is(err, ebpf.ErrIterationAborted) || try == 8 {
			return keys, err
		}
	}
}

// Verify asks the kernel, not this process's memory, whether every hook is
// pinned and attached to the parent cgroup.
func (f *Filter) Verify() error {
	var errs []error
	for _, h := range hooks() {
		l, err := link.LoadPinnedLink(filepath.Join(f.cfg.PinDir, h.pin()), nil)
		if err != nil {
			errs = append(errs, fmt.Errorf("verify hook %s: %w", h.name, err))
			continue
		}
		errs = append(errs, f.checkLink(h, l), l.Close())
	}
	return errors.Join(errs...)
}

// Close ends the reader and closes every descriptor. The pins stay, and with
// them the refusals. It is idempotent.
func (f *Filter) Close() error {
	if f == nil {
		return nil
	}
	f.closeOnce.Do(func() {
		err := f.ring.Close()
		<-f.done
		f.closeErr = errors.Join(err, f.closeLinks(), f.objs.Close())
	})
	return f.closeErr
}

// Remove detaches every program, removes the pins and closes the filter. Call
// it when no lease is left.
func (f *Filter) Remove() error {
	var errs []error
	for _, l := range f.links {
		errs = append(errs, l.Unpin())
	}
	// Links that are still open would keep the programs attached.
	errs = append(errs, f.Close())
	for _, name := range pins() {
		errs = append(errs, removeAny(filepath.Join(f.cfg.PinDir, name)))
	}
	return errors.Join(errs...)
}

func (f *Filter) closeLinks() error {
	var errs []error
	for _, l := range f.links {
		if err := l.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			errs = append(errs, fmt.Errorf("close link: %w", err))
		}
	}
	return errors.Join(errs...)
}
