package supervisor

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	bolt "go.etcd.io/bbolt"

	"cordon/internal/fault"
	"cordon/supervisor/envelope"
	"cordon/supervisor/evidence"
)

const testImage = "sha256:abababababababababababababababababababababababababababababababab"

var owner = Caller{UID: 1000, GID: 1000}

// harness is a supervisor on a fake host. Time is synctest's.
type harness struct {
	t        *testing.T
	host     *fakeHost
	admit    *fakeAdmission
	stateDir string
	change   func(*Config)
	log      *bytes.Buffer

	full   atomic.Bool  // the journal's disk
	room   atomic.Int64 // commits until it is full; 0: no matter
	sup    *Supervisor
	cancel context.CancelFunc
	runEnd chan error
}

// bubble runs a test against a supervisor that has recovered and runs. At the
// end everything is stopped, and the host must be empty.
func bubble(t *testing.T, fn func(t *testing.T, h *harness)) { bubbleWith(t, nil, fn) }

func bubbleWith(t *testing.T, change func(*Config), fn func(t *testing.T, h *harness)) {
	t.Helper()
	stateDir, artifacts := t.TempDir(), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		h := &harness{
			t: t, host: newFakeHost(artifacts), admit: &fakeAdmission{most: 100},
			stateDir: stateDir, change: change, log: &bytes.Buffer{},
		}
		h.start()
		defer func() {
			h.host.set(func(f *fakeHost) { f.leftovers = nil; clear(f.fail) })
			h.stop()
			until(time.Minute) // for goroutines of supervisors that crashed
		}()
		fn(t, h)
	})
}

func (h *harness) config() Config {
	cfg := Config{
		StateDir: h.stateDir,
		Jailer:   fakeJailer{h.host}, Egress: fakeEgress{h.host}, Store: fakeStore{h.host},
		Admission: h.admit, CopyArtifact: copyArtifact,
		Version: "0.1-test", RuntimeRevision: "rev-1",
		IDBase: 1 << 20, IDRanges: 64,
		Log: slog.New(slog.NewTextHandler(h.log, nil)),
	}
	if h.change != nil {
		h.change(&cfg)
	}
	return cfg
}

func (h *harness) open() {
	h.t.Helper()
	sup, err := New(h.config())
	if err != nil {
		h.t.Fatal(err)
	}
	h.sup = sup
	sup.journal.commit = func(fn func(*bolt.Tx) error) error {
		return sup.journal.db.Update(func(tx *bolt.Tx) error {
			err := fn(tx)
			if h.room.Load() > 0 && h.room.Add(-1) == 0 {
				h.full.Store(true)
			}
			if err == nil && h.full.Load() {
				err = &os.PathError{Op: "write", Path: "journal.db", Err: syscall.ENOSPC}
			}
			return err
		})
	}
}

