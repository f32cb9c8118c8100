package artifacts

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cordon/internal/fault"

	"golang.org/x/sys/unix"
)

const helloDigest = "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824" // of "hello"

func TestCopyArtifact(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	if err := os.WriteFile(path, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(path, path+"2"); err != nil {
		t.Fatal(err)
	}
	f := mustOpen(t, path)
	if _, err := f.Seek(3, 0); err != nil { // where a caller has left it
		t.Fatal(err)
	}
	var out bytes.Buffer
	size, digest, err := CopyArtifact(t.Context(), f, 5, &out)
	if err != nil || size != 5 || digest != helloDigest || out.String() != "hello" {
		t.Errorf("got %d %s %q, %v", size, digest, out.String(), err)
	}
}

func TestCopyArtifactRefuses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	if err := os.WriteFile(path, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	gone := filepath.Join(dir, "gone")
	if err := os.WriteFile(gone, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	goneFile := mustOpen(t, gone)
	if err := os.Remove(gone); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	fifoFile, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer fifoFile.Close()
	for _, tt := range []struct {
		name string
		f    *os.File
		max  int64
		want fault.Code
	}{
		{"above the limit", mustOpen(t, path), 4, fault.TooLarge},
		{"directory", mustOpen(t, dir), 1 << 20, fault.NotRegular},
		{"fifo", fifoFile, 1 << 20, fault.NotRegular},
		{"device", mustOpen(t, "/dev/zero"), 1 << 20, fault.NotRegular},
		{"removed", goneFile, 1 << 20, fault.NotRegular},
	} {
		var out bytes.Buffer
		_, _, err := CopyArtifact(t.Context(), tt.f, tt.max, &out)
		if fault.CodeOf(err) != tt.want || out.Len() != 0 {
			t.Errorf("%s: got %v and %d bytes, want %s and none", tt.name, err, out.Len(), tt.want)
		}
	}
}

// writerFunc changes the file from within the copy.
type writerFunc func(p []byte) (int, error)

func (w writerFunc) Write(p []byte) (int, error) { return w(p) }

func TestCopyArtifactSeesChanges(t *testing.T) {
	for name, change := range map[string]func(f *os.File) error{
		"grows":   func(f *os.File) error { _, err := f.WriteAt([]byte("x"), 1<<20); return err },
		"shrinks": func(f *os.File) error { return f.Truncate(10) },
		"same size": func(f *os.File) error {
			_, err := f.WriteAt([]byte("x"), 3)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := os.Create(filepath.Join(t.TempDir(), "a"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteString(strings.Repeat("a", 1<<20)); err != nil {
				t.Fatal(err)
			}
			backdate(t, f) // file times are no finer than a tick
			changed, written := false, int64(0)
			_, digest, err := CopyArtifact(t.Context(), f, 1<<20, writerFunc(func(p []byte) (int, error) {
				if written += int64(len(p)); !changed {
					changed = true
					if err := change(f); err != nil {
						t.Fatal(err)
					}
				}
				return len(p), nil
			}))
			if fault.CodeOf(err) != fault.WrongState || digest != "" {
				t.Errorf("got %q, %v", digest, err)
			}
			if written > 1<<20 {
				t.Errorf("wrote %d bytes, above the limit", written)
			}
		})
	}
}

func TestCopyArtifactEndsWithContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	if err := os.WriteFile(path, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := CopyArtifact(ctx, mustOpen(t, path), 5, &bytes.Buffer{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func backdate(t *testing.T, f *os.File) {
	t.Helper()
	if err := unix.Futimes(int(f.Fd()), make([]unix.Timeval, 2)); err != nil {
		t.Fatal(err)
	}
}

func mustOpen(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
