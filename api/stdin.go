package api

import (
	"context"
	"sync"

	"cordon/api/wire"
)

// stdinQueue holds up to wire.StdinWindow bytes of standard input between the
// goroutine that receives and the one that writes, so that a command that
// does not read does not keep signals from arriving.
type stdinQueue struct {
	mu     sync.Mutex
	held   []byte
	closed bool // no more will be put

	// Each carries at most one token, and has one goroutine at its other end.
	room, ready chan struct{}
}

func newStdinQueue() *stdinQueue {
	return &stdinQueue{room: make(chan struct{}, 1), ready: make(chan struct{}, 1)}
}

// put adds b, which it copies, and waits while there is no room for it. What
// comes after close is dropped.
func (q *stdinQueue) put(ctx context.Context, b []byte) error {
	for !q.tryPut(b) {
		select {
		case <-q.room:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (q *stdinQueue) tryPut(b []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return true
	}
	if len(q.held)+len(b) > wire.StdinWindow {
		return false
	}
	q.held = append(q.held, b...)
	signal(q.ready)
	return true
}

// close says that what is held is all there will be.
func (q *stdinQueue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	signal(q.ready)
}

// take returns what is held, and waits while that is nothing. more is false
// after the last byte.
func (q *stdinQueue) take(ctx context.Context) (b []byte, more bool, err error) {
	for {
		b, more = q.tryTake()
		if len(b) > 0 || !more {
			return b, more, nil
		}
		select {
		case <-q.ready:
		case <-ctx.Done():
			return nil, false, context.Cause(ctx)
		}
	}
}

func (q *stdinQueue) tryTake() (b []byte, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	b, q.held = q.held, nil
	if len(b) > 0 {
		signal(q.room)
		return b, true
	}
	return nil, !q.closed
}

// signal leaves a token unless there is one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
