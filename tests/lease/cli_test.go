package lease

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cordon/api/client"
	"cordon/tests/daemon"
)

// TestCommandLine runs the program against a real daemon, as a shell would.
func TestCommandLine(t *testing.T) {
	d := daemon.New(t, daemon.Options{})
	d.Envelope(d.Client()) // the image is there
	dir := t.TempDir()
	input := filepath.Join(dir, "in.txt")
	if err := os.WriteFile(input, []byte("a\nb\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, stdin    string
		args           []string
		stdout, stderr string // stderr: a part of it
		code           int
	}{
		{"exit status", "", []string{"run", "--", "sh", "-c", "exit 7"}, "", "", 7},
		{"pipes", "in\x00\xff", []string{"run", "--", "cat"}, "in\x00\xff", "", 0},
		{"both streams", "", []string{"run", "--", "sh", "-c", "echo o; echo e >&2"}, "o\n", "e\n", 0},
		{"own signal", "", []string{"run", "--", "sh", "-c", "kill -TERM $$"}, "", "", 143},
		{"not found", "", []string{"run", "--", "no-such"}, "", "no-such", 127},
		{"not executable", "", []string{"run", "--", "/etc/passwd"}, "", "", 126},
		{"our failure", "", []string{"run", "--image", "sha256:" + strings.Repeat("0", 64), "--", "true"}, "", "image", 125},
		{"timeout", "", []string{"run", "--timeout", "300ms", "--", "sleep", "300"}, "", "timed_out", 137},
		{"memory", "", []string{"run", "--memory", "32MiB", "--", "perl", "-e", `my $x = "x" x (200 << 20)`}, "", "oom_killed", 137},
		{"output", "", []string{"run", "--output-limit", "4KiB", "--", "sh", "-c", "while :; do echo xxxxxxxxxxxxxxxx; done"}, "*", "output_exceeded", 137},
		{"input", "", []string{"run", "--input", "x=" + input, "--", "cat", "/inputs/x"}, "a\nb\n", "", 0},
		{"artifact", "", []string{"run", "--artifact", "out.txt:" + filepath.Join(dir, "out.txt"), "--", "sh", "-c", "echo made > out.txt"}, "", "", 0},
		{"version", "", []string{"version"}, "*", "", 0},
		{"doctor", "", []string{"doctor"}, "*", "", 0},
		{"images", "", []string{"image", "ls"}, "*", "", 0},
	} {
		stdout, stderr, code := d.CLI(tc.stdin, tc.args...)
		if code != tc.code || tc.stdout != "*" && stdout != tc.stdout || !strings.Contains(stderr, tc.stderr) {
			t.Errorf("%s: %v\n got status %d, stdout %q, stderr %q\nwant status %d, stdout %q, stderr with %q",
				tc.name, tc.args, code, stdout, stderr, tc.code, tc.stdout, tc.stderr)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "out.txt")); err != nil || string(b) != "made\n" {
		t.Errorf("the artifact: %q, %v", b, err)
	}
}

// TestCommandLineLease goes the long way: acquire, exec, export, release,
// evidence, each a process of its own.
func TestCommandLineLease(t *testing.T) {
	d := daemon.New(t, daemon.Options{})
	d.Envelope(d.Client())
	out, errs, code := d.CLI("", "lease", "acquire", "--artifact", "result.txt")
	id := strings.TrimSpace(out)
	if code != 0 || !strings.HasPrefix(id, "l-") {
		t.Fatalf("acquire: %d %q %q", code, out, errs)
	}
	must := func(args ...string) string {
		t.Helper()
		out, errs, code := d.CLI("", args...)
		if code != 0 {
			t.Errorf("%v: %d %q %q", args, code, out, errs)
		}
		return out
	}
	if out := must("exec", id, "--", "sh", "-c", "echo kept > result.txt; id -u"); out != "10000\n" {
		t.Errorf("exec printed %q", out)
	}
	if out := must("lease", "ls"); !strings.Contains(out, id) {
		t.Errorf("ls does not show %s: %q", id, out)
	}
	if out := must("--json", "lease", "show", id); !json.Valid([]byte(out)) {
		t.Errorf("show --json printed %q", out)
	}
	must("lease", "renew", id, "20m")
	file := filepath.Join(t.TempDir(), "got.txt")
	must("export", id, "result.txt", "-o", file)
	if b, err := os.ReadFile(file); err != nil || string(b) != "kept\n" {
		t.Errorf("export wrote %q, %v", b, err)
	}
	must("lease", "release", id)
	if out := must("evidence", "show", id); !strings.Contains(out, id) || !strings.Contains(out, "result.txt") {
		t.Errorf("evidence show printed %q", out)
	}
	verifyOffline(t, d, id)
}

// verifyOffline checks a record with the daemon's key as files, and changes
// one byte of it.
func verifyOffline(t *testing.T, d *daemon.Daemon, id string) {
	t.Helper()
	dir := t.TempDir()
	record, key := filepath.Join(dir, "record.json"), filepath.Join(dir, "host.pub")
	raw, errs, code := d.CLI("", "evidence", "show", id, "--raw")
	if code != 0 {
		t.Fatalf("evidence show --raw: %d %q", code, errs)
	}
	pub, errs, code := d.CLI("", "evidence", "key")
	if code != 0 {
		t.Fatalf("evidence key: %d %q", code, errs)
	}
	for path, content := range map[string]string{record: raw, key: pub} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d.Stop() // offline is offline
	if out, errs, code := d.CLI("", "evidence", "verify", record, "--key", key); code != 0 {
		t.Errorf("verify: %d %q %q", code, out, errs)
	}
	if err := os.WriteFile(record, []byte(strings.Replace(raw, `"root"`, `"boot"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, errs, code := d.CLI("", "evidence", "verify", record, "--key", key); code != 1 {
		t.Errorf("verify of a changed record: %d %q %q", code, out, errs)
	}
}

// TestInterruptReachesTheCommand: Ctrl-C ends the command, and the program
// releases its lease on the way out.
func TestInterruptReachesTheCommand(t *testing.T) {
	d := daemon.New(t, daemon.Options{})
	c := d.Client()
	d.Envelope(c)
	cmd := exec.Command(filepath.Join(d.Bin, "cordon"), "--socket", d.Socket, "run", "--", "sh", "-c", "echo up; exec sleep 300")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errb bytes.Buffer
	cmd.Stderr = &errb
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 130 {
		t.Errorf("after SIGINT: %v, %s, want status 130", err, errb.String())
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	leases, err := c.Leases(context.Background())
	if err != nil || len(leases) == 0 || leases[0].State != "closed" {
		t.Errorf("leases after the interrupt: %+v, %v", leases, err)
	}
}

// TestRenewAndWatch: an expiry only moves forward and not past its maximum,
// and the events tell.
func TestRenewAndWatch(t *testing.T) {
	d := daemon.New(t, daemon.Options{})
	c := d.Client()
	l := acquire(t, d, c, d.Envelope(c))
	before, err := l.Get(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	shorter, err := l.Renew(context.Background(), time.Second)
	if err != nil || shorter.ExpiresAt.Before(before.ExpiresAt) {
		t.Errorf("renew by 1s: %v, expiry went from %v to %v", err, before.ExpiresAt, shorter.ExpiresAt)
	}
	longest, err := l.Renew(context.Background(), 23*time.Hour)
	if err != nil || longest.ExpiresAt.After(before.MaxExpiresAt) || longest.ExpiresAt.Before(before.ExpiresAt) {
		t.Errorf("renew by 23h: %v, expiry %v, maximum %v", err, longest.ExpiresAt, before.MaxExpiresAt)
	}
	if end, _, _ := sh(t, l, "true"); !end.OK() {
		t.Errorf("end %+v", end)
	}
	seen := watch(t, l)
	if _, err := l.Release(context.Background()); err != nil {
		t.Error(err)
	}
	kinds := strings.Join(<-seen, " ")
	for _, want := range []string{"state", "exec_started", "exec_ended"} {
		if !strings.Contains(kinds, want) {
			t.Errorf("events %q lack %s", kinds, want)
		}
	}
}

// watch collects the kinds of a lease's events until it is closed.
func watch(t *testing.T, l *client.Lease) <-chan []string {
	t.Helper()
	seen := make(chan []string, 1)
	go func() {
		var kinds []string
		for ev, err := range l.Watch(context.Background(), 0) {
			if err != nil {
				t.Errorf("watch: %v", err)
				break
			}
			kinds = append(kinds, ev.Kind)
		}
		seen <- kinds
	}()
	return seen
}
