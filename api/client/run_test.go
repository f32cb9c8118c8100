package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cordon/api/apitest"
	"cordon/api/client"
	"cordon/supervisor"
)

// programs is a fake with the commands that these tests run.
func programs() *apitest.Supervisor {
	fake := apitest.NewSupervisor()
	fake.Programs["cat"] = func(p *apitest.Process) supervisor.End {
		if _, err := io.Copy(p.Stdout, p.Stdin); err != nil {
			return apitest.Exit(1)
		}
		return apitest.Exit(0)
	}
	fake.Programs["wait"] = func(p *apitest.Process) supervisor.End {
		<-p.Killed
		return apitest.Exit(0)
	}
	fake.Programs["deaf"] = func(p *apitest.Process) supervisor.End { // to all but signals
		select {
		case sig := <-p.Signals:
			return supervisor.End{Cause: supervisor.CauseSignalled, Signal: sig}
		case <-p.Killed:
			return apitest.Exit(0)
		}
	}
	fake.Programs["tty"] = func(p *apitest.Process) supervisor.End {
		first := apitest.Size{Rows: p.Request.Rows, Cols: p.Request.Cols}
		fmt.Fprint(p.Stdout, p.Request.TTY, first, <-p.Sizes, <-p.Sizes)
		return apitest.Exit(0)
	}
	fake.Programs["yes"] = func(p *apitest.Process) supervisor.End {
		for {
			if _, err := io.WriteString(p.Stdout, "y\n"); err != nil {
				return apitest.Exit(1)
			}
		}
	}
	return fake
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestRun(t *testing.T) {
	fake := programs()
	fake.Programs["say"] = func(p *apitest.Process) supervisor.End {
		r := p.Request
		fmt.Fprint(p.Stdout, r.Argv, r.Env, r.Cwd, r.Timeout)
		fmt.Fprint(p.Stderr, "err")
		end := apitest.Exit(3)
		end.Usage.OutputBytes, end.Usage.Wall, end.Descendants = 7, time.Second, 2
		return end
	}
	l := acquire(t, connect(t, fake, nil))
	var stdout, stderr bytes.Buffer
	var id string
	end, err := l.Run(within(t, 10*time.Second), client.Command{
		Argv: []string{"say", "a b"}, Env: []string{"A=1"}, Cwd: "/tmp", Timeout: time.Minute,
		Stdout: &stdout, Stderr: &stderr, Started: func(s string) { id = s },
	})
	if err != nil {
		t.Fatal(err)
	}
	want := client.End{
		Cause: client.Exited, ExitCode: 3, Witness: "kernel", DescendantsAlive: 2,
		Usage: client.Usage{OutputBytes: 7, Wall: time.Second},
	}
	if diff := cmp.Diff(want, end); diff != "" {
		t.Errorf("end (-want +got):\n%s", diff)
	}
	if stdout.String() != "[say a b] [A=1]/tmp1m0s" || stderr.String() != "err" || id != "e-1" {
		t.Errorf("stdout %q, stderr %q, id %q", stdout.String(), stderr.String(), id)
	}
}

func TestRunNotFound(t *testing.T) {
	end, err := acquire(t, connect(t, programs(), nil)).Run(within(t, 10*time.Second), client.Command{Argv: []string{"no-such"}})
	if err != nil || end.ExitStatus() != 127 || end.OK() {
		t.Errorf("got %+v, %v; want 127", end, err)
	}
}

// 50 MB each way, through every queue and window there is.
func TestRunEcho(t *testing.T) {
	const size = 50 << 20
	l := acquire(t, connect(t, programs(), nil))
	sent, got := sha256.New(), sha256.New()
	count := &counter{}
	end, err := l.Run(within(t, time.Minute), client.Command{
		Argv:   []string{"cat"},
		Stdin:  io.TeeReader(io.LimitReader(&pattern{}, size), sent),
		Stdout: io.MultiWriter(got, count),
	})
	if err != nil || !end.OK() {
		t.Fatalf("got %+v, %v", end, err)
	}
	if count.n != size || !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		t.Errorf("%d bytes came back, want %d and the same", count.n, size)
	}
}

type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

// pattern is an endless reader without a short period.
type pattern struct{ n uint64 }

func (p *pattern) Read(b []byte) (int, error) {
	for i := range b {
		p.n = p.n*6364136223846793005 + 1442695040888963407
		b[i] = byte(p.n >> 56)
	}
	return len(b), nil
}

