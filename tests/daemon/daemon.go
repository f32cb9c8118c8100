// Package daemon starts a real cordond for a test: built from this tree, with
// a state directory, a socket and a parent cgroup of its own, and stopped and
// looked after when the test ends, whether it passed or not.
//
// It needs root. A Daemon belongs to one test; its methods may be called from
// any goroutine of it. Nothing that is not about processes of the project
// belongs here.
package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cordon/api/client"
	"cordon/internal/sys"
	"cordon/supervisor/envelope"
)

// Daemon is one running cordond.
type Daemon struct {
	Socket string
	State  string
	Run    string
	Group  string // parent cgroup's name
	Bin    string // where cordond, cordon and cordon-init are
	Policy string

	t   testing.TB
	cmd *exec.Cmd
	log *syncBuffer
}

// Options change what a test's daemon is started with. The zero value is the
// shipped policy and a state directory in the test's own temporary directory.
type Options struct {
	Policy string // a policy document
	State  string // a state directory, e.g. on a small file system
}

// binaries are built once a test program. The directory is not a test's own:
// the first test of a program must not take it along.
var binaries = sync.OnceValues(buildAll)

func buildAll() (string, error) {
	dir := binDir()
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	for name, cgo := range map[string]string{"cordond": "1", "cordon": "0", "cordon-init": "0"} {
		cmd := exec.Command("go", "build", "-tags", "seccomp", "-o", filepath.Join(dir, name), "cordon/cmd/"+name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo)
		if out, err := cmd.CombinedOutput(); err != nil {
			return dir, fmt.Errorf("build %s: %w: %s", name, err, out)
		}
	}
	return dir, nil
}

// binDir is this test program's own.
func binDir() string {
	return filepath.Join(os.TempDir(), fmt.Sprint("cordon-bin-", os.Getpid()))
}

// Main runs a test program's tests and removes the programs it built.
func Main(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(binDir())
	os.Exit(code)
}

// Binaries returns the directory with the three programs, built from this
// tree.
func Binaries(t testing.TB) string {
	t.Helper()
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

// New starts a daemon and stops it when the test ends. Then nothing of it may
// be left: no cgroup, mount, loop device, BPF pin or process.
func New(t testing.TB, opt Options) *Daemon {
	t.Helper()
	d := Prepare(t, opt)
	d.Start()
	return d
}

// Prepare is New without the start.
func Prepare(t testing.TB, opt Options) *Daemon {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: cordond makes namespaces, mounts and cgroups")
	}
	run, err := os.MkdirTemp("/run", "cordon-test-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(run, 0o755); err != nil {
		t.Fatal(err)
	}
	// The command line keeps lease secrets in there.
	t.Setenv("XDG_RUNTIME_DIR", run)
	d := &Daemon{
		t: t, Run: run, Bin: Binaries(t), State: opt.State,
		Socket: filepath.Join(run, "api", "cordond.sock"),
		Group:  filepath.Base(run),
		Policy: filepath.Join(run, "policy.yaml"),
		log:    &syncBuffer{},
	}
	if d.State == "" {
		d.State = stateDir(t)
	}
	d.writePolicy(opt.Policy)
	t.Cleanup(d.finish)
	return d
}

// stateDir is on a disk file system: volumes are sparse files under loop
// devices with direct I/O, which tmpfs does not offer everywhere. The image
// store inside is shared by all tests of a program, since a host snapshot
// takes seconds and is read-only.
func stateDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/lib", "cordon-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove state directory: %v", err)
		}
	})
	return dir
}

func (d *Daemon) writePolicy(doc string) {
	d.t.Helper()
	if doc == "" {
		b, err := os.ReadFile(filepath.Join(root(), "deploy", "policy.yaml"))
		if err != nil {
			d.t.Fatal(err)
		}
		doc = string(b)
	}
	// Host ids that no other daemon on this machine uses.
	doc = idBase.ReplaceAllString(doc, "${1} 1979711488")
	if err := os.WriteFile(d.Policy, []byte(doc), 0o644); err != nil {
		d.t.Fatal(err)
	}
}

var idBase = regexp.MustCompile(`(?m)^( *id_base:).*`)

// root is the top of the tree this file was compiled from.
func root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// Command is the daemon's command line, not started.
func (d *Daemon) Command() *exec.Cmd {
	cmd := exec.Command(filepath.Join(d.Bin, "cordond"),
		"-state", d.State, "-run", d.Run, "-socket", d.Socket, "-cgroup", d.Group,
		"-init", filepath.Join(d.Bin, "cordon-init"), "-policy", d.Policy)
	cmd.Stdout, cmd.Stderr = d.log, d.log
	return cmd
}

// Start starts the daemon and waits until it answers.
func (d *Daemon) Start() {
	d.t.Helper()
	d.cmd = d.Command()
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	var err error
	sys.PollUntil(30*time.Second, 20*time.Millisecond, func() bool {
		err = d.answers()
		return err == nil || d.exited()
	})
	if err != nil {
		d.t.Fatalf("cordond does not answer: %v\n%s", err, d.Log())
	}
}

func (d *Daemon) answers() error {
	c, err := client.Dial(context.Background(), d.Socket)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Info(context.Background())
	return err
}