func (h *harness) start() {
	h.t.Helper()
	h.open()
	if err := h.sup.Recover(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
	h.run()
}

func (h *harness) run() {
	var ctx context.Context
	ctx, h.cancel = context.WithCancel(context.Background())
	end, sup := make(chan error, 1), h.sup
	h.runEnd = end
	go func() { end <- sup.Run(ctx) }()
	synctest.Wait()
}

// stop is an orderly end; nothing may be left.
func (h *harness) stop() {
	h.t.Helper()
	h.cancel()
	if err := <-h.runEnd; err != nil {
		h.t.Errorf("run: %v", err)
	}
	if err := h.sup.Close(context.Background()); err != nil {
		h.t.Errorf("close: %v", err)
	}
}

// crash is kill -9: the journal stays as it is, and so does the host.
func (h *harness) crash() {
	h.t.Helper()
	h.cancel()
	if err := h.sup.journal.close(); err != nil {
		h.t.Fatal(err)
	}
}

func testEnvelope(change ...func(*envelope.Envelope)) envelope.Envelope {
	e := envelope.New()
	e.ImageDigest = testImage
	e.Identity.Tenant, e.Identity.RunID = "acme", "run-1"
	e.Artifacts.Scan = false
	e.Artifacts.Allow = []string{"result.json", "big.bin"}
	for _, c := range change {
		c(&e)
	}
	return e
}

func (h *harness) acquire(key string, change ...func(*envelope.Envelope)) (Acquired, Ref) {
	h.t.Helper()
	got, err := h.sup.Acquire(h.t.Context(), owner, testEnvelope(change...), key)
	if err != nil {
		h.t.Fatal(err)
	}
	return got, Ref{ID: got.Lease.ID, Secret: got.Secret}
}

func (h *harness) exec(ref Ref, r ExecRequest) *Session {
	h.t.Helper()
	s, err := h.sup.Exec(h.t.Context(), owner, ref, r)
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

// drain reads a session to its end.
func (h *harness) drain(s *Session) (stdout, stderr string, end End) {
	h.t.Helper()
	var out, errs strings.Builder
	for {
		o, err := s.Next(h.t.Context())
		if err != nil {
			h.t.Fatalf("next: %v", err)
		}
		switch o.Stream {
		case StreamStdout:
			out.Write(o.Data)
		case StreamStderr:
			errs.Write(o.Data)
		case StreamEnd:
			if _, err := s.Next(h.t.Context()); !errors.Is(err, io.EOF) {
				h.t.Errorf("after the end: got %v, want EOF", err)
			}
			return out.String(), errs.String(), o.End
		}
	}
}

func (h *harness) release(ref Ref) evidence.Report {
	h.t.Helper()
	rec, err := h.sup.Release(h.t.Context(), owner, ref)
	if err != nil {
		h.t.Fatal(err)
	}
	return h.verify(rec)
}

func (h *harness) verify(rec SignedRecord) evidence.Report {
	h.t.Helper()
	report, err := evidence.Verify(rec.JSON, h.sup.PublicKey())
	if err != nil {
		h.t.Fatal(err)
	}
	if report.Head != rec.Head {
		h.t.Errorf("head: got %s, want %s", rec.Head, report.Head)
	}
	return report
}

func (h *harness) record(id string) evidence.Report {
	h.t.Helper()
	rec, err := h.sup.Record(h.t.Context(), owner, id)
	if err != nil {
		h.t.Fatal(err)
	}
	return h.verify(rec)
}

// verifyChain checks every record of the journal as one chain.
func (h *harness) verifyChain() evidence.Report {
	h.t.Helper()
	var entries [][]byte
	for n := int64(1); ; n++ {
		raw, err := h.sup.journal.record(n)
		if err != nil {
			break
		}
		entries = append(entries, raw)
	}
	report, err := evidence.VerifyChain(entries, h.sup.PublicKey())
	if err != nil {
		h.t.Fatal(err)
	}
	return report
}

func (h *harness) jailOf(id string) *fakeJail {
	h.t.Helper()
	h.host.mu.Lock()
	defer h.host.mu.Unlock()
	j := h.host.jails[id]
	if j == nil {
		h.t.Fatalf("no jail of %s", id)
	}
	return j
}

func (j *fakeJail) exec(id string) *fakeExec {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.execs[id]
}

func (h *harness) empty() {
	h.t.Helper()
	if left := h.host.remains(); len(left) != 0 {
		h.t.Errorf("left on the host: %v", left)
	}
	if n := h.sup.Count(); n != 0 {
		h.t.Errorf("%d leases in the tables", n)
	}
	if open, err := h.sup.journal.open(); err != nil || len(open) != 0 {
		h.t.Errorf("%d leases open in the journal, %v", len(open), err)
	}
}

func pastExec() evidence.Exec {
	return evidence.Exec{ID: "e-0", Argv0: "x", End: evidence.End{Cause: "exited"}}
}

func (h *harness) state(ref Ref) State {
	h.t.Helper()
	info, err := h.sup.Get(h.t.Context(), owner, ref)
	if err != nil {
		h.t.Fatal(err)
	}
	return info.State
}

func wantCode(t *testing.T, what string, err error, want fault.Code) {
	t.Helper()
	if got := fault.CodeOf(err); got != want || err == nil {
		t.Errorf("%s: got code %q (%v), want %q", what, got, err, want)
	}
}

func copyArtifact(ctx context.Context, f *os.File, most int64, w io.Writer) (int64, string, error) {
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(w, sum), io.LimitReader(f, most))
	if err == nil {
		err = ctx.Err()
	}
	return n, "sha256:" + hex.EncodeToString(sum.Sum(nil)), err
}

func (h *harness) artifact(content string) {
	h.t.Helper()
	if err := os.WriteFile(filepath.Join(h.host.dir, "result.json"), []byte(content), 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// until lets time pass and everything that it wakes come to rest.
func until(d time.Duration) { time.Sleep(d); synctest.Wait() }
