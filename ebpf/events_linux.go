package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/cilium/ebpf/ringbuf"
)

// startReader starts the goroutine that moves events from the ring to the
// ledger; Close ends it.
func (f *Filter) startReader() error {
	clock, err := readBootClock()
	if err != nil {
		return err
	}
	ring, err := ringbuf.NewReader(f.objs.Events)
	if err != nil {
		return fmt.Errorf("open event ring: %w", err)
	}
	f.ring = ring
	f.drains.flush = ring.Flush
	f.done = make(chan struct{})
	go func() {
		defer close(f.done)
		f.read(clock)
	}()
	return nil
}

func (f *Filter) read(clock bootClock) {
	var rec ringbuf.Record
	for {
		err := f.ring.ReadInto(&rec)
		switch {
		case errors.Is(err, ringbuf.ErrFlushed):
			f.drains.finish()
		case errors.Is(err, ringbuf.ErrClosed):
			return
		case err != nil:
			// Counts do not come this way; destinations go unlisted from now.
			f.cfg.Logger.Error("event reader ended", slog.Any("cause", err))
			return
		default:
			f.record(rec.RawSample, clock)
		}
	}
}

func (f *Filter) record(raw []byte, clock bootClock) {
	var ev programsEvent
	if _, err := binary.Decode(raw, binary.NativeEndian, &ev); err != nil {
		f.cfg.Logger.Error("event dropped", slog.Int("bytes", len(raw)), slog.Any("cause", err))
		return
	}
	f.ledger.add(ev, clock.toWall(ev.BootNs))
}

// drain returns when everything that was in the ring at the call is in the
// ledger, or the reader has ended.
func (f *Filter) drain() {
	select {
	case <-f.drains.start():
	case <-f.done:
	}
}

// drains lets callers wait for a pass over the ring that began after they
// asked. The reader answers passes one at a time and cannot tell two requests
// apart, so callers who come while one is under way share the next.
type drains struct {
	flush func() error // borrowed from the reader

	mu      sync.Mutex
	running chan struct{} // the pass under way; nil: none
	next    chan struct{} // the pass after it; nil: nobody waits
}

// start asks for a pass and returns a channel that is closed after it.
func (d *drains) start() <-chan struct{} {
	d.mu.Lock()
	if d.running != nil {
		if d.next == nil {
			d.next = make(chan struct{})
		}
		defer d.mu.Unlock()
		return d.next
	}
	pass := make(chan struct{})
	d.running = pass
	d.mu.Unlock()
	// An error means that the reader is closed, which the caller sees too.
	_ = d.flush()
	return pass
}

// finish ends the pass under way and begins the next if somebody waits.
func (d *drains) finish() {
	d.mu.Lock()
	done := d.running
	d.running, d.next = d.next, nil
	again := d.running != nil
	d.mu.Unlock()
	if done != nil {
		close(done)
	}
	if again {
		_ = d.flush() // as in start
	}
}
