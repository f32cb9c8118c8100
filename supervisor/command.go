package supervisor

import (
	"context"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// chunkBytes bounds the data of one Output. With what a message adds it still
// fits a pooled buffer of 32 KiB; the next size up is 1 MiB.
const chunkBytes = 32<<10 - 512

// settle is how long the end of a command waits for news of PID 1's death,
// when SIGKILL of unknown origin ended it. The two come at the same moment,
// by different ways.
const settle = 20 * time.Millisecond

// command is one command of a lease. Two goroutines read its output, one
// writes its input, one waits for its end.
//
//	subscriber.Write -> stdin -> writer -> Exec.Stdin
//	Exec.Stdout, Stderr -> reader -> tail, subscriber.out -> subscriber.Next
type command struct {
	lease   *lease
	id      string
	argv    []string
	keep    bool
	tty     bool
	timeout time.Duration
	started time.Time
	place   int // in lease.execs; -1: not listed

	exec  Exec        // set before any of the goroutines starts
	stdin chan []byte // unbuffered: a write is accepted when the last is done
	eof   chan struct{}
	over  chan struct{} // closed when the first process has ended
	cut   chan struct{} // closed when output no longer waits for anybody
	done  chan struct{} // closed when end is set

	readers sync.WaitGroup
	using   sync.WaitGroup // calls of exec.Kill, Signal and Resize under way

	mu      sync.Mutex
	begun   bool
	eofSet  bool
	overSet bool
	cutSet  bool
	dropped bool // output was dropped after cut
	did     act
	sub     *Session // who takes the output now
	stdout  tail
	stderr  tail
	end     End
}

func newCommand(l *lease, id string, r ExecRequest) *command {
	return &command{
		lease: l, id: id, argv: clipArgv(r.Argv), keep: r.Keep, tty: r.TTY,
		timeout: r.Timeout, started: time.Now(),
		stdin: make(chan []byte), eof: make(chan struct{}), over: make(chan struct{}),
		cut: make(chan struct{}), done: make(chan struct{}),
	}
}

// clipArgv keeps a long command line from being held for as long as it runs.
func clipArgv(argv []string) []string {
	const most = 4 << 10
	total := 0
	for i, a := range argv {
		if total += len(a); total > most {
			return append(slices.Clone(argv[:max(i, 1)]), "...")
		}
	}
	return slices.Clone(argv)
}

// begin starts the goroutines of a command that the jail has started.
func (s *Supervisor) begin(x *command, exec Exec) {
	x.mu.Lock()
	x.exec, x.begun = exec, true
	did := x.did
	x.mu.Unlock()
	x.readers.Add(1)
	s.spawn(func() { defer x.readers.Done(); s.read(x, exec.Stdout(), StreamStdout) })
	if stderr := exec.Stderr(); stderr != nil {
		x.readers.Add(1)
		s.spawn(func() { defer x.readers.Done(); s.read(x, stderr, StreamStderr) })
	}
	s.spawn(func() { x.write(exec.Stdin()) })
	s.spawn(func() { s.await(x) })
	if did.cause != 0 { // the end of the lease came first
		s.killed(x, exec.Kill())
	}
}

// await waits for the command's end and says how it ended.
func (s *Supervisor) await(x *command) {
	ctx, cancel := context.Background(), context.CancelFunc(func() {})
	if x.timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, x.timeout)
	}
	seen, err := x.exec.Wait(ctx)
	if err != nil && ctx.Err() != nil {
		s.killed(x, x.stop(act{cause: CauseTimedOut, detail: "the command's own timeout"}))
		seen, err = x.exec.Wait(context.Background())
	}
	cancel()
	x.setOver()
	x.readers.Wait()
	s.settleDeath(x, seen.Signal)
	x.using.Wait()

	end := composeEnd(seen, x.what())
	if err != nil {
		end = End{Cause: CauseInfrastructure, Detail: "wait for command: " + err.Error()}
		if did := x.what(); did.cause != 0 {
			end.Cause, end.Detail = did.cause, did.detail
		}
	}
	end.Usage.Wall = time.Since(x.started)
	end.Usage.OutputBytes = x.outputBytes()
	if x.wasDropped() {
		end.Detail = joinDetail(end.Detail, "output that the client had not taken was dropped")
	}
	if err := x.exec.Close(); err != nil {
		s.log.Warn("close command", slog.String(keyLease, x.lease.id), slog.String(keyExec, x.id), logError(err))
	}
	s.finishCommand(x, end)
	s.noteFlows(x.lease)
}

