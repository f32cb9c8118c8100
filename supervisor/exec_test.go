package supervisor

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"cordon/internal/fault"
	"cordon/jail"
	"cordon/supervisor/envelope"
	"cordon/supervisor/evidence"
)

func TestExecRequestChecked(t *testing.T) {
	long := strings.Repeat("x", mostArgument)
	tests := []struct {
		name  string
		in    ExecRequest
		want  fault.Code
		field string
	}{
		{"plain", ExecRequest{Argv: []string{"ls", ""}}, "", ""},
		{"longest argument", ExecRequest{Argv: []string{"echo", long}}, "", ""},
		{"no argv", ExecRequest{}, fault.InvalidArgument, "argv"},
		{"empty command", ExecRequest{Argv: []string{""}}, fault.InvalidArgument, "argv"},
		{"zero byte", ExecRequest{Argv: []string{"a", "b\x00"}}, fault.InvalidArgument, "argv[1]"},
		{"argument too long", ExecRequest{Argv: []string{"echo", long + "x"}}, fault.TooLarge, "argv[1]"},
		{"line too long", ExecRequest{Argv: []string{"echo", long, long, long, long, long, long, long, long}}, fault.TooLarge, "argv"},
		{"too many arguments", ExecRequest{Argv: append([]string{"x"}, make([]string, 200_000)...)}, fault.TooLarge, "argv"},
		{"env", ExecRequest{Argv: []string{"a"}, Env: []string{"A=1", "_b2=", "C=x=y"}}, "", ""},
		{"env without =", ExecRequest{Argv: []string{"a"}, Env: []string{"A"}}, fault.InvalidArgument, "env[0]"},
		{"env without name", ExecRequest{Argv: []string{"a"}, Env: []string{"=1"}}, fault.InvalidArgument, "env[0]"},
		{"env with a digit first", ExecRequest{Argv: []string{"a"}, Env: []string{"1A=1"}}, fault.InvalidArgument, "env[0]"},
		{"env with a newline in the name", ExecRequest{Argv: []string{"a"}, Env: []string{"A\n=1"}}, fault.InvalidArgument, "env[0]"},
		{"env with a zero byte", ExecRequest{Argv: []string{"a"}, Env: []string{"A=\x00"}}, fault.InvalidArgument, "env[0]"},
		{"env twice", ExecRequest{Argv: []string{"a"}, Env: []string{"A=1", "A=2"}}, fault.InvalidArgument, "env[1]"},
		{"env too long", ExecRequest{Argv: []string{"a"}, Env: []string{"A=" + long}}, fault.TooLarge, "env[0]"},
		{"relative cwd", ExecRequest{Argv: []string{"a"}, Cwd: "tmp"}, fault.InvalidArgument, "cwd"},
		{"cwd with a zero byte", ExecRequest{Argv: []string{"a"}, Cwd: "/\x00"}, fault.InvalidArgument, "cwd"},
		{"cwd too long", ExecRequest{Argv: []string{"a"}, Cwd: "/" + long}, fault.InvalidArgument, "cwd"},
		{"negative timeout", ExecRequest{Argv: []string{"a"}, Timeout: -1}, fault.InvalidArgument, "timeout"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := tt.in.checked()
			if fault.CodeOf(err) != tt.want {
				t.Fatalf("got %v, want code %q", err, tt.want)
			}
			var f *fault.Fault
			if errors.As(err, &f) && f.Field != tt.field {
				t.Errorf("field: got %q, want %q", f.Field, tt.field)
			}
		})
	}
	got, err := ExecRequest{Argv: []string{"a"}, TTY: true}.checked()
	if err != nil || got.Cwd != "/workspace" || got.Rows != 24 || got.Cols != 80 {
		t.Errorf("defaults: %+v, %v", got, err)
	}
}

