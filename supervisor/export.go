package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"time"

	"cordon/internal/fault"
	"cordon/supervisor/evidence"
)

// Exported is an artifact that has left the sandbox.
type Exported struct {
	Path   string
	Size   int64
	Digest string // sha256:<hex>
}

// Export copies one declared artifact of the frozen workspace out. begin is
// told the file's size before any of it, and says where to write. The digest
// comes last, and only when the journal has it: who received it can rely on
// the record. A copy that breaks off is recorded as such.
func (s *Supervisor) Export(ctx context.Context, caller Caller, ref Ref, path string, begin func(size int64) (io.Writer, error)) (Exported, error) {
	l, err := s.active(caller, ref)
	if err != nil {
		return Exported{}, err
	}
	if !slices.Contains(l.env.Artifacts.Allow, path) {
		return Exported{}, fault.New(fault.NotDeclared, "path", fmt.Sprintf("%.80q is not in artifacts.allow", path), "declare it in the envelope")
	}
	ctx, stop := l.bind(ctx)
	defer stop()
	if err := l.frozen.take(ctx); err != nil {
		return Exported{}, err
	}
	defer l.frozen.give()
	j := l.theJail()
	if err := j.Freeze(ctx); err != nil {
		return Exported{}, errors.Join(portFault("freeze", l.id, err), s.thaw(l, j))
	}
	got, err := s.exportFrozen(ctx, l, j, path, begin)
	return got, errors.Join(err, s.thaw(l, j))
}

// thaw lets the lease go on, unless its end has begun.
func (s *Supervisor) thaw(l *lease, j Jail) error {
	if l.state() != Active {
		return nil
	}
	if err := j.Thaw(); err != nil {
		s.log.Error("thaw lease", slog.String(keyLease, l.id), logError(err))
		return portFault("thaw", l.id, err)
	}
	return nil
}

func (s *Supervisor) exportFrozen(ctx context.Context, l *lease, j Jail, path string, begin func(int64) (io.Writer, error)) (Exported, error) {
	f, err := openArtifact(j, path)
	if err != nil {
		return Exported{}, err
	}
	defer f.Close() // read-only: closing loses nothing; a second time is no harm
	info, err := f.Stat()
	if err != nil {
		return Exported{}, fmt.Errorf("export %s: %w", path, err)
	}
	place, err := l.beginExport(path, f)
	if err != nil {
		return Exported{}, err
	}
	defer l.endOpen(f)
	w := &exportWriter{s: s, l: l, place: place, size: info.Size()}
	if err := w.tell(0); err != nil {
		return Exported{}, err
	}
	n, digest, err := w.copy(ctx, f, begin)
	x, recorded := l.setExport(place, digest, err == nil)
	if !recorded {
		return Exported{}, errors.Join(err, errEnded)
	}
	if noteErr := s.noteNow(l, place, x); noteErr != nil || err != nil {
		return Exported{}, errors.Join(portFault("export "+path, l.id, err), noteErr)
	}
	l.events.add(eventExported, map[string]string{"path": path, "digest": digest, "bytes": fmt.Sprint(n)})
	s.log.Info("artifact exported", slog.String(keyLease, l.id), logText(keyPath, path))
	return Exported{Path: path, Size: n, Digest: digest}, nil
}

func openArtifact(j Jail, path string) (*os.File, error) {
	f, err := j.OpenArtifact(path)
	switch {
	case err == nil:
		return f, nil
	case fault.CodeOf(err) == "" && errors.Is(err, fs.ErrNotExist):
		return nil, fault.Wrap(err, fault.NotFound, "path", fmt.Sprintf("%.80q is not in the workspace", path), "let the run write it first")
	default:
		return nil, fmt.Errorf("open artifact %s: %w", path, err)
	}
}

// beginExport lists the artifact as leaving and lets the end of the lease
// close its file.
func (l *lease) beginExport(path string, f *os.File) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entry.State != Active {
		return 0, errState(l.entry.State)
	}
	if len(l.exports) >= mostListed {
		return 0, fault.New(fault.TooLarge, "exports", fmt.Sprintf("a lease exports at most %d times", mostListed), "put the files into one")
	}
	l.open = f
	l.exports = append(l.exports, evidence.Export{Path: clipText(path), Scan: evidence.ScanNotPerformed, At: time.Now().UTC()})
	return len(l.exports) - 1, nil
}

func (l *lease) endOpen(f *os.File) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open == f {
		l.open = nil
	}
}

func (l *lease) exportAt(place int) evidence.Export {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.exports[place]
}

// leave counts an export's bytes up to n as gone, unless the end of the lease
// has begun: then nothing more may leave, because nobody would count it.
func (l *lease) leave(place int, n int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.entry.State != Active {
		return errEnded
	}
	l.exports[place].Bytes = n
	return nil
}

// setExport says what became of an export, unless the record is made.
func (l *lease) setExport(place int, digest string, complete bool) (evidence.Export, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sealed {
		return evidence.Export{}, false
	}
	x := &l.exports[place]
	if complete {
		x.Complete, x.Digest = true, digest
	}
	return *x, true
}

// exportStep is how far ahead of the bytes the journal is told of them.
const exportStep = 4 << 20

// exportWriter hands an artifact's bytes out. The lease counts them before
// they leave, and the journal before that: whenever the record is made, and
// by whom, it says no less than what left.
type exportWriter struct {
	s     *Supervisor
	l     *lease
	place int
	size  int64 // of the file
	to    io.Writer
	n     int64 // bytes that were handed out
	told  int64 // bytes that the journal knows of
}

func (w *exportWriter) copy(ctx context.Context, f *os.File, begin func(int64) (io.Writer, error)) (n int64, digest string, err error) {
	if w.to, err = begin(w.size); err != nil {
		return 0, "", err
	}
	n, digest, err = w.s.cfg.CopyArtifact(ctx, f, w.l.env.Resources.DiskBytes, w)
	if err == nil && n != w.n {
		err = fmt.Errorf("%d bytes were written, %d copied", w.n, n)
	}
	return n, digest, err
}

func (w *exportWriter) Write(p []byte) (int, error) {
	after := w.n + int64(len(p))
	if after > w.told {
		if err := w.tell(after); err != nil {
			return 0, err
		}
	}
	if err := w.l.leave(w.place, after); err != nil {
		return 0, err
	}
	w.n = after
	return w.to.Write(p)
}

// tell journals that n bytes, and a step more, may have left.
func (w *exportWriter) tell(n int64) error {
	x := w.l.exportAt(w.place)
	x.Bytes = max(n, min(n+exportStep, w.size))
	if err := w.s.noteNow(w.l, w.place, x); err != nil {
		return err
	}
	w.told = x.Bytes
	return nil
}
