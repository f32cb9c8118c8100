package lease

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cordon/api/client"
	"cordon/internal/sys"
	"cordon/tests/daemon"
)

// inventory counts what belongs to one daemon, by owner and not as totals of
// the machine: other work runs on it.
type inventory struct {
	Descriptors int
	BPF         int // BPF objects among them
	Children    int
	Leftovers   int
	Namespaces  int // network namespaces that only the daemon's processes use
}

func take(t *testing.T, d *daemon.Daemon) inventory {
	t.Helper()
	var inv inventory
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		inv.Descriptors++
		if l, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", d.PID(), fd.Name())); strings.Contains(l, "bpf") {
			inv.BPF++
		}
		if l, _ := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", d.PID(), fd.Name())); strings.HasPrefix(l, "net:") {
			inv.Namespaces++
		}
	}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", d.PID()))
	for _, f := range tasks {
		b, _ := os.ReadFile(f)
		inv.Children += len(strings.Fields(string(b)))
	}
	for _, left := range d.Leftovers("/l-") {
		inv.Leftovers += len(left)
	}
	for _, f := range []string{"bpf"} {
		pins, _ := os.ReadDir(filepath.Join(d.Run, f))
		inv.BPF += len(pins)
	}
	return inv
}

// TestTwoHundredLeases: 200 one after the other, then 20 at once, and the
// daemon owns what it owned before.
func TestTwoHundredLeases(t *testing.T) {
	d := daemon.New(t, daemon.Options{})
	c := d.Client()
	e := d.Envelope(c)
	e.Resources.MemoryBytes, e.Resources.DiskBytes, e.Resources.CPUMilli = 64<<20, 8<<20, 50
	one := func(run string) error {
		e := e
		e.Identity.RunID = run
		l, err := c.Acquire(context.Background(), e, client.AcquireOptions{})
		if err != nil {
			return fmt.Errorf("acquire %s: %w", run, err)
		}
		end, err := l.Run(context.Background(), client.Command{Argv: []string{"true"}})
		if err != nil || !end.OK() {
			return fmt.Errorf("run %s: %+v: %w", run, end, err)
		}
		if _, err := l.Release(context.Background()); err != nil {
			return fmt.Errorf("release %s: %w", run, err)
		}
		return nil
	}
	if err := one("warm-up"); err != nil { // what is opened once is open
		t.Fatalf("%v\n%s", err, d.Log())
	}
	before := take(t, d)
	for i := range 200 {
		if err := one(fmt.Sprint("seq-", i)); err != nil {
			t.Fatal(err)
		}
	}
	compare(t, d, "200 in sequence", before)

	var wg sync.WaitGroup
	errs := make(chan error, 20)
	for i := range 20 {
		wg.Go(func() { errs <- one(fmt.Sprint("par-", i)) })
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	compare(t, d, "20 at once", before)
}

func compare(t *testing.T, d *daemon.Daemon, when string, before inventory) {
	t.Helper()
	var after inventory
	same := sys.PollUntil(10*time.Second, 50*time.Millisecond, func() bool {
		after = take(t, d)
		// The runtime's own descriptors (epoll, idle pipes) may shrink.
		before.Descriptors = min(before.Descriptors, after.Descriptors)
		return after == before
	})
	if !same {
		t.Errorf("after %s: %+v, before %+v; %v", when, after, before, d.Leftovers("/l-"))
		return
	}
	t.Logf("after %s: %+v, as before", when, after)
}