func TestExec(t *testing.T) {
	tests := []struct {
		argv           []string
		stdout, stderr string
		want           End
	}{
		{[]string{"echo", "hello", "there"}, "hello there\n", "", End{Cause: CauseExited, Witness: "kernel"}},
		{[]string{"both"}, "out", "err", End{Cause: CauseExited, Witness: "kernel"}},
		{[]string{"exit", "3"}, "", "", End{Cause: CauseExited, ExitCode: 3, Witness: "kernel"}},
		{[]string{"oom"}, "", "", End{Cause: CauseOOMKilled, Witness: "kernel"}},
		{[]string{"sigsys"}, "", "", End{Cause: CauseSeccompKilled, Witness: "kernel"}},
		{[]string{"kill-self"}, "", "", End{Cause: CauseSignalled, Signal: 9, Witness: "kernel"}},
		{[]string{"missing"}, "", "", End{Cause: CauseExited, ExitCode: 127, StartCode: 127, Witness: "init", Detail: "start command: lookup: no such command"}},
	}
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		for _, tt := range tests {
			s := h.exec(ref, ExecRequest{Argv: tt.argv})
			stdout, stderr, end := h.drain(s)
			if end.Usage.OutputBytes != int64(len(tt.stdout)+len(tt.stderr)) {
				t.Errorf("%s: counted %d bytes", tt.argv[0], end.Usage.OutputBytes)
			}
			end.Usage = Usage{}
			if stdout != tt.stdout || stderr != tt.stderr || end != tt.want {
				t.Errorf("%s: got %q, %q, %+v, want %+v", tt.argv[0], stdout, stderr, end, tt.want)
			}
		}
		info, err := h.sup.Get(t.Context(), owner, ref)
		if err != nil || len(info.Execs) != len(tests) || info.Execs[2].End.ExitCode != 3 || info.Execs[2].Running {
			t.Errorf("get: %+v, %v", info.Execs, err)
		}
		rec := h.release(ref).Record
		for i, x := range rec.Execs {
			if x.Argv0 != tests[i].argv[0] || x.End.Cause != tests[i].want.Cause.String() || x.ID != fmt.Sprintf("e-%d", i+1) {
				t.Errorf("record has %+v", x)
			}
		}
		if strings.Contains(string(mustRecord(h, ref)), "hello") {
			t.Error("the record holds an argument")
		}
		info, err = h.sup.Get(t.Context(), owner, ref)
		if err != nil || len(info.Execs) != len(tests) || info.Execs[3].End.Cause != CauseOOMKilled {
			t.Errorf("get after release: %+v, %v", info.Execs, err)
		}
	})
}

func mustRecord(h *harness, ref Ref) []byte {
	rec, err := h.sup.Record(h.t.Context(), owner, ref.ID)
	if err != nil {
		h.t.Fatal(err)
	}
	return rec.JSON
}

func TestExecStartFails(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		boom := errors.New("boom")
		h.host.failAt("jail.exec", boom)
		if _, err := h.sup.Exec(t.Context(), owner, ref, ExecRequest{Argv: []string{"true"}}); !errors.Is(err, boom) {
			t.Errorf("got %v", err)
		}
		rec := h.release(ref).Record
		if len(rec.Execs) != 1 || rec.Execs[0].End.StartCode != 125 || rec.Execs[0].End.Cause != "infrastructure" {
			t.Errorf("record has %+v", rec.Execs)
		}
	})
}

func TestExecTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		began := time.Now()
		s := h.exec(ref, ExecRequest{Argv: []string{"sleep", "100"}, Timeout: 5 * time.Second})
		_, _, end := h.drain(s)
		if end.Cause != CauseTimedOut || time.Since(began) != 5*time.Second || end.Usage.Wall != 5*time.Second {
			t.Errorf("got %+v after %s", end, time.Since(began))
		}
		s = h.exec(ref, ExecRequest{Argv: []string{"sleep", "1"}, Timeout: 5 * time.Second})
		if _, _, end := h.drain(s); end.Cause != CauseExited {
			t.Errorf("in time: got %+v", end)
		}
	})
}