func joinDetail(a, b string) string {
	if a == "" {
		return b
	}
	return a + "; " + b
}

// settleDeath gives the news of PID 1's death a moment to arrive.
func (s *Supervisor) settleDeath(x *command, signal int) {
	if signal != sigkill || x.what().cause != 0 {
		return
	}
	timer := time.NewTimer(settle)
	defer timer.Stop()
	select {
	case <-x.lease.theJail().Done():
		x.learn(deathOf(x.lease.theJail()))
	case <-timer.C:
	}
}

// read takes a stream as fast as the subscriber does.
func (s *Supervisor) read(x *command, r io.Reader, stream Stream) {
	buf := make([]byte, chunkBytes)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			allowed, exceeded := x.lease.takeOutput(n)
			x.deliver(stream, slices.Clone(buf[:allowed]))
			if exceeded {
				s.killed(x, x.stop(act{cause: CauseOutputExceeded, detail: "resources.output_bytes is used up"}))
			}
		}
		if err != nil {
			return // end of file; another error ends the stream as well
		}
	}
}

// deliver keeps the chunk in the tail and hands it to the subscriber, if
// there is one, waiting until it is taken.
func (x *command) deliver(stream Stream, chunk []byte) {
	if len(chunk) == 0 {
		return
	}
	x.mu.Lock()
	if stream == StreamStderr {
		x.stderr.add(chunk)
	} else {
		x.stdout.add(chunk)
	}
	sub := x.sub
	x.mu.Unlock()
	if sub == nil {
		return
	}
	select {
	case sub.out <- Output{Stream: stream, Data: chunk}:
	case <-sub.gone: // whoever comes next finds it in the tail
	case <-x.cut:
		x.mu.Lock()
		x.dropped = true
		x.mu.Unlock()
	}
}

// write feeds the command's input. A command that closed its input, or that
// has ended, makes the rest of it disappear, as with a shell's pipe.
func (x *command) write(w io.WriteCloser) {
	defer w.Close() // nothing of ours is lost with it
	var broken bool
	for {
		select {
		case p := <-x.stdin:
			if !broken {
				_, err := w.Write(p)
				broken = err != nil
			}
		case <-x.eof:
			return
		case <-x.over:
			return
		}
	}
}

// stop ends the command because of what a says, if nothing ended it before.
// The first reason stays, but passing the output limit is always told. It
// returns the error of the kill.
func (x *command) stop(a act) error {
	x.mu.Lock()
	if a.cause == CauseOutputExceeded || (x.did.cause == 0 && !x.overSet) {
		x.did = a
	}
	x.mu.Unlock()
	return x.use(Exec.Kill) // of one that has not begun, begin sees to it
}

// learn notes why the command ended, unless that is known.
func (x *command) learn(a act) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.did.cause == 0 {
		x.did = a
	}
}

func (s *Supervisor) killed(x *command, err error) {
	if err != nil {
		s.log.Warn("kill command", slog.String(keyLease, x.lease.id), slog.String(keyExec, x.id), logError(err))
	}
}

// use calls fn unless the command has ended; then there is nothing to do.
func (x *command) use(fn func(Exec) error) error {
	x.mu.Lock()
	if x.overSet || !x.begun {
		x.mu.Unlock()
		return nil
	}
	x.using.Add(1)
	x.mu.Unlock()
	defer x.using.Done()
	return fn(x.exec)
}

func (x *command) what() act {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.did
}

func (x *command) setOver() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.overSet = true
	close(x.over)
}

// cutOff makes the readers stop waiting for a subscriber.
func (x *command) cutOff() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.cutSet {
		x.cutSet = true
		close(x.cut)
	}
}

func (x *command) wasDropped() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.dropped
}

func (x *command) outputBytes() int64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.stdout.total + x.stderr.total
}

// waitDone waits for the end, no longer than ctx.
func (x *command) waitDone(ctx context.Context) {
	select {
	case <-x.done:
	case <-ctx.Done():
	}
}

// finish publishes the end.
func (x *command) finish(end End) {
	x.mu.Lock()
	x.end = end
	x.mu.Unlock()
	close(x.done)
}

// trim gives back what a command that has ended no longer needs.
func (x *command) trim() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stdout.buf, x.stderr.buf = x.stdout.last(), x.stderr.last()
}
