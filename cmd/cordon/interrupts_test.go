package main

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"
)

// quiet is interrupts that a test feeds by calling handle.
func quiet(t *testing.T) *interrupts {
	t.Helper()
	i := newInterrupts(make(chan os.Signal), func() {})
	t.Cleanup(i.close)
	return i
}

// sent takes what was forwarded.
func sent(i *interrupts) []os.Signal {
	var got []os.Signal
	for {
		select {
		case s := <-i.forward:
			got = append(got, s)
		default:
			return got
		}
	}
}

func TestCancellingStopsAtOnce(t *testing.T) {
	i := quiet(t)
	ctx, leave := i.enter(t.Context(), cancelling)
	defer leave()
	i.handle(syscall.SIGUSR1)
	if ctx.Err() != nil {
		t.Fatal("SIGUSR1 stopped it")
	}
	i.handle(syscall.SIGTERM)
	<-ctx.Done()
	if err := because(ctx, errors.New("x")); !errors.Is(err, interrupted{syscall.SIGTERM}) {
		t.Errorf("because = %v", err)
	}
	if err := because(ctx, nil); err != nil {
		t.Errorf("success became %v", err)
	}
	// What comes next must not begin.
	next, leave2 := i.enter(t.Context(), cancelling)
	defer leave2()
	if next.Err() == nil {
		t.Error("a phase that can be cancelled begins after a signal")
	}
}

func TestHoldingWaitsForTheSecond(t *testing.T) {
	i := quiet(t)
	ctx, leave := i.enter(t.Context(), holding)
	defer leave()
	i.handle(syscall.SIGINT)
	if ctx.Err() != nil {
		t.Fatal("the first signal stopped it")
	}
	if err := i.caught(); !errors.Is(err, interrupted{syscall.SIGINT}) {
		t.Errorf("caught = %v", err)
	}
	i.handle(syscall.SIGTERM)
	<-ctx.Done()
}

func TestForwarding(t *testing.T) {
	i := quiet(t)
	now := time.Unix(0, 0)
	i.now = func() time.Time { return now }
	ctx, leave := i.enter(t.Context(), forwarding)
	defer leave()
	for _, s := range []syscall.Signal{
		syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGINT,
	} {
		i.handle(s)
		if got := sent(i); len(got) != 1 || got[0] != os.Signal(s) {
			t.Errorf("%v: sent %v", s, got)
		}
	}
	i.handle(syscall.SIGPIPE)
	if got := sent(i); len(got) != 0 {
		t.Errorf("SIGPIPE is ours, sent %v", got)
	}
	now = now.Add(doublePress + time.Millisecond)
	i.handle(syscall.SIGINT) // too late to be the second
	now = now.Add(doublePress)
	i.handle(syscall.SIGINT)
	if got := sent(i); len(got) != 2 || got[0] != syscall.SIGINT || got[1] != syscall.SIGKILL {
		t.Errorf("sent %v, want SIGINT and SIGKILL", got)
	}
	if ctx.Err() != nil || i.caught() != nil {
		t.Fatal("the command's signals stopped us")
	}
	i.handle(syscall.SIGINT)
	<-ctx.Done()
}

func TestHangup(t *testing.T) {
	i := quiet(t)
	ctx, leave := i.enter(t.Context(), forwarding)
	i.leaveOnHangup()
	i.handle(syscall.SIGHUP)
	<-ctx.Done()
	if got := sent(i); len(got) != 0 {
		t.Errorf("sent %v", got)
	}
	leave()
	ctx, leave = i.enter(t.Context(), forwarding)
	defer leave()
	i.handle(syscall.SIGHUP)
	if got := sent(i); len(got) != 1 || ctx.Err() != nil {
		t.Errorf("the next phase remembers: sent %v, %v", got, ctx.Err())
	}
}

func TestSignalsComeFromTheQueue(t *testing.T) {
	queue := make(chan os.Signal, 1)
	stopped := false
	i := newInterrupts(queue, func() { stopped = true })
	ctx, leave := i.enter(context.Background(), cancelling)
	defer leave()
	queue <- syscall.SIGINT
	<-ctx.Done()
	i.close()
	if !stopped {
		t.Error("the queue goes on after close")
	}
}