func TestExecLimit(t *testing.T) {
	bubbleWith(t, func(c *Config) { c.MaxExecs = 2 }, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		a := h.exec(ref, ExecRequest{Argv: []string{"sleep", "10"}})
		h.exec(ref, ExecRequest{Argv: []string{"sleep", "20"}})
		_, err := h.sup.Exec(t.Context(), owner, ref, ExecRequest{Argv: []string{"true"}})
		wantCode(t, "third", err, fault.TooLarge)
		h.drain(a)
		h.drain(h.exec(ref, ExecRequest{Argv: []string{"true"}}))
	})
}

// TestRecordIsBounded: a lease that did the most of everything, in the most
// unfortunate bytes, can still be sealed, and its record verified.
func TestRecordIsBounded(t *testing.T) {
	worst := strings.Repeat("\x01", 10*mostText)
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		at, _ := h.sup.lookUp(ref.ID)
		l := at.live
		l.mu.Lock()
		for range mostListed {
			l.execs = append(l.execs, evidence.Exec{ID: "e-0", Argv0: clipTo(worst, mostArgv0), ArgvDigest: testImage})
			l.exports = append(l.exports, evidence.Export{Path: clipTo(worst, 255), Digest: testImage})
		}
		for i := range l.execs {
			l.execs[i].End = recordEnd(End{Cause: CauseExited, Detail: clipTo(worst, mostExecDetail)})
		}
		l.entry.ReadBack = slices.Repeat([]jail.Check{{Name: worst, Want: worst, Got: worst, OK: true}}, 100)
		l.mu.Unlock()
		h.host.set(func(f *fakeHost) { f.leftovers = slices.Repeat([]string{worst}, 10_000) })
		h.drain(h.exec(ref, ExecRequest{Argv: []string{"echo", "x"}}))
		_, err := h.export(ref, "result.json", io.Discard)
		wantCode(t, "export", err, fault.NotFound)
		h.artifact("x")
		_, err = h.export(ref, "result.json", io.Discard)
		wantCode(t, "one export too many", err, fault.TooLarge)

		rec := h.release(ref).Record
		if len(rec.Execs) != mostListed || rec.ExecsUnlisted != 1 || len(rec.Gaps) == 0 || len(rec.Exports) != mostListed {
			t.Errorf("%d listed, %d not, gaps %v", len(rec.Execs), rec.ExecsUnlisted, rec.Gaps)
		}
		if left := rec.Cleanup.Items[0].Leftovers; len(left) != mostTexts+1 || left[mostTexts] != "and 9936 more" {
			t.Errorf("%d leftovers, the last is %q", len(left), left[len(left)-1])
		}
		h.host.set(func(f *fakeHost) { f.leftovers = nil })
	})
}

func TestNetworkOfIsBounded(t *testing.T) {
	list := make([]Destination, mostListed+10)
	for i := range list {
		list[i].Count = 2
	}
	n := networkOf(Flows{Denied: 1 << 60, Unlisted: 5, Destinations: list})
	if len(n.Destinations) != mostListed || n.Unlisted != 25 || n.Denied != mostExact {
		t.Errorf("%d listed, %d not, %d denied", len(n.Destinations), n.Unlisted, n.Denied)
	}
}

func TestOutputLimit(t *testing.T) {
	tests := []struct {
		name  string
		bytes int
		want  EndCause
	}{
		{"below", 8191, CauseExited},
		{"equal", 8192, CauseExited},
		{"one above", 8193, CauseOutputExceeded},
		{"far above", 100_000, CauseOutputExceeded},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *harness) {
				_, ref := h.acquire("k", func(e *envelope.Envelope) { e.Resources.OutputBytes = 8192 })
				s := h.exec(ref, ExecRequest{Argv: []string{"yes", fmt.Sprint(tt.bytes)}})
				stdout, _, end := h.drain(s)
				if len(stdout) != min(tt.bytes, 8192) || end.Cause != tt.want {
					t.Errorf("got %d bytes, %+v", len(stdout), end)
				}
				if tt.bytes >= 8192 { // nothing is left for the next
					stdout, _, end = h.drain(h.exec(ref, ExecRequest{Argv: []string{"echo"}}))
					if stdout != "" || end.Cause != CauseOutputExceeded {
						t.Errorf("next command: got %q, %+v", stdout, end)
					}
				}
				if got := h.release(ref).Record.Usage.OutputBytes; got != int64(min(tt.bytes, 8192)) {
					t.Errorf("record counts %d", got)
				}
			})
		})
	}
}

