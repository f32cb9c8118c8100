package main

import (
	"bytes"
	"context"
	"flag"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite golden files")

// world is the program's surroundings in a test.
type world struct {
	t        *testing.T
	stdin    io.Reader
	out, err syncBuffer
	stdout   io.Writer // in place of out
	stderr   io.Writer // in place of err
	env      map[string]string
	signals  chan os.Signal
	host     fs.FS
}

// newWorld is the surroundings beside a daemon; nil: none listens.
func newWorld(t *testing.T, d *daemon) *world {
	t.Helper()
	runtime := t.TempDir()
	if err := os.Chmod(runtime, 0o700); err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, stdin: strings.NewReader(""), signals: make(chan os.Signal, 8), host: fstest.MapFS{},
		env: map[string]string{"XDG_RUNTIME_DIR": runtime, "CORDON_SOCKET": filepath.Join(runtime, "no-socket")},
	}
	if d != nil {
		w.env["CORDON_SOCKET"] = d.socket
	}
	return w
}

// run runs the program and returns its exit status.
func (w *world) run(args ...string) int {
	w.t.Helper()
	w.out.Reset()
	w.err.Reset()
	return w.start(args...)
}

func (w *world) start(args ...string) int {
	a := newApp(config{
		name: "cordon", version: "1.2.3", stdin: w.stdin,
		stdout: either(w.stdout, &w.out), stderr: either(w.stderr, &w.err),
		lookup:  func(n string) (string, bool) { v, ok := w.env[n]; return v, ok },
		signals: func() (<-chan os.Signal, func()) { return w.signals, func() {} },
		host:    w.host, uid: os.Getuid(), tempDir: w.env["XDG_RUNTIME_DIR"],
	})
	return a.main(context.Background(), args)
}

func either(given, usual io.Writer) io.Writer {
	if given != nil {
		return given
	}
	return usual
}

// want runs the program and compares status and both outputs; output that is
// not compared is "*".
func (w *world) want(status int, stdout, stderr string, args ...string) {
	w.t.Helper()
	got := w.run(args...)
	if got != status {
		w.t.Errorf("%q: status %d, want %d\nstdout: %sstderr: %s", args, got, status, w.out.String(), w.err.String())
	}
	if diff := cmp.Diff(stdout, w.out.String()); diff != "" && stdout != "*" {
		w.t.Errorf("%q: stdout (-want +got):\n%s", args, diff)
	}
	if diff := cmp.Diff(stderr, w.err.String()); diff != "" && stderr != "*" {
		w.t.Errorf("%q: stderr (-want +got):\n%s", args, diff)
	}
}

// chdir gives the test a working directory of its own.
func chdir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Chdir(dir)
	return dir
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// names lists a directory.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// golden compares text with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		writeFile(t, file, got)
	}
	if diff := cmp.Diff(readFile(t, file), got); diff != "" {
		t.Errorf("%s (-want +got), rewritten by -update:\n%s", name, diff)
	}
}

// fits fails if text needs more than a screen.
func fits(t *testing.T, text string) {
	t.Helper()
	if n := strings.Count(text, "\n"); n > 24 {
		t.Errorf("%d lines do not fit on a screen of 24:\n%s", n, text)
	}
	for line := range strings.Lines(text) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > 80 {
			t.Errorf("%d columns do not fit on a screen of 80: %s", n, line)
		}
	}
}

// syncBuffer is a buffer that a test may read while the program writes, and
// wait for.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *syncBuffer) Reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.buf.Reset()
}

// eventually waits for what has no channel to wait on.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	late := time.After(10 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("%s: not within 10 s", what)
		}
	}
}
