package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	cordonv1 "cordon/api/v1"
	"cordon/api/wire"
	"cordon/supervisor"
)

// relay moves the streams of one command between a session and a caller.
//
//	handler    session.Next -> send
//	receiver   recv -> stdin queue, control          (ends with the stream)
//	writer     stdin queue -> session.Write -> send  (acknowledgements)
//	controller control -> session.Signal, session.Resize
//
// The session is touched by the handler, the writer and the controller only,
// and they are joined before run returns. The receiver waits in grpc, which
// nothing but the end of the stream interrupts, so it is joined by the server
// (receivers).
type relay struct {
	session    Session
	recv       func() (input, error)
	closeOnEOF bool

	stdin   *stdinQueue
	control chan input

	mu    sync.Mutex // serialises send
	send  func(*cordonv1.ExecResponse) error
	ended bool // the last message is out; guarded by mu
}

// errLeft ends a relay whose command has ended.
var errLeft = errors.New("relay: the command has ended")

// run returns nil when the caller has been told how the command ended. In
// every case the session is detached then: what that means for a command that
// still runs is the session's to know.
func (r *relay) run(ctx context.Context, receivers *sync.WaitGroup) error {
	ctx, stop := context.WithCancelCause(ctx)
	start := func(group *sync.WaitGroup, name string, fn func(context.Context) error) {
		group.Go(func() {
			if err := protect(ctx, name, fn); err != nil {
				stop(err)
			}
		})
	}
	var workers sync.WaitGroup
	start(receivers, "exec receiver", r.receive)
	start(&workers, "exec writer", r.write)
	start(&workers, "exec controller", r.steer)

	// Deferred, so that a panic of the session leaves nothing behind either.
	defer func() {
		stop(errLeft)
		r.session.Detach()
		workers.Wait()
	}()
	if err := r.output(ctx); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause // Next only says that ctx ended
		}
		return err
	}
	return nil
}

// protect makes an error of fn's panic: outside the handler's goroutine
// nothing else would, and the daemon would end.
func protect(ctx context.Context, name string, fn func(context.Context) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = panicked(name, v)
		}
	}()
	return fn(ctx)
}

// output sends what the session has, up to the end.
func (r *relay) output(ctx context.Context) error {
	for {
		out, err := r.session.Next(ctx)
		if err != nil {
			return err
		}
		switch out.Stream {
		case supervisor.StreamStarted:
			started := &cordonv1.ExecStarted{ExecId: out.ExecID}
			err = r.reply(&cordonv1.ExecResponse{Kind: &cordonv1.ExecResponse_Started{Started: started}})
		case supervisor.StreamStdout, supervisor.StreamStderr:
			err = r.data(out)
		case supervisor.StreamEnd:
			return r.reply(&cordonv1.ExecResponse{Kind: &cordonv1.ExecResponse_End{End: end(out.End)}})
		default:
			err = fmt.Errorf("relay output: no stream %d", out.Stream)
		}
		if err != nil {
			return err
		}
	}
}

func (r *relay) data(out supervisor.Output) error {
	for b := range slices.Chunk(out.Data, wire.ChunkBytes) {
		resp := &cordonv1.ExecResponse{Kind: &cordonv1.ExecResponse_Stdout{Stdout: b}}
		if out.Stream == supervisor.StreamStderr {
			resp.Kind = &cordonv1.ExecResponse_Stderr{Stderr: b}
		}
		if err := r.reply(resp); err != nil {
			return err
		}
	}
	return nil
}

// reply sends one message, and nothing after the end. The lock is held while
// the caller takes its time: there is one stream, and it must not be sent on
// by two.
func (r *relay) reply(resp *cordonv1.ExecResponse) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return nil
	}
	r.ended = resp.GetEnd() != nil
	return r.send(resp)
}

// receive hands over what the caller sends. A half-closed stream is no error.
func (r *relay) receive(ctx context.Context) error {
	for {
		in, err := r.recv()
		if errors.Is(err, io.EOF) {
			if r.closeOnEOF {
				r.stdin.close()
			}
			return nil
		}
		if err != nil {
			return err
		}
		switch in := in.(type) {
		case stdin:
			if err := r.stdin.put(ctx, in); err != nil {
				return err
			}
		case closeStdin:
			r.stdin.close()
		default:
			select {
			case r.control <- in:
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// write hands standard input to the command, at the command's pace, and
// acknowledges it. What a command that has closed its end does not take is
// dropped, as a pipe would with SIGPIPE ignored, so that signals still pass.
func (r *relay) write(ctx context.Context) error {
	var taken int
	var broken bool
	for {
		held, more, err := r.stdin.take(ctx)
		if err != nil {
			return nil // ctx has ended, and whoever ended it knows why
		}
		if !more {
			// An error means that the command is gone, and Next tells how.
			_ = r.session.CloseStdin()
			return nil
		}
		for b := range slices.Chunk(held, wire.MaxChunkBytes) {
			broken = broken || r.session.Write(ctx, b) != nil
			if taken += len(b); taken < wire.MaxChunkBytes {
				continue
			}
			ack := &cordonv1.ExecResponse{Kind: &cordonv1.ExecResponse_StdinTaken{StdinTaken: uint32(taken)}}
			if err := r.reply(ack); err != nil {
				return err
			}
			taken = 0
		}
	}
}

// steer applies signals and sizes. That they come too late for the command is
// no error.
func (r *relay) steer(ctx context.Context) error {
	for {
		select {
		case in := <-r.control:
			switch in := in.(type) {
			case sendSignal:
				_ = r.session.Signal(int(in))
			case resize:
				_ = r.session.Resize(in.rows, in.cols)
			}
		case <-ctx.Done():
			return nil
		}
	}
}