// TestStdinToStdout sends half a gigabyte through a command that echoes it,
// with a reader and a writer that know nothing of each other.
func TestStdinToStdout(t *testing.T) {
	total := int64(500 << 20)
	if testing.Short() {
		total = 16 << 20
	}
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k", func(e *envelope.Envelope) { e.Resources.OutputBytes = 1 << 30 })
		s := h.exec(ref, ExecRequest{Argv: []string{"cat"}})
		sent, got := sha256.New(), sha256.New()
		go func() {
			chunk := make([]byte, 64<<10)
			for left := total; left > 0; left -= int64(len(chunk)) {
				chunk[0], chunk[len(chunk)-1] = byte(left>>16), byte(left>>24)
				sent.Write(chunk)
				if err := s.Write(t.Context(), chunk); err != nil {
					t.Errorf("write: %v", err)
					break
				}
			}
			if err := s.CloseStdin(); err != nil {
				t.Errorf("close: %v", err)
			}
		}()
		var n int64
		for {
			o, err := s.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if o.Stream == StreamEnd {
				if o.End.Cause != CauseExited || o.End.Usage.OutputBytes != total {
					t.Errorf("end %+v", o.End)
				}
				break
			}
			got.Write(o.Data)
			n += int64(len(o.Data))
		}
		if n != total || string(sent.Sum(nil)) != string(got.Sum(nil)) {
			t.Errorf("got %d bytes of %d, same: %v", n, total, string(sent.Sum(nil)) == string(got.Sum(nil)))
		}
	})
}

func TestStdinAfterTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		s := h.exec(ref, ExecRequest{Argv: []string{"exit", "0"}})
		synctest.Wait()
		for range 3 {
			if err := s.Write(t.Context(), []byte("late")); err != nil {
				t.Errorf("write: %v", err)
			}
		}
		if err := errors.Join(s.CloseStdin(), s.Signal(15)); err != nil {
			t.Errorf("after the end: %v", err)
		}
		if _, _, end := h.drain(s); end.Cause != CauseExited {
			t.Errorf("end %+v", end)
		}
	})
}

// TestStdinNobodyReads: a writer that the command lets wait can give up, and
// the end of the command frees it.
func TestStdinNobodyReads(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		s := h.exec(ref, ExecRequest{Argv: []string{"sleep", "10"}})
		if err := s.Write(t.Context(), []byte("first: the pipe's")); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Write(ctx, []byte("second")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		began := time.Now()
		if err := s.Write(t.Context(), []byte("third")); err != nil || time.Since(began) != 9*time.Second {
			t.Errorf("got %v after %s", err, time.Since(began))
		}
		if err := s.CloseStdin(); err != nil {
			t.Error(err)
		}
		wantCode(t, "write after close", s.Write(t.Context(), []byte("x")), fault.WrongState)
		h.drain(s)
	})
}

func TestTerminal(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		s := h.exec(ref, ExecRequest{Argv: []string{"sleep", "1"}, TTY: true, Rows: 50, Cols: 132})
		x := h.jailOf(ref.ID).exec("e-1")
		if err := errors.Join(s.Resize(30, 90), s.Signal(2), s.Signal(64)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]int{2, 64}, x.signals); diff != "" || x.size != [2]uint16{30, 90} || x.spec.Rows != 50 {
			t.Errorf("got %v, %v, %+v", x.signals, x.size, x.spec)
		}
		wantCode(t, "signal 0", s.Signal(0), fault.InvalidArgument)
		wantCode(t, "signal 65", s.Signal(65), fault.InvalidArgument)
		wantCode(t, "no size", s.Resize(0, 80), fault.InvalidArgument)
		h.drain(s)
		plain := h.exec(ref, ExecRequest{Argv: []string{"sleep", "1"}})
		wantCode(t, "resize without a terminal", plain.Resize(1, 1), fault.InvalidArgument)
		h.drain(plain)
	})
}

