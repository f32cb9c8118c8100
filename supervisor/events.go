package supervisor

import (
	"context"
	"fmt"
	"io"
	"maps"
	"sync"
	"time"
)

// Kinds of events.
const (
	eventState    = "state"         // state
	eventStarted  = "exec_started"  // exec_id, argv0
	eventEnded    = "exec_ended"    // exec_id, cause
	eventExported = "exported"      // path, digest, bytes
	eventRenewed  = "renewed"       // expires_at
	eventDenied   = "egress_denied" // new, total
	eventLost     = "lost"          // from, to: sequence numbers that are gone
)

// mostEvents is how many events of a lease are kept.
const mostEvents = 1024

// Event is one thing that happened to a lease.
type Event struct {
	Sequence   uint64 // 1, 2, 3, ...
	At         time.Time
	Kind       string
	Attributes map[string]string
}

// eventLog keeps the newest events of a lease. It is safe for concurrent use.
type eventLog struct {
	mu     sync.Mutex
	last   uint64
	kept   []Event // the newest last, numbered up to last
	closed bool
	grown  chan struct{} // closed and replaced when something is added
}

func newEventLog() *eventLog { return &eventLog{grown: make(chan struct{})} }

func (g *eventLog) add(kind string, attributes map[string]string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return
	}
	g.last++
	g.kept = append(g.kept, Event{Sequence: g.last, At: time.Now().UTC(), Kind: kind, Attributes: attributes})
	if len(g.kept) > mostEvents {
		// Copy half at a time, so that adding stays cheap.
		g.kept = append([]Event(nil), g.kept[len(g.kept)-mostEvents/2:]...)
	}
	close(g.grown)
	g.grown = make(chan struct{})
}

// close ends the log: watchers see what there is, then io.EOF.
func (g *eventLog) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.closed {
		g.closed = true
		close(g.grown)
	}
}

// lastSequence is the number of the newest event.
func (g *eventLog) lastSequence() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last
}

// at returns the event with the given number. Of one that is gone it returns
// a lost event; of one that is not there yet, a channel to wait on, which is
// nil when there will never be one.
func (g *eventLog) at(sequence uint64) (Event, bool, <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	first := g.last - uint64(len(g.kept)) + 1
	switch {
	case sequence > g.last && g.closed:
		return Event{}, false, nil
	case sequence > g.last:
		return Event{}, false, g.grown
	case sequence < first:
		return lostEvent(sequence, first-1), true, nil
	default:
		return g.kept[sequence-first], true, nil
	}
}

// lostEvent stands for the events from..to. Its own number is to, so that a
// watcher that comes back asks for the one after.
func lostEvent(from, to uint64) Event {
	return Event{
		Sequence: to, At: time.Now().UTC(), Kind: eventLost,
		Attributes: map[string]string{"from": fmt.Sprint(from), "to": fmt.Sprint(to)},
	}
}

// Watcher reads a lease's events.
type Watcher struct {
	log  *eventLog
	next uint64
}

// Next returns the next event, waiting for it. It ends with io.EOF after the
// event of the lease's closing, or with ctx. What was dropped before it could
// be read shows as an event of kind lost.
func (w *Watcher) Next(ctx context.Context) (Event, error) {
	for {
		e, ok, grown := w.log.at(w.next)
		if ok {
			w.next = e.Sequence + 1
			e.Attributes = maps.Clone(e.Attributes)
			return e, nil
		}
		if grown == nil {
			return Event{}, io.EOF
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return Event{}, context.Cause(ctx)
		}
	}
}

// Watch returns the lease's events from a sequence number on; 0 is the first,
// and a number that is yet to come is the next. Of a lease that has closed,
// only the closing itself is still known.
func (s *Supervisor) Watch(_ context.Context, caller Caller, ref Ref, from uint64) (*Watcher, error) {
	at, err := s.find(caller, ref)
	if err != nil {
		return nil, err
	}
	if at.live != nil {
		log := at.live.events
		return &Watcher{log: log, next: min(max(from, 1), log.lastSequence()+1)}, nil
	}
	log := newEventLog()
	log.last = max(at.past.LastEvent, 1) - 1
	log.add(eventState, map[string]string{"state": at.past.State.String()})
	log.close()
	return &Watcher{log: log, next: min(max(from, 1), log.last)}, nil
}
