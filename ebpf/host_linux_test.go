package ebpf

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"cordon/internal/sys"
)

const waitLimit = 10 * time.Second

// host is a piece of the machine that belongs to one test: a cgroup with a
// parent of leases and a group beside it, a bpffs, and a network namespace
// that holds nothing but lo.
type host struct {
	top, parent, outside string
	pins                 string
}

// newHost moves the calling test to a thread in a network namespace of its
// own; subtests must not open sockets or start probes.
func newHost(t testing.TB) *host {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: loads programs and makes cgroups")
	}
	isolateNetwork(t)
	top, err := os.MkdirTemp(cgroup2Mount(t), "cordon-ebpf-test-")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{top: top, parent: filepath.Join(top, "leases"), outside: filepath.Join(top, "outside")}
	t.Cleanup(func() { removeGroups(t, top) })
	for _, dir := range []string{h.parent, h.outside} {
		mkdir(t, dir)
	}
	mount := t.TempDir()
	unmount, err := MountBPFFS(mount)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmount(); err != nil {
			t.Error(err)
		}
	})
	h.pins = filepath.Join(mount, "filter")
	if err := os.Mkdir(h.pins, 0o700); err != nil {
		t.Fatal(err)
	}
	return h
}

// isolateNetwork leaves the thread in the namespace: it ends with the test.
func isolateNetwork(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("unshare network: %v", err)
	}
	interfaceUp(t, "lo")
	// Ping sockets are closed to all groups by default; opened, the refusal
	// seen is the filter's.
	if err := os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 4294967294"), 0); err != nil {
		t.Fatal(err)
	}
}

func interfaceUp(t testing.TB, name string) {
	t.Helper()
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		t.Fatal(err)
	}
	ifr.SetUint16(unix.IFF_UP)
	interfaceControl(t, unix.SIOCSIFFLAGS, ifr)
}

func interfaceControl(t testing.TB, request uint, ifr *unix.Ifreq) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.IoctlIfreq(fd, request, ifr); err != nil {
		t.Fatalf("ioctl %#x: %v", request, err)
	}
}

func cgroup2Mount(t testing.TB) string {
	t.Helper()
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup2"))
	if err != nil || len(mounts) == 0 {
		t.Fatalf("find cgroup2 mount: %v", err)
	}
	return mounts[0].Mountpoint
}

func mkdir(t testing.TB, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

// removeGroups removes a cgroup and those below it, deepest first. The kernel
// lets a group go only some time after its last process.
func removeGroups(t testing.TB, top string) {
	t.Helper()
	entries, err := os.ReadDir(top)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() {
			removeGroups(t, filepath.Join(top, e.Name()))
		}
	}
	if !sys.PollUntil(waitLimit, time.Millisecond, func() bool {
		err := os.Remove(top)
		return err == nil || errors.Is(err, fs.ErrNotExist)
	}) {
		t.Errorf("remove cgroup %s: still busy", top)
	}
}

// lease makes a cgroup below the parent and returns its path and id.
func (h *host) lease(t testing.TB, name string) (string, uint64) {
	t.Helper()
	path := filepath.Join(h.parent, name)
	mkdir(t, path)
	st, err := inode(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, st.Ino
}

func (h *host) config() Config {
	return Config{
		CgroupParent: h.parent,
		PinDir:       h.pins,
		MaxLeases:    8,
		Logger:       slog.New(slog.DiscardHandler),
	}
}

func (h *host) load(t testing.TB) *Filter {
	t.Helper()
	f, err := Load(h.config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Remove(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// admitted loads a filter and admits one lease for an hour.
func (h *host) admitted(t testing.TB) (*Filter, string, uint64) {
	t.Helper()
	f := h.load(t)
	path, id := h.lease(t, "a")
	if err := f.Admit(id, time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	return f, path, id
}

// remote is a probe process that runs in a cgroup.
type remote struct {
	in  io.WriteCloser
	out *bufio.Scanner
}

func startProbe(t testing.TB, group string) *remote {
	t.Helper()
	dir, err := os.Open(group)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), probeEnv+"=1")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		UseCgroupFD: true, CgroupFD: int(dir.Fd()),
		Pdeathsig: syscall.SIGKILL,
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &remote{in: in, out: bufio.NewScanner(out)}
}

// do runs commands one after the other and returns the last answer, or the
// first that is not ok.
func (r *remote) do(t testing.TB, commands ...string) string {
	t.Helper()
	answer := ""
	for _, c := range commands {
		if _, err := fmt.Fprintln(r.in, c); err != nil {
			t.Fatal(err)
		}
		if !r.out.Scan() {
			t.Fatalf("probe ended at %q: %v", c, r.out.Err())
		}
		answer = r.out.Text()
		if !strings.HasPrefix(answer, "ok") {
			return strings.Fields(c)[0] + " " + answer
		}
	}
	return answer
}

// listeners are the test's own servers on lo.
type listeners struct{ tcp4, tcp6, udp4, udp6 string }

func listen(t testing.TB) listeners {
	t.Helper()
	tcp := func(network, addr string) string {
		l, err := net.Listen(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l.Addr().String()
	}
	udp := func(network, addr string) string {
		c, err := net.ListenPacket(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c.LocalAddr().String()
	}
	return listeners{
		tcp4: tcp("tcp4", "127.0.0.1:0"), tcp6: tcp("tcp6", "[::1]:0"),
		udp4: udp("udp4", "127.0.0.1:0"), udp6: udp("udp6", "[::1]:0"),
	}
}
