package lease

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cordon/api/client"
	"cordon/internal/sys"
	"cordon/supervisor/envelope"
	"cordon/tests/daemon"
)

// TestBadInput: each refusal names the field or the fact and the remedy, and
// leaves nothing.
func TestBadInput(t *testing.T) {
	d := daemon.New(t, daemon.Options{})
	c := d.Client()
	good := d.Envelope(c)
	zeros := "sha256:" + strings.Repeat("0", 64)
	for _, tc := range []struct {
		name  string
		edit  func(*envelope.Envelope)
		code  string
		field string
	}{
		{"unknown image", func(e *envelope.Envelope) { e.ImageDigest = zeros }, "unknown_image", "image"},
		{"digest that is none", func(e *envelope.Envelope) { e.ImageDigest = "latest" }, "invalid_envelope", "image_digest"},
		{"unknown input", func(e *envelope.Envelope) { e.Filesystem.Inputs = []envelope.Input{{Digest: zeros}} }, "unknown_input", "input"},
		{"root as workload", func(e *envelope.Envelope) { e.Identity.UID = 65534 }, "invalid_envelope", "identity.uid"},
		{"other tenant", func(e *envelope.Envelope) { e.Identity.Tenant = "nobody-knows" }, "permission_denied", "identity.tenant"},
		{"more than the host", func(e *envelope.Envelope) { e.Resources.MemoryBytes = 1 << 50 }, "", "memory_bytes"},
		{"a destination", func(e *envelope.Envelope) { e.NetworkEgress.AllowedDestinations = []string{"example.com"} }, "", "allowed_destinations"},
		{"a device", func(e *envelope.Envelope) { e.Filesystem.Devices = []string{"/dev/kvm"} }, "", "devices"},
		{"persistent workspace", func(e *envelope.Envelope) { e.WorkspaceLifetime = "persistent" }, "", "workspace_lifetime"},
		{"browser profile", func(e *envelope.Envelope) { e.BrowserProfile = "mine" }, "", "browser_profile"},
		{"another tier", func(e *envelope.Envelope) { e.Isolation.Tier = "microvm" }, "", "isolation.tier"},
		{"a way out", func(e *envelope.Envelope) { e.Artifacts.Allow = []string{"../../etc/shadow"} }, "invalid_envelope", "artifacts.allow"},
		{"two sizes", func(e *envelope.Envelope) { e.Filesystem.Workspace.MaxBytes = 1 << 30 }, "invalid_envelope", "max_bytes"},
		{"other runtime", func(e *envelope.Envelope) { e.RuntimeRevision = "somewhere-else" }, "", "runtime_revision"},
	} {
		e := good
		e.Identity.RunID = "bad"
		tc.edit(&e)
		_, err := c.Acquire(context.Background(), e, client.AcquireOptions{})
		ce, ok := errors.AsType[*client.Error](err)
		if !ok {
			t.Errorf("%s: %v, want a refusal", tc.name, err)
			continue
		}
		if tc.code != "" && string(ce.Code) != tc.code {
			t.Errorf("%s: code %s, want %s (%v)", tc.name, ce.Code, tc.code, err)
		}
		if !strings.Contains(ce.Error(), tc.field) || ce.Remedy == "" {
			t.Errorf("%s: %q should name %s and have a remedy, has %q", tc.name, ce.Error(), tc.field, ce.Remedy)
		}
	}
	leases, err := c.Leases(context.Background())
	for _, l := range leases {
		if l.State != "closed" {
			t.Errorf("a refused lease is %s", l.State)
		}
	}
	if err != nil {
		t.Error(err)
	}
	if left := d.Leftovers("/" + d.Group + "/l-"); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestInputDigestIsVerified(t *testing.T) {
	d := daemon.New(t, daemon.Options{})
	c := d.Client()
	_, err := c.PutInput(context.Background(), "root", strings.NewReader("data"), 4, "sha256:"+strings.Repeat("1", 64))
	wantCode(t, "a wrong digest", err, "digest_mismatch")
}

func TestCommandLimits(t *testing.T) {
	d := daemon.New(t, daemon.Options{})
	c := d.Client()
	l := acquire(t, d, c, d.Envelope(c))
	long := strings.Repeat("x", 3<<20)
	_, err := l.Run(context.Background(), client.Command{Argv: []string{"echo", long}})
	if ce, ok := errors.AsType[*client.Error](err); !ok || ce.Remedy == "" {
		t.Errorf("a 3 MiB argument: %v, want a refusal with a remedy", err)
	}
	for name, argv := range map[string][]string{"empty": {}, "NUL": {"echo", "a\x00b"}} {
		if _, err := l.Run(context.Background(), client.Command{Argv: argv}); err == nil {
			t.Errorf("argv with %s was run", name)
		}
	}
	if end, out, _ := sh(t, l, "echo still here"); !end.OK() || out != "still here\n" {
		t.Errorf("after the refusals: %+v %q", end, out)
	}
	_, _, err = l.Export(context.Background(), "/etc/shadow", &bytes.Buffer{})
	wantCode(t, "export of what was not declared", err, "not_declared")
}

// TestVanishingClient kills the command line in mid-exec.
func TestVanishingClient(t *testing.T) {
	d := daemon.New(t, daemon.Options{})
	c := d.Client()
	l := acquire(t, d, c, d.Envelope(c))
	cmd := exec.Command(filepath.Join(d.Bin, "cordon"), "--socket", d.Socket, "exec", l.ID(), "--", "sh", "-c", "setsid sleep 300 & echo up; sleep 300")
	cmd.Env = append(os.Environ(), "CORDON_LEASE_SECRET="+l.Secret())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	var execs []client.ExecInfo
	ended := sys.PollUntil(15*time.Second, 10*time.Millisecond, func() bool {
		info, err := l.Get(context.Background())
		if err != nil {
			t.Error(err)
			return true
		}
		execs = info.Execs
		return len(execs) == 1 && !execs[0].Running
	})
	if !ended {
		t.Fatalf("the command goes on without its client: %+v", execs)
	}
	if execs[0].End == nil || execs[0].End.Cause != client.CommandCancelled {
		t.Errorf("the command ended as %+v, want cancelled", execs[0].End)
	}
	if _, out, _ := sh(t, l, "ls /proc | grep -c '^[0-9]'"); strings.TrimSpace(out) == "" {
		t.Error("the lease is of no use after its client left")
	}
}

// TestAttach takes over a command whose first client left.
func TestAttach(t *testing.T) {
	d := daemon.New(t, daemon.Options{})
	c := d.Client()
	l := acquire(t, d, c, d.Envelope(c))
	ctx, leave := context.WithCancel(context.Background())
	started := make(chan string, 1)
	gone := make(chan struct{})
	quiet, keepOpen := io.Pipe() // a standard input that neither speaks nor ends
	defer keepOpen.Close()
	go func() {
		defer close(gone)
		_, _ = l.Run(ctx, client.Command{Argv: []string{"sh", "-c", "echo first; read line; echo got $line"}, Stdin: quiet, Keep: true, Started: func(id string) { started <- id }})
	}()
	id := <-started
	leave()
	<-gone
	var out bytes.Buffer
	end, err := l.Attach(context.Background(), id, client.Streams{Stdin: strings.NewReader("word\n"), Stdout: &out})
	if err != nil || !end.OK() || out.String() != "first\ngot word\n" {
		t.Errorf("attach: %q %+v %v", out.String(), end, err)
	}
}

// TestSecondDaemon: one state directory, one run directory and one cgroup are
// one daemon's. A second one that shares any of them says so before it
// touches the first one's leases.
func TestSecondDaemon(t *testing.T) {
	d := daemon.New(t, daemon.Options{})
	c := d.Client()
	l := acquire(t, d, c, d.Envelope(c))
	other := t.TempDir()
	for name, args := range map[string][]string{
		"state":  {"-run", filepath.Join(other, "run"), "-socket", filepath.Join(other, "api/s"), "-cgroup", d.Group + "-2"},
		"run":    {"-state", filepath.Join(other, "state"), "-cgroup", d.Group + "-3"},
		"cgroup": {"-state", filepath.Join(other, "state2"), "-run", filepath.Join(other, "run2"), "-socket", filepath.Join(other, "api2/s")},
	} {
		cmd := d.Command()
		var out bytes.Buffer
		cmd.Args = append(cmd.Args, args...)
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err == nil || !strings.Contains(out.String(), "another cordond") {
			t.Errorf("a second daemon on the same %s: %v: %s", name, err, out.String())
		}
	}
	if end, out, _ := sh(t, l, "echo still here"); !end.OK() || out != "still here\n" {
		t.Errorf("the first daemon's lease afterwards: %+v %q", end, out)
	}
}

func TestNeedsRoot(t *testing.T) {
	d := daemon.Prepare(t, daemon.Options{})
	cmd := d.Command()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if err := cmd.Run(); err == nil || !strings.Contains(out.String(), "root") {
		t.Errorf("cordond as nobody: %v: %s", err, out.String())
	}
}

// TestUnprivilegedCaller: a uid that the policy gives a tenant asks for what
// only root may read, in every way the API has.
func TestUnprivilegedCaller(t *testing.T) {
	policy, err := os.ReadFile("../../deploy/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	doc := strings.Replace(string(policy), "group: cordon", "uid: 65534", 1)
	if doc == string(policy) {
		t.Fatal("the shipped policy names no cordon group")
	}
	d := daemon.New(t, daemon.Options{Policy: doc})
	d.Envelope(d.Client()) // the image is there
	// The socket's directory is for root and the cordon group; stand in for
	// a member of it.
	if err := os.Chown(filepath.Dir(d.Socket), 0, 65534); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(d.Socket, 0, 65534); err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(d.Run, "nobody")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(home, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	as := func(args ...string) (string, error) {
		cmd := exec.Command(filepath.Join(d.Bin, "cordon"), append([]string{"--socket", d.Socket}, args...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=/nonexistent", "XDG_RUNTIME_DIR=" + home}
		cmd.Dir = "/"
		b, err := cmd.CombinedOutput()
		return string(b), err
	}
	if out, err := as("run", "--", "id", "-u"); err != nil || !strings.Contains(out, "10000") {
		t.Fatalf("a plain run as nobody: %v: %s\n%s", err, out, d.Log())
	}
	secret := []byte("root:")
	for name, args := range map[string][]string{
		"as an input":         {"run", "--input", "x=/etc/shadow", "--", "cat", "/inputs/x"},
		"from inside":         {"run", "--", "cat", "/etc/shadow"},
		"as an artifact":      {"run", "--artifact", "/etc/shadow", "--", "true"},
		"by a link":           {"run", "--artifact", "x:-", "--", "ln", "-s", "/etc/shadow", "x"},
		"as an image":         {"image", "import", "/etc/shadow"},
		"as another's tenant": {"run", "--tenant", "root", "--", "true"},
	} {
		out, err := as(args...)
		if err == nil || bytes.Contains([]byte(out), secret) {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

// TestDiskFull has the state directory on a file system too small for what is
// asked.
func TestDiskFull(t *testing.T) {
	state := smallDisk(t, 96<<20)
	d := daemon.New(t, daemon.Options{State: state})
	c := d.Client()
	img, err := c.ImportImage(context.Background(), "tiny", tinyImage(t))
	if err != nil {
		t.Fatalf("import: %v\n%s", err, d.Log())
	}
	big := bytes.NewReader(make([]byte, 200<<20))
	_, err = c.PutInput(context.Background(), "root", big, big.Size(), "")
	wantCode(t, "an input larger than the disk", err, "disk_full")

	e := envelope.Envelope{ImageDigest: img.Digest}
	e.Identity.Tenant, e.Identity.RunID = "root", "full"
	e.Resources.DiskBytes = 16 << 20
	l := acquire(t, d, c, e)
	if end, err := l.Run(context.Background(), client.Command{Argv: []string{"/bin/true"}}); err != nil || !end.OK() {
		t.Errorf("after the refusal: %+v, %v", end, err)
	}
}

// smallDisk mounts an ext4 file system of the given size for a test.
func smallDisk(t *testing.T, size int64) string {
	t.Helper()
	dir := t.TempDir()
	img, mnt := filepath.Join(dir, "disk.img"), filepath.Join(dir, "mnt")
	if err := os.WriteFile(img, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(img, size); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(mnt, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, argv := range [][]string{{"mke2fs", "-q", "-F", "-t", "ext4", img}, {"mount", "-o", "loop", img, mnt}} {
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", argv, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mnt, 0); err != nil {
			t.Errorf("unmount the small disk: %v", err)
		}
	})
	return mnt
}

// tinyImage is a tar with one static program, /bin/true.
func tinyImage(t *testing.T) *bytes.Reader {
	t.Helper()
	src := filepath.Join(t.TempDir(), "true.go")
	if err := os.WriteFile(src, []byte("package main\nfunc main() {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(t.TempDir(), "true")
	cmd := exec.Command("go", "build", "-o", bin, src)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build true: %v: %s", err, out)
	}
	body, err := os.ReadFile(bin)
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, h := range []*tar.Header{
		{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "bin/true", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(body))},
	} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write(body); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(buf.Bytes())
}

// TestIdempotentAcquire: one key, one lease.
func TestIdempotentAcquire(t *testing.T) {
	d := daemon.New(t, daemon.Options{})
	c := d.Client()
	e := d.Envelope(c)
	key := client.AcquireOptions{Key: fmt.Sprint("key-", time.Now().UnixNano())}
	l, err := c.Acquire(context.Background(), e, key)
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.Acquire(context.Background(), e, key)
	if err != nil || again.ID() != l.ID() || !again.Replayed || again.Secret() != "" {
		t.Errorf("the same request again: %+v, %v", again, err)
	}
	e.Resources.CPUMilli = 500
	_, err = c.Acquire(context.Background(), e, key)
	wantCode(t, "the same key for another envelope", err, "conflict")
	other := c.Lease(l.ID(), strings.Repeat("0", 32))
	_, err = other.Release(context.Background())
	wantCode(t, "release without the secret", err, "not_found")
	if _, err := l.Release(context.Background()); err != nil {
		t.Error(err)
	}
}
