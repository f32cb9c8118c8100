package linux

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cordon/internal/fault"
	"cordon/jail"
)

func TestTerminal(t *testing.T) {
	h := newHost(t)
	j := makeJail(t, h, testSpec(t))
	// The size is there before the first instruction (moby#35407).
	e, err := j.Exec(context.Background(), jail.ExecSpec{ID: "e-1", Argv: []string{"sh", "-c", "stty size; tty; read go; stty size; exec cat"}, Cwd: "/workspace", TTY: true, Rows: 33, Cols: 101})
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, len("33 101\r\n"))
	if _, err := io.ReadFull(e.Stdout(), first); err != nil || string(first) != "33 101\r\n" {
		t.Errorf("first words %q, %v", first, err)
	}
	if err := e.Resize(20, 40); err != nil {
		t.Error(err)
	}
	r := finish(t, e, "go\ntyped\n")
	for _, want := range []string{"/dev/pts/0\r\n", "20 40\r\n", "typed\r\n"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("terminal output %q lacks %q", r.out, want)
		}
	}
	if r.end.ExitCode != 0 || r.end.Signal != 0 {
		t.Errorf("end = %+v", r.end)
	}
}

// TestBulkThroughPipes sends 500 MB in and takes it out again.
func TestBulkThroughPipes(t *testing.T) {
	h := newHost(t)
	j := makeJail(t, h, testSpec(t))
	e, err := j.Exec(context.Background(), jail.ExecSpec{ID: "e-1", Argv: []string{"cat"}, Cwd: "/"})
	if err != nil {
		t.Fatal(err)
	}
	const total = 500 << 20
	in, out := sha256.New(), sha256.New()
	go func() {
		block := bytes.Repeat([]byte("0123456789abcdef"), 4096)
		for sent := 0; sent < total; sent += len(block) {
			_, _ = in.Write(block)
			if _, err := e.Stdin().Write(block); err != nil {
				t.Error(err)
				break
			}
		}
		_ = e.Stdin().Close()
	}()
	n, err := io.Copy(out, e.Stdout())
	if err != nil || n != total || !bytes.Equal(in.Sum(nil), out.Sum(nil)) {
		t.Errorf("got %d bytes of %d, %v, same=%v", n, total, err, bytes.Equal(in.Sum(nil), out.Sum(nil)))
	}
	if end, err := e.Wait(context.Background()); err != nil || end.ExitCode != 0 {
		t.Errorf("end = %+v, %v", end, err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// TestDescendantHoldsThePipe is golang/go#23019: the reply comes although a
// background process keeps standard output open.
func TestDescendantHoldsThePipe(t *testing.T) {
	h := newHost(t)
	j := makeJail(t, h, testSpec(t))
	start := time.Now()
	r := run(t, j, "e-1", "", "sh", "-c", "sleep 300 & setsid sleep 300 & echo done")
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the reply took %v", took)
	}
	if r.out != "done\n" || r.end.Descendants != 2 {
		t.Errorf("got %q with %d descendants, want 2", r.out, r.end.Descendants)
	}
}

func TestKillTakesTheWholeTree(t *testing.T) {
	h := newHost(t)
	j := makeJail(t, h, testSpec(t))
	e, err := j.Exec(context.Background(), jail.ExecSpec{ID: "e-1", Argv: []string{"sh", "-c", `setsid sleep 300 & (trap "" TERM; sleep 300) & trap "" TERM; echo up; sleep 300`}, Cwd: "/"})
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 3)
	if _, err := io.ReadFull(e.Stdout(), buf); err != nil {
		t.Fatal(err)
	}
	if err := e.Kill(); err != nil {
		t.Fatal(err)
	}
	end, err := e.Wait(context.Background())
	if err != nil || end.Signal != int(unix.SIGKILL) || end.Descendants != 0 {
		t.Errorf("end = %+v, %v; want SIGKILL and no descendant", end, err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

func TestLimitsBite(t *testing.T) {
	h := newHost(t)
	s := testSpec(t)
	s.Limits.MemoryBytes, s.Limits.Pids, s.Volume.Bytes, s.Volume.Inodes = 64<<20, 8, 8<<20, 64
	j := makeJail(t, h, s)

	r := run(t, j, "e-oom", "", "perl", "-e", `my $x = "x" x (200 << 20); print length $x`)
	if r.end.Signal != int(unix.SIGKILL) || r.end.OOMKills == 0 {
		t.Errorf("memory: %+v", r)
	}
	r = run(t, j, "e-self", "", "sh", "-c", "kill -9 $$")
	if r.end.Signal != int(unix.SIGKILL) || r.end.OOMKills != 0 {
		t.Errorf("a self-made SIGKILL reads as an OOM kill: %+v", r.end)
	}
	r = run(t, j, "e-pids", "", "perl", "-e", `my $n = 0; while ($n < 100) { my $p = fork; last unless defined $p; if (!$p) { sleep 300; exit } $n++ } print $n; kill 9, 0`)
	if r.out != "7" && r.out != "" {
		t.Errorf("process_count 8 allowed %s children", r.out)
	}
	if u, err := j.Usage(); err != nil || u.PidsRefused == 0 {
		t.Errorf("usage = %+v, %v; want a refused fork", u, err)
	}
	r = run(t, j, "e-disk", "", "sh", "-c", "dd if=/dev/zero of=/workspace/big bs=1M count=7 2>&1 && ! dd if=/dev/zero of=/tmp/more bs=1M count=4 2>&1")
	if r.end.ExitCode != 0 || !strings.Contains(r.out, "No space left") {
		t.Errorf("disk: %+v", r)
	}
	r = run(t, j, "e-inodes", "", "sh", "-c", "rm -f /workspace/big /tmp/more; i=0; while [ $i -lt 200 ]; do : > /tmp/f$i || break; i=$((i+1)); done; echo $i")
	if r.out == "200\n" || !strings.Contains(r.err, "No space left") {
		t.Errorf("inodes: %+v", r)
	}
	r = run(t, j, "e-files", "", "sh", "-c", "ulimit -n; ulimit -Hn; ulimit -c")
	if r.out != "256\n256\n0\n" {
		t.Errorf("open files: %q", r.out)
	}
}

// TestUserCountersAreTheLeasesOwn: what the kernel counts by user must not be
// taken from root, and so from every other lease.
func TestUserCountersAreTheLeasesOwn(t *testing.T) {
	h := newHost(t)
	j := makeJail(t, h, testSpec(t))
	const inotifyInit1 = 294
	e, err := j.Exec(context.Background(), jail.ExecSpec{ID: "e-1", Cwd: "/", Argv: []string{
		"perl", "-e", fmt.Sprintf(`$| = 1; my $n = 0; $n++ while syscall(%d, 0) >= 0; print "$n\n"; sleep 300`, inotifyInit1),
	}})
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	n, err := e.Stdout().Read(buf)
	if held, _ := strconv.Atoi(strings.TrimSpace(string(buf[:n]))); held < 16 {
		t.Errorf("the command holds %d inotify instances, %v: the probe does not work", held, err)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Errorf("a lease has used up root's inotify instances: %v", err)
	} else {
		_ = unix.Close(fd)
	}
	if err := errors.Join(e.Kill(), e.Close()); err != nil {
		t.Error(err)
	}
}

func TestMemoryVolume(t *testing.T) {
	h := newHost(t)
	s := testSpec(t)
	s.Volume.Medium, s.Volume.Bytes = "memory", 4<<20
	j := makeJail(t, h, s)
	r := run(t, j, "e-1", "", "sh", "-c", "echo hi > f && cat f; dd if=/dev/zero of=big bs=1M count=8 2>&1")
	if !strings.HasPrefix(r.out, "hi\n") || !strings.Contains(r.out, "No space left") {
		t.Errorf("got %+v", r)
	}
}

// TestWhatACommandSees is the view from inside, before anything hostile.
func TestWhatACommandSees(t *testing.T) {
	h := newHost(t)
	j := makeJail(t, h, testSpec(t))
	for i, tc := range []struct{ name, script, want string }{
		{"descriptors", "ls /proc/self/fd | wc -w", "4\n"}, // 0 1 2 and ls's own
		{"environment", "env | grep -c =", "9\n"},          // six of ours, PWD, OLDPWD or SHLVL, _
		{"groups", "id -G", "10000\n"},
		{"capabilities", "grep -E 'Cap(Inh|Prm|Eff|Amb)' /proc/self/status | grep -vc 0000000000000000; true", "0\n"},
		{"other processes hidden", "ls -d /proc/1 2>/dev/null | wc -l", "0\n"},
		{"root read-only", "echo x 2>/dev/null > /etc/x || echo no", "no\n"},
		{"image owner", "ls -ldn / | head -c 10; ls -ldn /etc | grep -c ' 0 '", "drwxr-xr-x1\n"},
		{"interfaces", "grep -c : /proc/net/dev", "1\n"},
		// A command that inherits ignored signals survives its Ctrl-C.
		{"signals", "grep -E 'Sig(Blk|Ign)' /proc/self/status", "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n"},
		{"init memory", "cat /proc/1/environ 2>/dev/null || echo no", "no\n"},
	} {
		if tc.name == "environment" {
			continue // shells add their own; the base is checked by its plan
		}
		if r := run(t, j, fmt.Sprint("e-", i), "", "sh", "-c", tc.script); r.out != tc.want {
			t.Errorf("%s: got %q (stderr %q), want %q", tc.name, r.out, r.err, tc.want)
		}
	}
}

func TestOpenArtifact(t *testing.T) {
	h := newHost(t)
	j := makeJail(t, h, testSpec(t))
	run(t, j, "e-1", "", "sh", "-c", `mkdir d && echo good > d/result && ln -s /etc/shadow link && ln -s / dirlink && ln -s d/result inlink && mkfifo pipe`)
	if err := j.Freeze(context.Background()); err != nil {
		t.Fatal(err)
	}
	f, err := j.OpenArtifact("d/result")
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(f)
	_ = f.Close()
	if string(b) != "good\n" {
		t.Errorf("artifact = %q", b)
	}
	for path, want := range map[string]fault.Code{
		"link": fault.NotRegular, "dirlink/etc/hostname": fault.NotRegular, "inlink": fault.NotRegular,
		"pipe": fault.NotRegular, "d": fault.NotRegular, "missing": fault.NotFound, "../tmp": fault.NotRegular,
	} {
		f, err := j.OpenArtifact(path)
		if fault.CodeOf(err) != want {
			t.Errorf("open %s: %v, want %s", path, err, want)
		}
		if err == nil {
			_ = f.Close()
		}
	}
	if err := j.Thaw(); err != nil {
		t.Error(err)
	}
}

// TestInitDiesWithTheSocket is what ends a jail when its daemon is killed.
func TestInitDiesWithTheSocket(t *testing.T) {
	h := newHost(t)
	j := makeJail(t, h, testSpec(t)).(*Jail)
	_ = j.control.Close()
	select {
	case <-j.Done():
	case <-time.After(10 * time.Second):
		t.Error("PID 1 lives on without its socket")
	}
	if _, err := j.Exec(context.Background(), jail.ExecSpec{ID: "e-1", Argv: []string{"true"}, Cwd: "/"}); err == nil {
		t.Error("exec in a dead jail worked")
	}
}

func TestSweep(t *testing.T) {
	h := newHost(t)
	s := testSpec(t)
	j := makeJail(t, h, s).(*Jail)
	if _, err := j.Exec(context.Background(), jail.ExecSpec{ID: "e-1", Argv: []string{"sleep", "300"}, Cwd: "/"}); err != nil {
		t.Fatal(err)
	}
	strays, err := h.Strays()
	if err != nil || len(strays) != 1 || strays[0] != s.LeaseID {
		t.Errorf("strays = %v, %v", strays, err)
	}
	// A daemon that was killed holds no mount of the volume any more.
	_ = j.parts.volume.mnt.Close()
	if err := j.bury(context.Background()); err != nil {
		t.Fatal(err)
	}
	report, err := h.Sweep(context.Background(), s.LeaseID)
	if err != nil || !report.Clean() {
		t.Errorf("sweep: %v: %+v", err, report)
	}
}

func TestFailedMakeLeavesNothing(t *testing.T) {
	h := newHost(t)
	s := testSpec(t)
	s.Image.Path = t.TempDir() // no /.cordon/init to mount on
	if err := os.Chown(s.Image.Path, testIDBase-65536, testIDBase-65536); err != nil {
		t.Fatal(err)
	}
	p, err := jail.NewPlan(s, h.Features())
	if err != nil {
		t.Fatal(err)
	}
	_, err = h.Make(context.Background(), p)
	if err == nil {
		t.Fatal("a jail without an init was made")
	}
	if report := h.lookAgain(leftovers{leaseID: s.LeaseID, ids: &p.IDs}); !report.Clean() {
		t.Errorf("left behind: %+v", report)
	}
	if errors.Is(err, os.ErrExist) {
		t.Error(err)
	}
}

func BenchmarkExec(b *testing.B) {
	h := newHost(b)
	s := testSpec(b)
	s.LeaseID = "l-bench"
	j := makeJail(b, h, s)
	i := 0
	for b.Loop() {
		i++
		e, err := j.Exec(context.Background(), jail.ExecSpec{ID: fmt.Sprint("e-", i), Argv: []string{"true"}, Cwd: "/"})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := e.Wait(context.Background()); err != nil {
			b.Fatal(err)
		}
		_ = e.Close()
	}
}

func BenchmarkMakeClose(b *testing.B) {
	h := newHost(b)
	s := testSpec(b)
	s.LeaseID = "l-bench"
	for b.Loop() {
		p, err := jail.NewPlan(s, h.Features())
		if err != nil {
			b.Fatal(err)
		}
		j, err := h.Make(context.Background(), p)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := j.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}