// TestSlowSubscriber: the command is read as fast as its client takes, so
// that memory stays bounded and nothing is lost.
func TestSlowSubscriber(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		s := h.exec(ref, ExecRequest{Argv: []string{"yes", "1000000"}})
		until(time.Minute)
		x := h.jailOf(ref.ID).exec("e-1")
		x.mu.Lock()
		ahead := x.written
		x.mu.Unlock()
		if ahead > 2*chunkBytes {
			t.Errorf("%d bytes were read of a command whose client takes none", ahead)
		}
		stdout, _, end := h.drain(s)
		if len(stdout) != 1_000_000 || end.Cause != CauseExited {
			t.Errorf("got %d bytes, %+v", len(stdout), end)
		}
	})
}

func TestClientGone(t *testing.T) {
	for _, keep := range []bool{false, true} {
		for _, how := range []string{"detach", "context"} {
			t.Run(fmt.Sprint(how, " keep ", keep), func(t *testing.T) {
				bubble(t, func(t *testing.T, h *harness) {
					_, ref := h.acquire("k")
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					s, err := h.sup.Exec(ctx, owner, ref, ExecRequest{Argv: []string{"sleep", "10"}, Keep: keep})
					if err != nil {
						t.Fatal(err)
					}
					if _, err := s.Next(ctx); err != nil {
						t.Fatal(err)
					}
					if how == "context" {
						cancel()
					} else {
						s.Detach()
						s.Detach()
					}
					until(time.Second)
					if _, err := s.Next(t.Context()); fault.CodeOf(err) != fault.WrongState {
						t.Errorf("next: got %v", err)
					}
					wantCode(t, "write", s.Write(t.Context(), []byte("x")), fault.WrongState)
					info, _ := h.sup.Get(t.Context(), owner, ref)
					if info.Execs[0].Running != keep {
						t.Errorf("running: %v", info.Execs[0].Running)
					}
					until(10 * time.Second)
					want := map[bool]string{false: "cancelled", true: "exited"}[keep]
					if got := h.release(ref).Record.Execs[0].End.Cause; got != want {
						t.Errorf("end %q, want %q", got, want)
					}
				})
			})
		}
	}
}

func TestAttachReplaysAndTakesOver(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		older := h.exec(ref, ExecRequest{Argv: []string{"cat"}})
		next := func(s *Session) string {
			o, err := s.Next(t.Context())
			if err != nil {
				t.Fatalf("next: %v", err)
			}
			return string(o.Data)
		}
		next(older) // started
		if err := older.Write(t.Context(), []byte("one")); err != nil {
			t.Fatal(err)
		}
		if got := next(older); got != "one" {
			t.Errorf("got %q", got)
		}
		// The older client has this chunk coming, and never takes it.
		if err := older.Write(t.Context(), []byte("two")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()

		newer, err := h.sup.Attach(t.Context(), owner, ref, "e-1")
		if err != nil {
			t.Fatal(err)
		}
		_, err = older.Next(t.Context())
		wantCode(t, "older next", err, fault.Conflict)
		wantCode(t, "older write", older.Write(t.Context(), []byte("no")), fault.Conflict)
		wantCode(t, "older close", older.CloseStdin(), fault.Conflict)
		wantCode(t, "older signal", older.Signal(15), fault.Conflict)
		older.Detach() // must not end the command of another client

		if next(newer) != "" { // started
			t.Error("first output is not started")
		}
		if got := next(newer); got != "onetwo" {
			t.Errorf("replayed %q", got)
		}
		if err := errors.Join(newer.Write(t.Context(), []byte("three")), newer.CloseStdin()); err != nil {
			t.Fatal(err)
		}
		rest, _, end := h.drain(newer)
		if rest != "three" || end.Cause != CauseExited {
			t.Errorf("got %q, %+v", rest, end)
		}
	})
}

