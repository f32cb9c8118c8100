package linux

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cordon/jail"
	"cordon/supervisor"
)

const testIDBase = 0x78000000

// newHost is a Host with a parent cgroup and a state directory of its own,
// both gone at the test's end.
func newHost(t testing.TB) *Host {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: jails are made of namespaces, mounts and cgroups")
	}
	h, err := New(Config{
		CgroupParent: fmt.Sprintf("cordon-test-%d", os.Getpid()),
		StateDir:     t.TempDir(),
		InitPath:     buildInit(t),
		Maker:        []string{"/proc/self/exe", "maker"},
		Logger:       slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
		if left, err := h.Strays(); err != nil || len(left) != 0 {
			t.Errorf("leases left: %v, %v", left, err)
		}
	})
	return h
}

// testImage is a root file system of the host's own programs: a static shell
// is all that most tests need, so it is the host's / shown read-only, with
// the mount points a jail needs in place of what is there.
func testSpec(t testing.TB) jail.Spec {
	t.Helper()
	return jail.Spec{
		LeaseID: "l-" + strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")),
		UID:     10000,
		IDBase:  testIDBase,
		Image:   jail.Image{Digest: "sha256:test", Path: testRoot(t), IDBase: testIDBase - 65536},
		Volume:  jail.Volume{Medium: "disk", Bytes: 64 << 20, Inodes: 4096},
		Limits:  jail.Limits{CPUMilli: 1000, MemoryBytes: 256 << 20, Pids: 64, OpenFiles: 256},
		Locale:  "C.UTF-8",
	}
}

// testRoot builds a small root: busybox-like needs are met by copying the
// host's dynamic sh and a few tools with their libraries.
func testRoot(t testing.TB) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	for _, d := range []string{"bin", "usr", "proc", "sys", "dev", "tmp", "workspace", "inputs", "etc", "run", ".cordon"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, ".cordon/init"), nil, 0o555); err != nil {
		t.Fatal(err)
	}
	if err := copyPrograms(root, "sh", "cat", "sleep", "id", "ls", "head", "stty", "tty", "true", "mkdir", "ln", "grep", "wc", "env", "dd", "setsid", "perl", "rm", "mkfifo"); err != nil {
		t.Fatal(err)
	}
	if err := chownTree(root, testIDBase-65536); err != nil {
		t.Fatal(err)
	}
	return root
}

func makeJail(t testing.TB, h *Host, s jail.Spec) supervisor.Jail {
	t.Helper()
	p, err := jail.NewPlan(s, h.Features())
	if err != nil {
		t.Fatal(err)
	}
	j, err := h.Make(context.Background(), p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		report, err := j.Close(context.Background())
		if err != nil || !report.Clean() {
			t.Errorf("close: %v: %+v", err, report)
		}
	})
	return j
}

type result struct {
	out, err string
	end      jail.ExecEnd
}

// run runs a command to its end with the given standard input.
func run(t testing.TB, j supervisor.Jail, id, stdin string, argv ...string) result {
	t.Helper()
	e, err := j.Exec(context.Background(), jail.ExecSpec{ID: id, Argv: argv, Cwd: "/workspace"})
	if err != nil {
		t.Fatalf("exec %v: %v", argv, err)
	}
	return finish(t, e, stdin)
}

func finish(t testing.TB, e supervisor.Exec, stdin string) result {
	t.Helper()
	go func() {
		_, _ = io.WriteString(e.Stdin(), stdin)
		_ = e.Stdin().Close()
	}()
	errc := make(chan string, 1)
	go func() {
		if e.Stderr() == nil {
			errc <- ""
			return
		}
		b, _ := io.ReadAll(e.Stderr())
		errc <- string(b)
	}()
	out, rerr := io.ReadAll(e.Stdout())
	if rerr != nil {
		t.Errorf("read output: %v", rerr)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	end, err := e.Wait(ctx)
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	r := result{out: string(out), err: <-errc, end: end}
	if err := e.Close(); err != nil {
		t.Errorf("close exec: %v", err)
	}
	return r
}

func TestJailRunsACommand(t *testing.T) {
	h := newHost(t)
	j := makeJail(t, h, testSpec(t))
	if bad := j.ReadBack().Failed(); len(bad) != 0 {
		t.Errorf("read back: %+v", bad)
	}
	r := run(t, j, "e-1", "hello", "sh", "-c", "cat; id -u; echo oops >&2; exit 3")
	if r.out != "hello10000\n" || r.err != "oops\n" || r.end.ExitCode != 3 {
		t.Errorf("got %+v", r)
	}
	if r.end.Witness != "kernel" && h.Features().PidfdInfo {
		t.Errorf("witness = %q, want kernel", r.end.Witness)
	}
}

func TestStartErrors(t *testing.T) {
	h := newHost(t)
	j := makeJail(t, h, testSpec(t))
	for i, tc := range []struct {
		argv []string
		cwd  string
		code int
		step string
	}{
		{[]string{"no-such-command"}, "/workspace", 127, "lookup"},
		{[]string{"/no/such/file"}, "/workspace", 127, "lookup"},
		{[]string{"/etc"}, "/workspace", 126, "lookup"},
		{[]string{"/.cordon"}, "/", 126, "lookup"},
		{[]string{"true"}, "/nowhere", 125, "cwd"},
	} {
		e, err := j.Exec(context.Background(), jail.ExecSpec{ID: fmt.Sprint("e-", i), Argv: tc.argv, Cwd: tc.cwd})
		if err != nil {
			t.Fatal(err)
		}
		end, err := e.Wait(context.Background())
		if err != nil || end.Start == nil || end.Start.Code != tc.code || end.Start.Step != tc.step {
			t.Errorf("exec %v in %s: %+v, %v, want code %d at %s", tc.argv, tc.cwd, end, err, tc.code, tc.step)
		}
	}
}
