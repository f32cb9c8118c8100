package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
)

// doublePress is how fast a second Ctrl-C must come to mean "at once".
const doublePress = 2 * time.Second

// phase is what a signal means at the time.
type phase uint8

const (
	// holding: what is under way is short and must not be left half done. The
	// first signal is noted, the second stops it all the same.
	holding phase = iota
	// cancelling: the first signal stops what is under way.
	cancelling
	// forwarding: signals are the command's.
	forwarding
)

// interrupted says that a signal stopped this program.
type interrupted struct{ sig syscall.Signal }

func (e interrupted) Error() string { return "interrupted by " + signalName(e.sig) }

// interrupts gives every signal that this program gets to whoever it is meant
// for at the time. It is safe for concurrent use; one goroutine, which stop
// waits for, reads the queue.
type interrupts struct {
	now  func() time.Time
	done chan struct{}
	quit chan struct{}
	stop func()

	// forward gets the command's signals; buffered, and when it is full the
	// command has more waiting than it will ever look at.
	forward chan os.Signal

	mu         sync.Mutex
	phase      phase
	cancel     context.CancelCauseFunc // of the phase; nil between phases
	noted      syscall.Signal          // the first that was to end us, outside the command
	lastINT    time.Time
	presses    int    // of Ctrl-C in a row, each soon after the one before
	hangupEnds bool   // SIGHUP leaves the command instead of telling it
	resized    func() // on SIGWINCH; nil without a terminal
	resumed    func() // on SIGCONT; nil without a terminal
}

func newInterrupts(queue <-chan os.Signal, stop func()) *interrupts {
	i := &interrupts{
		now: time.Now, stop: stop,
		done: make(chan struct{}), quit: make(chan struct{}),
		forward: make(chan os.Signal, 16),
	}
	go func() {
		defer close(i.done)
		for {
			select {
			case s := <-queue:
				if sig, ok := s.(syscall.Signal); ok {
					i.handle(sig)
				}
			case <-i.quit:
				return
			}
		}
	}()
	return i
}

// close gives signals back their default meaning.
func (i *interrupts) close() {
	i.stop()
	close(i.quit)
	<-i.done
}

// enter begins a phase. Its context ends when a signal stops the phase, with
// an interrupted as the cause; leave ends the phase.
func (i *interrupts) enter(parent context.Context, p phase) (ctx context.Context, leave func()) {
	ctx, cancel := context.WithCancelCause(parent)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.phase, i.cancel, i.presses = p, cancel, 0
	if p == cancelling && i.noted != 0 {
		cancel(interrupted{i.noted})
	}
	return ctx, func() {
		i.mu.Lock()
		i.phase, i.cancel = holding, nil
		i.resized, i.resumed, i.hangupEnds = nil, nil, false
		i.mu.Unlock()
		cancel(nil)
	}
}

// onTerminal says what a running command's terminal wants to know.
func (i *interrupts) onTerminal(resized, resumed func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.resized, i.resumed = resized, resumed
}

// leaveOnHangup makes SIGHUP end the forwarding phase instead of being sent.
func (i *interrupts) leaveOnHangup() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.hangupEnds = true
}

// caught is the first signal that was to end this program, or nil.
func (i *interrupts) caught() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.noted == 0 {
		return nil
	}
	return interrupted{i.noted}
}

func (i *interrupts) handle(sig syscall.Signal) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch sig {
	case syscall.SIGPIPE:
		// The write that caused it gets EPIPE.
	case syscall.SIGWINCH:
		call(i.resized)
	case syscall.SIGCONT:
		call(i.resumed)
	case syscall.SIGUSR1, syscall.SIGUSR2:
		if i.phase == forwarding {
			i.send(sig)
		}
	default:
		i.handleEndingLocked(sig)
	}
}

func call(f func()) {
	if f != nil {
		f()
	}
}

// handleEndingLocked is for the signals whose default is to end a process.
func (i *interrupts) handleEndingLocked(sig syscall.Signal) {
	switch i.phase {
	case forwarding:
		i.forwardLocked(sig)
	case cancelling:
		i.note(sig)
		i.cancelLocked(sig)
	case holding:
		if i.noted != 0 {
			i.cancelLocked(sig)
		}
		i.note(sig)
	}
}

// forwardLocked sends sig to the command, which may do with it what it likes:
// so a second Ctrl-C in quick succession kills it, and a third does not wait
// for that to be confirmed.
func (i *interrupts) forwardLocked(sig syscall.Signal) {
	if sig == syscall.SIGHUP && i.hangupEnds {
		i.cancelLocked(sig)
		return
	}
	if sig == syscall.SIGINT {
		now := i.now()
		if i.presses > 0 && now.Sub(i.lastINT) > doublePress {
			i.presses = 0
		}
		i.presses++
		i.lastINT = now
		switch i.presses {
		case 1:
		case 2:
			sig = syscall.SIGKILL
		default:
			i.note(sig)
			i.cancelLocked(sig)
			return
		}
	}
	i.send(sig)
}

func (i *interrupts) note(sig syscall.Signal) {
	if i.noted == 0 {
		i.noted = sig
	}
}

func (i *interrupts) cancelLocked(sig syscall.Signal) {
	if i.cancel != nil {
		i.cancel(interrupted{sig})
	}
}

func (i *interrupts) send(sig syscall.Signal) {
	select {
	case i.forward <- sig:
	default:
	}
}

// because is err, or the signal that ended ctx and so caused it.
func because(ctx context.Context, err error) error {
	var by interrupted
	if err != nil && errors.As(context.Cause(ctx), &by) {
		return by
	}
	return err
}

// String is for messages and tests.
func (p phase) String() string {
	if names := [...]string{"holding", "cancelling", "forwarding"}; int(p) < len(names) {
		return names[p]
	}
	return fmt.Sprintf("phase %d", uint8(p))
}
