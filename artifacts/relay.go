package artifacts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"cordon/internal/fault"
)

// relay gives use the bytes of r, and returns what use does. A caller's r is
// a stream that only the goroutine of its handler may read, and a read that
// blocks cannot be broken off from here. So r is read in the caller's
// goroutine and use runs in another one: when r gives nothing for idle, or ctx
// ends, use fails and gives back all it holds at once, while relay itself
// returns when that last read does.
func relay[T any](ctx context.Context, idle time.Duration, r io.Reader, use func(io.Reader) (T, error)) (T, error) {
	pr, pw := io.Pipe()
	stop := context.AfterFunc(ctx, func() { pw.CloseWithError(context.Cause(ctx)) })
	defer stop()
	var result T
	var err error
	done := make(chan struct{})
	go func() { // ends with use; the receive below waits for it
		defer close(done)
		result, err = use(&idleReader{pr: pr, pw: pw, idle: idle})
		pr.CloseWithError(errors.New("use of the stream has ended")) // ends the copy
	}()
	_, cause := io.Copy(pw, r)
	pw.CloseWithError(cause) // nil is io.EOF
	<-done
	return result, err
}

// idleReader breaks the pipe when a read of it waits too long. The time that
// its own reader takes does not count.
type idleReader struct {
	pr   *io.PipeReader
	pw   *io.PipeWriter
	idle time.Duration
}

func (i *idleReader) Read(p []byte) (int, error) {
	t := time.AfterFunc(i.idle, func() {
		i.pw.CloseWithError(fault.New(fault.InvalidArgument, "data",
			fmt.Sprintf("no byte came for %v", i.idle), "send it again without a pause"))
	})
	defer t.Stop()
	return i.pr.Read(p)
}
