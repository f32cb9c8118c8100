package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	cordonv1 "cordon/api/v1"
	"cordon/api/wire"
)

// session moves the streams of one command.
//
//	caller's goroutine  run: receives, writes Stdout and Stderr
//	feeder              the only sender after the first message
//	reader              reads Stdin; may outlive the session by one Read
//
// Standard input is sent only while less than wire.StdinWindow of it is
// unacknowledged, so that signals and sizes never queue behind input that the
// command does not read.
type session struct {
	up      side
	streams Streams
	started func(string)
	cancel  context.CancelFunc // ends the stream

	credit chan int      // bytes the command took; to the feeder
	chunks chan chunk    // to the feeder
	fed    chan struct{} // closed when the feeder has ended
}

// chunk is what one Read gave.
type chunk struct {
	data []byte
	err  error // io.EOF at the end
}

// run returns when the command has ended, or the stream has.
func (s *session) run(ctx context.Context) (End, error) {
	ctx, stop := context.WithCancelCause(ctx)
	s.credit, s.chunks, s.fed = make(chan int), make(chan chunk), make(chan struct{})
	var feeder sync.WaitGroup
	feeder.Go(func() {
		defer close(s.fed)
		if err := s.feed(ctx); err != nil {
			stop(err)
			s.cancel()
		}
	})
	if s.streams.Stdin != nil {
		go s.read(ctx)
	}

	end, err := s.receive()
	stop(nil)
	s.cancel() // the feeder may be stuck in a Send that nothing needs any more
	feeder.Wait()
	if err != nil {
		// If it was the feeder that ended the stream, its reason counts.
		if own, ok := errors.AsType[feedError](context.Cause(ctx)); ok {
			return End{}, own.err
		}
		return End{}, err
	}
	return end, nil
}

// feedError marks an error of the caller's Stdin.
type feedError struct{ err error }

func (e feedError) Error() string { return e.err.Error() }

// receive handles what the daemon sends, up to the end.
func (s *session) receive() (End, error) {
	for {
		resp, err := s.up.recv()
		if err != nil {
			return End{}, ended(err, "the command did")
		}
		switch kind := resp.GetKind().(type) {
		case *cordonv1.ExecResponse_Started:
			if s.started != nil {
				s.started(kind.Started.GetExecId())
			}
		case *cordonv1.ExecResponse_Stdout:
			err = write("stdout", s.streams.Stdout, kind.Stdout)
		case *cordonv1.ExecResponse_Stderr:
			err = write("stderr", s.streams.Stderr, kind.Stderr)
		case *cordonv1.ExecResponse_StdinTaken:
			select {
			case s.credit <- int(kind.StdinTaken):
			case <-s.fed: // nothing is sent any more
			}
		case *cordonv1.ExecResponse_End:
			// What follows is the stream's status. It is taken in, so that the
			// stream ends by itself; it cannot change how the command ended.
			_, _ = s.up.recv()
			return end(kind.End), nil
		}
		if err != nil {
			return End{}, err
		}
	}
}

func write(name string, w io.Writer, b []byte) error {
	if w == nil {
		return nil
	}
	if _, err := w.Write(b); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// read hands over Stdin chunk by chunk. It ends with Stdin or with ctx.
func (s *session) read(ctx context.Context) {
	buf := make([]byte, wire.ChunkBytes)
	for {
		n, err := s.streams.Stdin.Read(buf)
		c := chunk{data: bytes.Clone(buf[:n]), err: err}
		select {
		case s.chunks <- c:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// feed sends input, signals and sizes until ctx ends. Only an error of Stdin
// is one: an error of Send means that the stream has ended, and receive
// learns why.
func (s *session) feed(ctx context.Context) error {
	resize, signals := s.streams.Resize, s.streams.Signals
	input, unacked := s.chunks, 0
	for {
		chunks := input
		if unacked+wire.ChunkBytes > wire.StdinWindow {
			chunks = nil // wait for the command to read
		}
		var err error
		select {
		case <-ctx.Done():
			return nil
		case n := <-s.credit:
			unacked -= n
		case sig, ok := <-signals:
			if !ok {
				signals = nil
				continue
			}
			err = s.signal(sig)
		case size, ok := <-resize:
			if !ok {
				resize = nil
				continue
			}
			err = s.up.resize(size)
		case c := <-chunks:
			unacked += len(c.data)
			if c.err != nil {
				input = nil
			}
			err = s.input(c)
		}
		if own := (feedError{}); errors.As(err, &own) {
			return own
		}
		if err != nil {
			return nil //nolint:nilerr // the stream has ended; see above
		}
	}
}

func (s *session) input(c chunk) error {
	if len(c.data) > 0 {
		if err := s.up.stdin(c.data); err != nil {
			return err
		}
	}
	switch {
	case c.err == nil:
		return nil
	case errors.Is(c.err, io.EOF):
		return s.up.closeStdin()
	default:
		return feedError{fmt.Errorf("read stdin: %w", c.err)}
	}
}

func (s *session) signal(sig os.Signal) error {
	n, ok := sig.(syscall.Signal)
	if !ok || n < 1 || n > 64 {
		return nil // there is no such thing to send
	}
	return s.up.signal(int32(n))
}
