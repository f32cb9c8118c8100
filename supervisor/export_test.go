package supervisor

import (
	"bytes"
	"context"
	"errors"
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
		{name: "client", to: &failingWriter{after: 3}, bytes: 3, lists: 1},
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