// A command that reads nothing still gets its signal, however much input
// waits for it.
func TestSignalOvertakesInput(t *testing.T) {
	l := acquire(t, connect(t, programs(), nil))
	signals := make(chan os.Signal, 1)
	stdin := &pattern{}
	// Once nothing has been read for a while, all queues are full.
	stuck := time.AfterFunc(time.Hour, func() { signals <- syscall.SIGINT })
	defer stuck.Stop()
	end, err := l.Run(within(t, 20*time.Second), client.Command{
		Argv: []string{"deaf"},
		Stdin: readerFunc(func(b []byte) (int, error) {
			stuck.Reset(200 * time.Millisecond)
			return stdin.Read(b)
		}),
		Signals: signals,
	})
	if err != nil || end.Signal != int(syscall.SIGINT) || end.ExitStatus() != 130 {
		t.Errorf("got %+v, %v; want SIGINT", end, err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// A terminal that nobody types on must not hold up the end.
func TestRunDoesNotWaitForStdin(t *testing.T) {
	r, w := io.Pipe()
	defer w.Close()
	fake := programs()
	fake.Programs["true"] = func(*apitest.Process) supervisor.End { return apitest.Exit(0) }
	end, err := acquire(t, connect(t, fake, nil)).Run(within(t, 10*time.Second), client.Command{Argv: []string{"true"}, Stdin: r})
	if err != nil || !end.OK() {
		t.Errorf("got %+v, %v", end, err)
	}
}

func TestRunTerminal(t *testing.T) {
	l := acquire(t, connect(t, programs(), nil))
	resize := make(chan client.Size, 2)
	resize <- client.Size{Rows: 30, Cols: 100}
	resize <- client.Size{Rows: 31, Cols: 101}
	close(resize)
	var out bytes.Buffer
	end, err := l.Run(within(t, 10*time.Second), client.Command{
		Argv: []string{"tty"}, TTY: true, Size: client.Size{Rows: 24, Cols: 80}, Resize: resize, Stdout: &out,
	})
	if err != nil || !end.OK() || out.String() != "true {24 80} {30 100} {31 101}" {
		t.Errorf("got %q, %+v, %v", out.String(), end, err)
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	fake := programs()
	l := acquire(t, connect(t, fake, nil))
	ctx, cancel := context.WithCancel(t.Context())
	_, err := l.Run(ctx, client.Command{Argv: []string{"wait"}, Started: func(string) { cancel() }})
	if !errors.Is(err, context.Canceled) || client.CodeOf(err) != client.Cancelled {
		t.Errorf("got %v, want cancelled", err)
	}
	waitForEnd(t, l, "cancelled")
}

// waitForEnd polls until the lease's only command has ended.
func waitForEnd(t *testing.T, l *client.Lease, cause client.Cause) {
	t.Helper()
	ctx := within(t, 10*time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		info, err := l.Get(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if x := info.Execs; len(x) > 0 && !x[0].Running {
			if x[0].End.Cause != cause {
				t.Errorf("the command ended as %v, want %v", x[0].End.Cause, cause)
			}
			return
		}
		<-tick.C
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }

// As in "cordon run yes | head -1": nobody reads on, so the command ends.
func TestRunStdoutFails(t *testing.T) {
	l := acquire(t, connect(t, programs(), nil))
	_, err := l.Run(within(t, 10*time.Second), client.Command{Argv: []string{"yes"}, Stdout: failing{syscall.EPIPE}})
	if !errors.Is(err, syscall.EPIPE) {
		t.Errorf("got %v, want EPIPE", err)
	}
	waitForEnd(t, l, "cancelled")
}

func TestRunStdinFails(t *testing.T) {
	l := acquire(t, connect(t, programs(), nil))
	boom := errors.New("boom")
	started := make(chan struct{})
	_, err := l.Run(within(t, 10*time.Second), client.Command{
		Argv: []string{"cat"}, Started: func(string) { close(started) },
		Stdin: readerFunc(func([]byte) (int, error) {
			<-started
			return 0, boom
		}),
	})
	if !errors.Is(err, boom) {
		t.Errorf("got %v, want the reader's error", err)
	}
	waitForEnd(t, l, "cancelled")
}

func TestRunArgvTooLong(t *testing.T) {
	l := acquire(t, connect(t, programs(), nil))
	_, err := l.Run(t.Context(), client.Command{Argv: []string{"cat", strings.Repeat("x", 2<<20)}})
	var e *client.Error
	if !errors.As(err, &e) || e.Code != client.TooLarge || e.Field != "argv" {
		t.Errorf("got %v, want too_large about argv", err)
	}
}

// Keep lets a command outlive its caller, and Attach finds it again.
func TestKeepAndAttach(t *testing.T) {
	l := acquire(t, connect(t, programs(), nil))
	ctx, leave := context.WithCancel(t.Context())
	var id string
	_, err := l.Run(ctx, client.Command{Argv: []string{"cat"}, Keep: true, Stdin: neverEnding(t), Started: func(s string) {
		id = s
		leave()
	}})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v, want cancelled", err)
	}
	var out bytes.Buffer
	end, err := l.Attach(within(t, 10*time.Second), id, client.Streams{Stdin: strings.NewReader("hello"), Stdout: &out})
	if err != nil || !end.OK() || out.String() != "hello" {
		t.Errorf("attached: %q, %+v, %v", out.String(), end, err)
	}
	if _, err := l.Attach(t.Context(), "e-99", client.Streams{}); client.CodeOf(err) != client.NotFound {
		t.Errorf("no such command: %v", err)
	}
}

func neverEnding(t *testing.T) io.Reader {
	t.Helper()
	r, w := io.Pipe()
	t.Cleanup(func() { w.Close() })
	return r
}

// The newer of two clients has the command; the older learns why it lost it.
func TestAttachTakesOver(t *testing.T) {
	l := acquire(t, connect(t, programs(), nil))
	started := make(chan string, 1)
	lost := make(chan error, 1)
	go func() {
		_, err := l.Run(t.Context(), client.Command{Argv: []string{"deaf"}, Started: func(s string) { started <- s }})
		lost <- err
	}()
	signals := make(chan os.Signal, 1)
	done := make(chan client.End, 1)
	id := <-started
	go func() {
		end, err := l.Attach(t.Context(), id, client.Streams{Signals: signals})
		if err != nil {
			t.Error(err)
		}
		done <- end
	}()
	if err := <-lost; client.CodeOf(err) != client.Conflict {
		t.Errorf("the older got %v, want conflict", err)
	}
	signals <- syscall.SIGTERM
	if end := <-done; end.Signal != int(syscall.SIGTERM) {
		t.Errorf("the newer got %+v, want SIGTERM", end)
	}
}

func TestDaemonGoesAway(t *testing.T) {
	// The inner test's end stops the daemon while the command runs.
	started := make(chan struct{})
	result := make(chan error, 1)
	t.Run("daemon", func(t *testing.T) {
		c, err := client.Dial(t.Context(), apitest.Start(t, programs(), nil))
		if err != nil {
			t.Fatal(err)
		}
		l := acquire(t, c)
		go func() {
			_, err := l.Run(context.Background(), client.Command{Argv: []string{"wait"}, Started: func(string) { close(started) }})
			result <- err
			c.Close()
		}()
		<-started
	})
	if err := <-result; client.CodeOf(err) != client.Unavailable && client.CodeOf(err) != client.Cancelled {
		t.Errorf("got %v, want unavailable", err)
	}
}

// A finished Run leaves no goroutine behind.
func TestRunLeavesNoGoroutines(t *testing.T) {
	l := acquire(t, connect(t, programs(), nil))
	run := func() {
		var out bytes.Buffer
		if _, err := l.Run(t.Context(), client.Command{Argv: []string{"cat"}, Stdin: strings.NewReader("x"), Stdout: &out}); err != nil || out.String() != "x" {
			t.Fatalf("%q, %v", out.String(), err)
		}
	}
	run()
	before := runtime.NumGoroutine()
	for range 50 {
		run()
	}
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for runtime.NumGoroutine() > before+2 { // the last call's own may be ending
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

func TestExitStatus(t *testing.T) {
	for _, tt := range []struct {
		end  client.End
		want int
	}{
		{client.End{Cause: client.Exited}, 0},
		{client.End{Cause: client.Exited, ExitCode: 3}, 3},
		{client.End{Cause: client.Signalled, Signal: 9}, 137},
		{client.End{Cause: client.Exited, ExitCode: 126, StartCode: 126}, 126},
		{client.End{Cause: client.Infrastructure, StartCode: 125}, 125},
		{client.End{Cause: client.TimedOut}, 125},
		{client.End{}, 125},
	} {
		if got := tt.end.ExitStatus(); got != tt.want {
			t.Errorf("%+v is %d, want %d", tt.end, got, tt.want)
		}
	}
}
