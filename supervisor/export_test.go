package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cordon/internal/fault"
	"cordon/supervisor/evidence"
)

func (h *harness) export(ref Ref, path string, to io.Writer) (Exported, error) {
	return h.sup.Export(h.t.Context(), owner, ref, path, func(int64) (io.Writer, error) { return to, nil })
}

func TestExport(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		h.artifact("{}")
		var out bytes.Buffer
		var size int64
		got, err := h.sup.Export(t.Context(), owner, ref, "result.json", func(n int64) (io.Writer, error) {
			size = n
			if !h.jailOf(ref.ID).isFrozen() {
				t.Error("copied while thawed")
			}
			return &out, nil
		})
		const digest = "sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
		if err != nil || got != (Exported{Path: "result.json", Size: 2, Digest: digest}) || size != 2 || out.String() != "{}" {
			t.Errorf("got %+v, size %d, %q, %v", got, size, out.String(), err)
		}
		if h.jailOf(ref.ID).isFrozen() {
			t.Error("frozen after the export")
		}
		_, err = h.export(ref, "big.bin", io.Discard)
		wantCode(t, "not written", err, fault.NotFound)
		for _, path := range []string{"", "other", "./result.json", "/result.json", "../result.json", "result.json/"} {
			_, err := h.export(ref, path, io.Discard)
			wantCode(t, path, err, fault.NotDeclared)
		}
		rec := h.release(ref).Record
		if len(rec.Exports) != 1 {
			t.Fatalf("record has %+v", rec.Exports)
		}
		want := evidence.Export{Path: "result.json", Complete: true, Bytes: 2, Digest: digest, Scan: "not_performed", At: rec.Exports[0].At}
		if rec.Exports[0] != want {
			t.Errorf("record has %+v", rec.Exports[0])
		}
	})
}

type failingWriter struct{ after int }

func (w *failingWriter) Write(p []byte) (int, error) {
	n := min(w.after, len(p))
	w.after -= n
	if n < len(p) {
		return n, errors.New("client gone")
	}
	return n, nil
}

// TestExportBreaksOff: what left is on record, whatever stopped it, and the
// lease goes on.
func TestExportBreaksOff(t *testing.T) {
	boom := errors.New("boom")
	tests := []struct {
		name  string
		at    string
		to    io.Writer
		begin error
		bytes int64
		lists int
	}{
		{name: "freeze", at: "jail.freeze", to: io.Discard},
		{name: "open", at: "jail.open", to: io.Discard},
		{name: "begin", begin: boom, lists: 1},
		{name: "client", to: &failingWriter{after: 3}, bytes: 7, lists: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, h *harness) {
				_, ref := h.acquire("k")
				h.artifact("content")
				if tt.at != "" {
					h.host.failAt(tt.at, boom)
				}
				got, err := h.sup.Export(t.Context(), owner, ref, "result.json", func(int64) (io.Writer, error) { return tt.to, tt.begin })
				if err == nil || got.Digest != "" {
					t.Errorf("got %+v, %v", got, err)
				}
				if h.jailOf(ref.ID).isFrozen() {
					t.Error("frozen after the export")
				}
				h.host.failAt(tt.at, nil)
				h.drain(h.exec(ref, ExecRequest{Argv: []string{"true"}}))
				rec := h.release(ref).Record
				if len(rec.Exports) != tt.lists {
					t.Fatalf("record has %+v", rec.Exports)
				}
				for _, x := range rec.Exports {
					if x.Complete || x.Digest != "" || x.Bytes != tt.bytes {
						t.Errorf("record has %+v", x)
					}
				}
			})
		})
	}
}

// stuckWriter is a client that takes nothing more.
type stuckWriter struct{ stuck, free chan struct{} }

func (w *stuckWriter) Write(p []byte) (int, error) {
	close(w.stuck)
	<-w.free
	return len(p), nil
}

// TestExportDoesNotHoldUpTheEnd: a client that takes nothing more can delay
// neither release nor expiry, and gets no digest that the record lacks.
func TestExportDoesNotHoldUpTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		h.artifact(strings.Repeat("x", 1<<20))
		w := &stuckWriter{stuck: make(chan struct{}), free: make(chan struct{})}
		done := make(chan error, 1)
		go func() {
			got, err := h.export(ref, "result.json", w)
			if got.Digest != "" {
				t.Errorf("got %+v", got)
			}
			done <- err
		}()
		<-w.stuck
		began := time.Now()
		rec := h.release(ref).Record
		if took := time.Since(began); took > time.Second {
			t.Errorf("release took %s", took)
		}
		h.empty()
		if len(rec.Exports) != 1 || rec.Exports[0].Complete {
			t.Errorf("record has %+v", rec.Exports)
		}
		close(w.free)
		wantCode(t, "export", <-done, fault.WrongState)
	})
}

// slowWriter takes some bytes, tells of it, and waits before it takes more.
type slowWriter struct {
	after int
	stuckWriter
	taken int
}

func (w *slowWriter) Write(p []byte) (int, error) {
	w.taken += len(p)
	if before := w.taken - len(p); before < w.after && w.taken >= w.after {
		return w.stuckWriter.Write(p)
	}
	return len(p), nil
}

