package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cordonv1 "cordon/api/v1"
)

func TestRunPassesStreamsAndStatus(t *testing.T) {
	d := newDaemon(t)
	w := newWorld(t, d)
	w.want(0, "out\n", "err\n", "run", "--", "both")
	w.want(3, "", "", "run", "exit", "3")
	w.want(137, "", "cordon: oom_killed: it used more than its memory (64 MiB) [raise --memory]\n",
		"run", "--memory", "64M", "--", "cause", "oom_killed")
	w.want(137, "", "*", "run", "cause", "timed_out")
	w.want(127, "", "cordon: not_started: missing: start command: lookup: no such file\n", "run", "missing")
	w.stdin = strings.NewReader("a\x00b\xff\n" + strings.Repeat("x", 1<<20))
	w.want(0, "a\x00b\xff\n"+strings.Repeat("x", 1<<20), "", "run", "cat")
	w.stdin = strings.NewReader("not passed")
	w.want(0, "", "", "run", "--no-stdin", "cat")
	if d.count("Acquire") != 7 || d.count("Release") != 7 {
		t.Errorf("%d acquired, %d released", d.count("Acquire"), d.count("Release"))
	}
	if left := names(t, filepath.Join(w.env["XDG_RUNTIME_DIR"], "cordon")); len(left) != 0 {
		t.Errorf("secrets left: %v", left)
	}
}