func (d *Daemon) exited() bool {
	var ws syscall.WaitStatus
	pid, err := syscall.Wait4(d.cmd.Process.Pid, &ws, syscall.WNOHANG, nil)
	return err != nil || pid != 0
}

// Running reports whether the daemon has been started and not ended by the
// test.
func (d *Daemon) Running() bool { return d.cmd != nil }

// PID is the daemon's process id.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Log is what the daemon wrote so far.
func (d *Daemon) Log() string { return d.log.String() }

// Kill ends the daemon as a crash would.
func (d *Daemon) Kill() {
	d.t.Helper()
	if err := d.cmd.Process.Kill(); err != nil {
		d.t.Error(err)
	}
	_ = d.cmd.Wait()
	d.cmd = nil
}

// Stop ends the daemon as an operator would.
func (d *Daemon) Stop() {
	d.t.Helper()
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	done := make(chan error, 1)
	go func() { done <- d.cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			d.t.Errorf("cordond stopped with %v\n%s", err, d.Log())
		}
	case <-time.After(60 * time.Second):
		_ = d.cmd.Process.Kill()
		d.t.Errorf("cordond did not stop until killed: %v\n%s", <-done, d.Log())
	}
	d.cmd = nil
}

func (d *Daemon) finish() {
	d.Stop()
	for kind, left := range d.Leftovers("") {
		d.t.Errorf("left behind after the daemon: %s: %v", kind, left)
	}
	if d.t.Failed() {
		d.t.Logf("cordond's log:\n%s", d.Log())
	}
	if err := os.RemoveAll(d.Run); err != nil {
		d.t.Error(err)
	}
}

// Client connects to the daemon as the test's own user.
func (d *Daemon) Client() *client.Client {
	d.t.Helper()
	c, err := client.Dial(context.Background(), d.Socket)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = c.Close() })
	return c
}

// CLI runs the command line against the daemon and returns what it printed.
func (d *Daemon) CLI(stdin string, args ...string) (stdout, stderr string, code int) {
	d.t.Helper()
	cmd := exec.Command(filepath.Join(d.Bin, "cordon"), append([]string{"--socket", d.Socket}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errb bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errb
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		d.t.Fatal(err)
	}
	return out.String(), errb.String(), cmd.ProcessState.ExitCode()
}

// Envelope is a small, complete request for a run on the host's own image.
func (d *Daemon) Envelope(c *client.Client) envelope.Envelope {
	d.t.Helper()
	img, err := c.SnapshotHost(context.Background(), nil)
	if err != nil {
		d.t.Fatalf("snapshot host: %v\n%s", err, d.Log())
	}
	var e envelope.Envelope
	e.ImageDigest = img.Digest
	e.Identity.Tenant, e.Identity.RunID = "root", "test-run"
	e.Resources.MemoryBytes, e.Resources.DiskBytes = 128<<20, 32<<20
	e.Resources.ProcessCount, e.Resources.CPUMilli = 32, 1000
	e.Artifacts.Allow = []string{"result.json"}
	return e
}

// Leftovers lists what carries the daemon's (or one lease's) name, by kind.
// needle narrows it to one lease; empty means everything of this daemon's.
func (d *Daemon) Leftovers(needle string) map[string][]string {
	left := map[string][]string{}
	own := func(s string) bool {
		if needle != "" {
			return strings.Contains(s, needle)
		}
		return strings.Contains(s, d.Group) || strings.Contains(s, d.State)
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && own(path) {
			left["cgroups"] = append(left["cgroups"], path)
		}
		return nil
	})
	left["mounts"] = d.mounts(own)
	if len(left["mounts"]) == 0 {
		delete(left, "mounts")
	}
	for _, f := range glob("/sys/block/loop*/loop/backing_file") {
		if b, _ := os.ReadFile(f); own(string(b)) {
			left["loop devices"] = append(left["loop devices"], f+" "+strings.TrimSpace(string(b)))
		}
	}
	for _, f := range glob("/proc/[0-9]*/cgroup") {
		if b, _ := os.ReadFile(f); own(string(b)) {
			left["processes"] = append(left["processes"], f)
		}
	}
	return left
}

// mounts goes through the mount table of every namespace once. A state
// directory that is a mount of the test's own is not the daemon's.
func (d *Daemon) mounts(own func(string) bool) []string {
	var left []string
	seen := map[string]bool{}
	for _, table := range glob("/proc/[0-9]*/mountinfo") {
		ns, err := os.Readlink(filepath.Join(filepath.Dir(table), "ns", "mnt"))
		if err != nil || seen[ns] {
			continue
		}
		seen[ns] = true
		b, _ := os.ReadFile(table)
		for line := range strings.Lines(string(b)) {
			if own(line) && !strings.Contains(line, " "+d.State+" ") {
				left = append(left, strings.TrimSpace(line))
			}
		}
	}
	return left
}

func glob(pattern string) []string {
	names, err := filepath.Glob(pattern)
	if err != nil {
		panic(err) // the patterns are constants
	}
	return names
}

// syncBuffer is a log that the daemon writes and the test reads.
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