// TestExportIsCountedAsItLeaves: a record that is made while a copy runs says
// no less than what left, and nothing leaves after it.
func TestExportIsCountedAsItLeaves(t *testing.T) {
	const size, after, writes = 10 << 20, 7 << 20, 1000
	for _, crash := range []bool{false, true} {
		t.Run(fmt.Sprint("crash ", crash), func(t *testing.T) {
			bubble(t, func(t *testing.T, h *harness) {
				_, ref := h.acquire("k")
				h.artifact(strings.Repeat("x", size))
				w := &slowWriter{after: after, stuckWriter: stuckWriter{stuck: make(chan struct{}), free: make(chan struct{})}}
				h.room.Store(writes)
				done := make(chan error, 1)
				go func() {
					_, err := h.export(ref, "result.json", w)
					done <- err
				}()
				<-w.stuck
				if n := writes - h.room.Load(); n > 4 {
					t.Errorf("the journal was written %d times for %d bytes", n, after)
				}
				h.room.Store(0)
				var report evidence.Report
				most := int64(after + 64<<10)
				if crash {
					h.crash()
					h.start()
					report, most = h.record(ref.ID), after+exportStep
				} else {
					report = h.release(ref)
				}
				x := report.Record.Exports[0]
				if x.Complete || x.Bytes < after || x.Bytes > most {
					t.Errorf("record has %+v", x)
				}
				if want := fmt.Sprintf("at most %d bytes of", x.Bytes); !strings.Contains(report.String(), want) {
					t.Errorf("%q is not in:\n%s", want, report)
				}
				close(w.free)
				if err := <-done; err == nil {
					t.Error("an export that the record calls broken off has no error")
				}
				if int64(w.taken) > x.Bytes {
					t.Errorf("%d bytes left, the record says at most %d", w.taken, x.Bytes)
				}
			})
		})
	}
}

// TestExportJournalFullOnTheWay: what the journal cannot be told of stays.
func TestExportJournalFullOnTheWay(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		h.artifact(strings.Repeat("x", 2*exportStep))
		h.room.Store(1)
		var out bytes.Buffer
		_, err := h.export(ref, "result.json", &out)
		wantCode(t, "export", err, fault.DiskFull)
		if out.Len() > exportStep {
			t.Errorf("%d bytes left", out.Len())
		}
		h.room.Store(0)
		h.full.Store(false)
		if x := h.release(ref).Record.Exports[0]; x.Complete || x.Bytes != int64(out.Len()) {
			t.Errorf("record has %+v, %d bytes left", x, out.Len())
		}
	})
}

// TestExportOneAtATime: the second waits for the first, and can give up.
func TestExportOneAtATime(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		h.artifact("x")
		w := &stuckWriter{stuck: make(chan struct{}), free: make(chan struct{})}
		done := make(chan error, 1)
		go func() {
			_, err := h.export(ref, "result.json", w)
			done <- err
		}()
		<-w.stuck
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := h.sup.Export(ctx, owner, ref, "result.json", func(int64) (io.Writer, error) { return io.Discard, nil })
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("second: got %v", err)
		}
		if !h.jailOf(ref.ID).isFrozen() {
			t.Error("the second export thawed the first one's lease")
		}
		close(w.free)
		if err := <-done; err != nil {
			t.Errorf("first: %v", err)
		}
	})
}

func TestExportJournalFull(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		h.artifact("x")
		h.full.Store(true)
		var out bytes.Buffer
		_, err := h.export(ref, "result.json", &out)
		wantCode(t, "export", err, fault.DiskFull)
		if out.Len() != 0 {
			t.Error("bytes left before the intent was journalled")
		}
		h.full.Store(false)
		if _, err := h.export(ref, "result.json", &out); err != nil {
			t.Error(err)
		}
	})
}

func TestExportThawFails(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		h.artifact("x")
		h.host.failAt("jail.thaw", errors.New("boom"))
		if _, err := h.export(ref, "result.json", io.Discard); err == nil {
			t.Error("a lease that stays frozen is no error")
		}
		synctest.Wait()
		h.host.failAt("jail.thaw", nil)
	})
}

func TestExportFileIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		h.artifact("x")
		var opened *os.File
		h.sup.cfg.CopyArtifact = func(ctx context.Context, f *os.File, most int64, w io.Writer) (int64, string, error) {
			opened = f
			if most != 1<<30 {
				t.Errorf("most %d", most)
			}
			return copyArtifact(ctx, f, most, w)
		}
		if _, err := h.export(ref, "result.json", io.Discard); err != nil {
			t.Fatal(err)
		}
		if _, err := opened.Stat(); !errors.Is(err, os.ErrClosed) {
			t.Errorf("stat: got %v", err)
		}
	})
}

// TestExportHandsOutNothingAfterTheEnd: not even what was read before it.
func TestExportHandsOutNothingAfterTheEnd(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		_, ref := h.acquire("k")
		h.artifact("ab")
		wrote, ended := make(chan struct{}), make(chan struct{})
		h.sup.cfg.CopyArtifact = func(_ context.Context, _ *os.File, _ int64, w io.Writer) (int64, string, error) {
			_, _ = w.Write([]byte("a"))
			close(wrote)
			<-ended
			n, err := w.Write([]byte("b"))
			return int64(n), "", err
		}
		var out bytes.Buffer
		done := make(chan error, 1)
		go func() {
			_, err := h.export(ref, "result.json", &out)
			done <- err
		}()
		<-wrote
		x := h.release(ref).Record.Exports[0]
		close(ended)
		wantCode(t, "export", <-done, fault.WrongState)
		if out.String() != "a" || x.Bytes != 1 {
			t.Errorf("%q left, the record has %+v", out.String(), x)
		}
	})
}