// TestRunArguments holds what follows the command to be the command's.
func TestRunArguments(t *testing.T) {
	d := newDaemon(t)
	w := newWorld(t, d)
	w.env["FROM_HERE"], w.env["TERM"] = "here", "xterm"
	w.want(0, "*", "*", "run", "--env", "A=1=2", "--env", "FROM_HERE", "--cwd", "/tmp", "--", "both", "--json", "--", "-x")
	if diff := cmp.Diff([]string{"both", "--json", "--", "-x"}, d.start.GetArgv()); diff != "" {
		t.Errorf("argv (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"A=1=2", "FROM_HERE=here"}, d.start.GetEnv()); diff != "" {
		t.Errorf("env (-want +got):\n%s", diff)
	}
	if d.start.GetCwd() != "/tmp" || d.start.GetTty() || d.start.GetKeep() {
		t.Errorf("start = %v", d.start)
	}
	w.want(0, "*", "*", "run", "-it", "both")
	if diff := cmp.Diff([]string{"TERM=xterm"}, d.start.GetEnv()); diff != "" || !d.start.GetTty() {
		t.Errorf("tty %v, env (-want +got):\n%s", d.start.GetTty(), diff)
	}
	for _, args := range [][]string{{"--env", "NOT_SET"}, {"--env", "=x"}, {"-i", "--no-stdin"}} {
		w.want(125, "", "*", append(append([]string{"run"}, args...), "both")...)
	}
}

func TestRunFilesInAndOut(t *testing.T) {
	chdir(t)
	d := newDaemon(t)
	d.artifacts["out/sum.txt"], d.artifacts["log"] = []byte("6\n"), []byte("lines\n")
	w := newWorld(t, d)
	writeFile(t, "a.csv", "1,2,3\n")
	w.want(4, "", "", "run", "--input", "data.csv=a.csv", "--artifact", "out/sum.txt", "--artifact", "log:here.log",
		"--record", "record.json", "--", "exit", "4")
	if got := string(d.inputs[digestOf([]byte("1,2,3\n"))]); got != "1,2,3\n" {
		t.Errorf("input arrived as %q", got)
	}
	if in := d.envelope.Filesystem.Inputs; len(in) != 1 || in[0].Name != "data.csv" || in[0].Digest != digestOf([]byte("1,2,3\n")) {
		t.Errorf("inputs = %+v", in)
	}
	if diff := cmp.Diff([]string{"out/sum.txt", "log"}, d.envelope.Artifacts.Allow); diff != "" {
		t.Errorf("artifacts (-want +got):\n%s", diff)
	}
	// A run that failed has artifacts too.
	if readFile(t, "sum.txt") != "6\n" || readFile(t, "here.log") != "lines\n" {
		t.Error("artifacts have other content")
	}
	if got := readFile(t, "record.json"); got != string(d.record)+"\n" {
		t.Errorf("record.json: %s", got)
	}

	// Nothing that is there is replaced, and no lease is wasted on finding out.
	before := d.count("Acquire")
	w.want(125, "", "cordon: here.log: exists already [choose another name, or use --force]\n", "run", "--artifact", "log:here.log", "both")
	w.want(125, "", "*", "run", "--record", "record.json", "both")
	w.want(125, "", "*", "run", "--artifact", "x/a", "--artifact", "y/a", "both")
	w.want(125, "", "*", "run", "--input", "nope=missing", "both")
	w.want(125, "", "*", "run", "--input", "missing", "both")
	w.want(125, "", "*", "run", "--input", "dir=.", "both")
	w.want(125, "", "*", "run", "--memory", "1K", "both")
	if d.count("Acquire") != before {
		t.Error("a lease was acquired for a run that could not be")
	}
	w.want(0, "*", "*", "run", "--force", "--artifact", "log:here.log", "both")

	// The command succeeded, and the run did not.
	w.want(125, "out\n", "err\ncordon: absent: the run wrote no such file\n", "run", "--artifact", "absent", "both")
	d.artifacts["bad"] = []byte("corrupt")
	w.want(125, "*", "*", "run", "--artifact", "bad", "both")
	if _, err := os.Stat("bad"); err == nil {
		t.Error("an artifact with the wrong digest is there")
	}
	if d.count("Acquire") != d.count("Release") {
		t.Errorf("%d acquired, %d released", d.count("Acquire"), d.count("Release"))
	}
}

func TestRunSummary(t *testing.T) {
	chdir(t)
	d := newDaemon(t)
	d.artifacts["log"] = []byte("lines\n")
	w := newWorld(t, d)
	w.want(137, "", "*", "run", "--json", "--run-id", "run-7", "--artifact", "log", "--artifact", "absent", "--record", "r.json", "cause", "timed_out")
	var got summary
	if err := json.Unmarshal([]byte(w.err.String()), &got); err != nil {
		t.Fatalf("%v: %s", err, w.err.String())
	}
	if got.LeaseID != fakeLease || got.Tenant != "acme" || got.RunID != "run-7" || got.ExecID != "e-1" || got.ExitStatus != 137 ||
		got.End == nil || got.End.Cause != "timed_out" || !got.Released || !strings.HasPrefix(got.RecordHead, "sha256:") || got.RecordFile != "r.json" {
		t.Errorf("summary = %+v", got)
	}
	if diff := cmp.Diff([]exported{{"log", "log", digestOf([]byte("lines\n")), 6}}, got.Artifacts); diff != "" {
		t.Errorf("artifacts (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]failure{{"not_found", "absent", "the run wrote no such file", ""}}, got.Failures); diff != "" {
		t.Errorf("failures (-want +got):\n%s", diff)
	}
	if strings.Contains(w.err.String(), fakeSecret) {
		t.Error("the secret is printed")
	}
}

func TestRunKeep(t *testing.T) {
	d := newDaemon(t)
	w := newWorld(t, d)
	w.want(0, "out\n", "err\ncordon: lease l-1 kept until 2025-03-04T05:21:07Z [cordon lease release l-1]\n", "run", "--keep", "both")
	if d.count("Release") != 0 {
		t.Fatal("released all the same")
	}
	w.want(0, "out\n", "err\n", "exec", "l-1", "--", "both")
	w.want(0, "*", "", "lease", "release", "l-1")
	w.want(125, "", "*", "run", "--keep", "--record", "x", "both")
}

// TestRunReleases holds that whatever happens, the lease is given back.
func TestRunReleases(t *testing.T) {
	interrupt := func(w *world, d *daemon, call string, sigs ...os.Signal) {
		go func() {
			eventually(w.t, call, func() bool { return d.count(call) > 0 })
			for _, s := range sigs {
				w.signals <- s
			}
		}()
	}
	for _, c := range []struct {
		name   string
		args   []string
		set    func(*world, *daemon)
		status int
		stderr string
	}{
		{"SIGINT ends the command", []string{"wait"}, func(w *world, d *daemon) {
			interrupt(w, d, "Exec", syscall.SIGINT)
		}, 130, "cordon: signalled: SIGINT (2)"},
		{"SIGTERM ends the command", []string{"wait"}, func(w *world, d *daemon) {
			interrupt(w, d, "Exec", syscall.SIGTERM)
		}, 143, "cordon: signalled: SIGTERM (15)"},
		{"the second SIGINT kills", []string{"stubborn"}, func(w *world, d *daemon) {
			interrupt(w, d, "Exec", syscall.SIGINT, syscall.SIGINT)
		}, 137, "cordon: signalled: SIGKILL (9)"},
		{"a signal while the lease is made", []string{"both"}, func(w *world, d *daemon) {
			d.onAcquire = func(context.Context) error {
				w.signals <- syscall.SIGTERM
				// When the next one has been taken, the first has been handled.
				w.signals <- syscall.SIGWINCH
				eventually(w.t, "taken", func() bool { return len(w.signals) == 0 })
				return nil
			}
		}, 143, "cordon: interrupted by SIGTERM (15)"},
		{"the daemon goes away", []string{"vanish"}, nil, 125, "cordon: cordond: went away while the command ran: connection reset [see whether it still runs"},
		{"a panic", []string{"both"}, func(w *world, _ *daemon) { w.stdout = panicking{} }, 125, "cordon: internal error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDaemon(t)
			w := newWorld(t, d)
			w.stdin = blocked{t.Context()} // as a terminal nobody types at
			if c.set != nil {
				c.set(w, d)
			}
			w.want(c.status, "*", "*", append([]string{"run"}, c.args...)...)
			if !strings.Contains(w.err.String(), c.stderr) {
				t.Errorf("stderr: %s", w.err.String())
			}
			if d.count("Release") != 1 {
				t.Errorf("released %d times", d.count("Release"))
			}
		})
	}
}

// blocked is a reader that gives nothing until the test ends.
type blocked struct{ ctx context.Context }

func (b blocked) Read([]byte) (int, error) {
	<-b.ctx.Done()
	return 0, io.EOF
}

func TestRunInterruptedBeforeTheLease(t *testing.T) {
	d := newDaemon(t)
	w := newWorld(t, d)
	d.images, d.endless = nil, true // a snapshot is long work
	go func() {
		eventually(t, "a snapshot", func() bool { return d.count("SnapshotHost") > 0 })
		w.signals <- syscall.SIGINT
	}()
	w.want(130, "", "cordon: interrupted by SIGINT (2)\n", "run", "both")
	if d.count("Acquire") != 0 {
		t.Error("acquired all the same")
	}
}

func TestRunThatCannotBeReleased(t *testing.T) {
	d := newDaemon(t)
	d.onRelease = func(context.Context) error { return status.Error(codes.Unavailable, "gone") }
	w := newWorld(t, d)
	w.want(125, "out\n", "*", "run", "both")
	want := "lease l-1: not released: gone [cordon lease release l-1; by itself it ends at 2025-03-04T05:21:07Z]"
	if !strings.Contains(w.err.String(), want) {
		t.Errorf("stderr: %s", w.err.String())
	}
	d.onRelease = nil
	w.want(0, "*", "", "lease", "release", "l-1") // the secret was kept for this
}

func TestRunThatLeftSomething(t *testing.T) {
	d := newDaemon(t)
	d.onRecord = quarantine
	w := newWorld(t, d)
	w.want(125, "out\n", "err\ncordon: lease l-1: is quarantined: something of it may be left on the host [see cordon evidence show l-1]\n", "run", "both")
}

func TestRunWithAClosedOutput(t *testing.T) {
	d := newDaemon(t)
	w := newWorld(t, d)
	r, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	go func() {
		_, _ = io.ReadFull(r, make([]byte, 1<<10))
		_ = r.Close()
	}()
	w.stdout = out
	w.want(141, "*", "", "run", "flood")
	if d.count("Release") != 1 {
		t.Error("not released")
	}
}

func TestRunEnvelopeFile(t *testing.T) {
	chdir(t)
	d := newDaemon(t)
	w := newWorld(t, d)
	writeFile(t, "e.yaml", `sandbox:
  image_digest: sha256:`+strings.Repeat("cd", 32)+`
  identity: {tenant: other, run_id: from-file}
  resources: {memory_bytes: 134217728, process_count: 7}
  artifacts: {allow: [log]}
`)
	w.want(0, "*", "*", "run", "--envelope", "e.yaml", "--pids", "9", "--run-id", "from-flag", "both")
	e := d.envelope
	if e.Identity.Tenant != "other" || e.Identity.RunID != "from-flag" || e.Resources.ProcessCount != 9 ||
		e.Resources.MemoryBytes != 128<<20 || e.ImageDigest == fakeDigest || d.count("ListImages") != 0 {
		t.Errorf("envelope = %+v", e)
	}
	d.artifacts["log"] = []byte("x")
	w.want(0, "*", "*", "run", "--envelope", "e.yaml", "--image", "host", "--artifact", "log", "exit", "0")
	// Declared twice, it is one.
	if d.envelope.ImageDigest != fakeDigest || len(d.envelope.Artifacts.Allow) != 1 {
		t.Errorf("envelope = %+v", d.envelope)
	}
	writeFile(t, "bad.yaml", "sandbox:\n  resources: {memory_byte: 1, process_count: 0}\n")
	w.want(125, "", "*", "run", "--envelope", "bad.yaml", "both")
	if !strings.Contains(w.err.String(), "sandbox.resources.memory_byte") || !strings.Contains(w.err.String(), "line 2") {
		t.Errorf("stderr: %s", w.err.String())
	}
}

func TestRunImages(t *testing.T) {
	d := newDaemon(t)
	d.images = []*cordonv1.Image{{Digest: "sha256:" + strings.Repeat("11", 32), Name: "mine"}}
	w := newWorld(t, d)
	w.want(0, "*", "*", "run", "--image", "mine", "both")
	if d.envelope.ImageDigest != d.images[0].GetDigest() {
		t.Errorf("image = %s", d.envelope.ImageDigest)
	}
	w.want(125, "", "cordon: --image: there is no image \"other\" [see cordon image ls, or import one: cordon image import NAME TAR]\n", "run", "--image", "other", "both")
	w.want(0, "*", "err\n", "run", "both") // silent: standard error is no terminal
	if d.count("SnapshotHost") != 1 || d.envelope.ImageDigest != fakeDigest {
		t.Errorf("%d snapshots, image = %s", d.count("SnapshotHost"), d.envelope.ImageDigest)
	}
	d.tenants = nil
	w.want(125, "", "*", "run", "both")
	if !strings.Contains(w.err.String(), "identity.tenant: this user may speak for no tenant") {
		t.Errorf("stderr: %s", w.err.String())
	}
}

func TestRunLongerThanTheDefaultLease(t *testing.T) {
	d := newDaemon(t)
	w := newWorld(t, d)
	for _, c := range []struct{ timeout, lease, want string }{
		{"1h", "", "1h5m0s"}, {"5m", "", "15m0s"}, {"24h", "", "24h0m0s"}, {"1h", "20m", "20m0s"},
	} {
		args := []string{"run", "--timeout", c.timeout}
		if c.lease != "" {
			args = append(args, "--lease", c.lease)
		}
		w.want(0, "*", "*", append(args, "both")...)
		if got := d.envelope.Cleanup.Lease.String(); got != c.want {
			t.Errorf("timeout %s, lease %q: leased for %s, want %s", c.timeout, c.lease, got, c.want)
		}
	}
}

var errBroken = errors.New("broken")

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, errBroken }

func TestRunWithABrokenInput(t *testing.T) {
	d := newDaemon(t)
	w := newWorld(t, d)
	w.stdin = brokenReader{}
	w.want(125, "", "cordon: read stdin: broken\n", "run", "cat")
	if d.count("Release") != 1 {
		t.Error("not released")
	}
}
