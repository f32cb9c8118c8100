package api

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	cordonv1 "cordon/api/v1"
	"cordon/api/wire"
	"cordon/supervisor"
)

// stuckSession is a command that reads nothing and ends when it is told to.
type stuckSession struct {
	end      chan struct{}
	writing  chan struct{} // closed by the first Write
	detached chan struct{} // closed by Detach, the only thing that ends a Write

	once sync.Once
}

func (s *stuckSession) Next(ctx context.Context) (supervisor.Output, error) {
	select {
	case <-s.end:
		return supervisor.Output{Stream: supervisor.StreamEnd, End: supervisor.End{Cause: supervisor.CauseExited}}, nil
	case <-ctx.Done():
		return supervisor.Output{}, context.Cause(ctx)
	}
}

func (s *stuckSession) Write(context.Context, []byte) error {
	s.once.Do(func() { close(s.writing) })
	<-s.detached
	return errors.New("detached")
}

func (s *stuckSession) CloseStdin() error           { return nil }
func (s *stuckSession) Signal(int) error            { return nil }
func (s *stuckSession) Resize(uint16, uint16) error { return nil }
func (s *stuckSession) Detach()                     { close(s.detached) }
func newStuckSession() *stuckSession {
	return &stuckSession{end: make(chan struct{}), writing: make(chan struct{}), detached: make(chan struct{})}
}

// runRelay runs a relay whose caller sends one chunk and then what in has.
func runRelay(ctx context.Context, s *stuckSession, in <-chan error) (sent []*cordonv1.ExecResponse, err error) {
	first := true
	r := &relay{
		session: s, stdin: newStdinQueue(), control: make(chan input),
		send: func(m *cordonv1.ExecResponse) error {
			sent = append(sent, m)
			return nil
		},
		recv: func() (input, error) {
			if first {
				first = false
				return stdin("x"), nil
			}
			return nil, <-in
		},
	}
	var receivers sync.WaitGroup
	err = r.run(ctx, &receivers)
	// What is acknowledged late must not follow the end.
	_ = r.reply(&cordonv1.ExecResponse{Kind: &cordonv1.ExecResponse_StdinTaken{StdinTaken: 1}})
	return sent, err
}

func TestRelayDetachesAtTheEnd(t *testing.T) {
	s := newStuckSession()
	in := make(chan error)
	defer close(in) // the receiver goes when its stream does
	go func() {
		<-s.writing
		close(s.end)
	}()
	sent, err := runRelay(t.Context(), s, in)
	if err != nil || len(sent) != 1 || sent[0].GetEnd() == nil {
		t.Errorf("sent %v, %v; want the end and nothing after it", sent, err)
	}
	<-s.detached
}

func TestRelayDetachesWhenTheCallerLeaves(t *testing.T) {
	left := errors.New("caller left")
	s := newStuckSession()
	in := make(chan error, 1)
	go func() {
		<-s.writing
		in <- left
	}()
	if _, err := runRelay(t.Context(), s, in); !errors.Is(err, left) {
		t.Errorf("got %v, want the receiver's error", err)
	}
	<-s.detached
}

func TestRelayDetachesWithItsContext(t *testing.T) {
	s := newStuckSession()
	in := make(chan error)
	defer close(in)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-s.writing
		cancel()
	}()
	if _, err := runRelay(ctx, s, in); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want cancelled", err)
	}
	<-s.detached
}

func TestStdinQueue(t *testing.T) {
	q := newStdinQueue()
	ctx := t.Context()
	chunk := make([]byte, wire.MaxChunkBytes)
	for range wire.StdinWindow / wire.MaxChunkBytes {
		if err := q.put(ctx, chunk); err != nil {
			t.Fatal(err)
		}
	}
	full, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if err := q.put(full, []byte("x")); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("one byte more than the window: %v, want to wait", err)
	}

	// A put that waits goes on when there is room.
	done := make(chan error, 1)
	go func() { done <- q.put(ctx, []byte("x")) }()
	if b, more, err := q.take(ctx); len(b) != wire.StdinWindow || !more || err != nil {
		t.Errorf("took %d bytes, %v, %v; want all", len(b), more, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	q.close()
	if err := q.put(ctx, []byte("late")); err != nil {
		t.Errorf("after close: %v", err)
	}
	type taken struct {
		B    string
		More bool
	}
	var got []taken
	for more := true; more; {
		var b []byte
		var err error
		if b, more, err = q.take(ctx); err != nil {
			t.Fatal(err)
		}
		got = append(got, taken{string(b), more})
	}
	if diff := cmp.Diff([]taken{{"x", true}, {"", false}}, got); diff != "" {
		t.Errorf("what was held at the end (-want +got):\n%s", diff)
	}

	empty, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, _, err := newStdinQueue().take(empty); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("taking from an empty queue: %v, want to wait", err)
	}
}

// Every byte comes out once, in order, whatever the sizes.
func TestStdinQueueOrder(t *testing.T) {
	q := newStdinQueue()
	const total = 1 << 20
	go func() {
		defer q.close()
		for n, sent := 1, 0; sent < total; n = n*7%1021 + 1 {
			n = min(n, total-sent)
			b := make([]byte, n)
			for i := range b {
				b[i] = byte((sent + i) * 31 >> 3)
			}
			if err := q.put(t.Context(), b); err != nil {
				t.Error(err)
				return
			}
			sent += n
		}
	}()
	got := 0
	for {
		b, more, err := q.take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range b {
			if c != byte((got+i)*31>>3) {
				t.Fatalf("byte %d is wrong", got+i)
			}
		}
		got += len(b)
		if !more {
			break
		}
	}
	if got != total {
		t.Errorf("%d bytes came out, want %d", got, total)
	}
}