func TestAttachToWhatNobodyWatched(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		s := h.exec(ref, ExecRequest{Argv: []string{"yes", fmt.Sprint(tailBytes + 5000)}, Keep: true})
		s.Detach()
		until(time.Second)
		got, err := h.sup.Attach(t.Context(), owner, ref, "e-1")
		if err != nil {
			t.Fatal(err)
		}
		stdout, _, end := h.drain(got)
		if len(stdout) != tailBytes || end.Cause != CauseExited || end.Usage.OutputBytes != tailBytes+5000 {
			t.Errorf("got %d bytes, %+v", len(stdout), end)
		}
		_, err = h.sup.Attach(t.Context(), owner, ref, "e-2")
		wantCode(t, "unknown command", err, fault.NotFound)
		h.drain(h.exec(ref, ExecRequest{Argv: []string{"true"}}))
		_, err = h.sup.Attach(t.Context(), owner, ref, "e-2")
		wantCode(t, "ended without keep", err, fault.WrongState)
		for range mostFinished {
			h.drain(h.exec(ref, ExecRequest{Argv: []string{"true"}, Keep: true}))
		}
		_, err = h.sup.Attach(t.Context(), owner, ref, "e-1")
		wantCode(t, "ended long ago", err, fault.WrongState)
	})
}

func TestTail(t *testing.T) {
	var x tail
	var all strings.Builder
	for i := range 3000 {
		p := fmt.Sprintf("%0777d", i)
		all.WriteString(p)
		x.add([]byte(p))
	}
	if got, want := string(x.last()), all.String()[all.Len()-tailBytes:]; got != want || x.total != int64(all.Len()) {
		t.Errorf("got %d bytes of %d", len(got), x.total)
	}
	if cap(x.buf) > 3*tailBytes {
		t.Errorf("holds %d bytes", cap(x.buf))
	}
}

func TestNextAfterCancelledContext(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		s := h.exec(ref, ExecRequest{Argv: []string{"sleep", "1"}})
		if _, err := s.Next(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		h.drain(s) // nothing was lost
		if _, err := s.Next(t.Context()); !errors.Is(err, io.EOF) {
			t.Errorf("got %v", err)
		}
	})
}

// TestEndComesBeforeTheStart: a command that the jail starts after its lease's
// end has begun is ended at once, and one that has no place yet gets none.
func TestEndComesBeforeTheStart(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		at, err := h.sup.lookUp(ref.ID)
		if err != nil {
			t.Fatal(err)
		}
		x, session, err := at.live.admitCommand(ExecRequest{Argv: []string{"sleep", "100"}}, 64)
		if err != nil {
			t.Fatal(err)
		}
		if err := x.stop(act{cause: CauseLeaseExpired}); err != nil {
			t.Fatal(err)
		}
		exec := newFakeExec(jail.ExecSpec{})
		go exec.run([]string{"sleep", "100"})
		h.sup.begin(x, exec)
		if _, _, end := h.drain(session); end.Cause != CauseLeaseExpired || end.Usage.Wall != 0 {
			t.Errorf("got %+v", end)
		}
		h.release(ref)
		_, _, err = at.live.admitCommand(ExecRequest{Argv: []string{"a"}}, 64)
		wantCode(t, "after the end", err, fault.WrongState)
	})
}

// TestExecUnderWayAtTheEnd: a start that hangs does not outlive its lease.
func TestExecUnderWayAtTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		if err := h.jailOf(ref.ID).Freeze(t.Context()); err != nil { // starts nothing
			t.Fatal(err)
		}
		failed := make(chan error, 1)
		go func() {
			_, err := h.sup.Exec(t.Context(), owner, ref, ExecRequest{Argv: []string{"true"}})
			failed <- err
		}()
		synctest.Wait()
		rec := h.release(ref).Record
		wantCode(t, "exec", <-failed, fault.WrongState)
		if len(rec.Execs) != 1 || rec.Execs[0].End.Cause != "cancelled" || rec.Execs[0].End.StartCode != 125 {
			t.Errorf("record has %+v", rec.Execs)
		}
	})
}
