package linux

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	containerseccomp "github.com/opencontainers/runc/libcontainer/seccomp"
	libseccomp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"

	"cordon/jail/seccomp"
)

// TestLibcontainerSaysTheSame loads the filter with libcontainer itself, reads
// the program back from the kernel, and compares.
func TestLibcontainerSaysTheSame(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: reads another process's filter")
	}
	if !containerseccomp.Enabled {
		t.Skip("libcontainer is built without the tag seccomp")
	}
	for name, f := range profiles() {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, filterOf(t, "libcontainer-"+name))
			known := make(map[uint32]bool)
			for _, r := range f.Rules {
				_, err := libseccomp.GetSyscallFromName(r.Name)
				known[r.Number] = err == nil
			}
			n, wrong := 0, 0
			corpus(f, func(s sample) {
				n++
				want := f.Decide(s.arch, s.number, s.args)
				got := m.run(t, s)
				if !sameOrStricter(s, want, got, known) && wrong < 20 {
					wrong++
					t.Errorf("%v: program %#x, want %v", s, got, want)
				}
			})
			t.Logf("%d calls compared", n)
		})
	}
}

// sameOrStricter allows the three differences that libcontainerSeccomp names.
func sameOrStricter(s sample, want seccomp.Action, got uint32, known map[uint32]bool) bool {
	refused := got == seccomp.Errno(seccomp.EPERM).Kernel() || got == seccomp.Errno(seccomp.ENOSYS).Kernel()
	switch {
	case got == want.Kernel():
		return true
	case want == seccomp.KillProcess:
		return got == unix.SECCOMP_RET_KILL_THREAD
	case want == seccomp.Errno(seccomp.ENOSYS):
		return refused && seccomp.AMD64.Name(s.number) == ""
	default:
		return refused && !known[s.number]
	}
}

// TestKernelAnswers installs Default in a child and makes real calls there.
func TestKernelAnswers(t *testing.T) {
	out, err := child(t, "kernel").Output()
	if err != nil {
		t.Fatalf("child: %v: %s", err, out)
	}
	want := ""
	for _, c := range realCalls() {
		want += fmt.Sprintln(c.name, c.want)
	}
	if string(out) != want {
		t.Errorf("answers:\n%s\nwant:\n%s", out, want)
	}
}

func TestKernelEndsOtherABIs(t *testing.T) {
	err := child(t, "x32").Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Fatalf("child: %v", err)
	}
	ws, ok := exit.Sys().(syscall.WaitStatus)
	if !ok || !ws.Signaled() || ws.Signal() != syscall.SIGSYS {
		t.Errorf("child ended with %v, want SIGSYS", exit)
	}
}

// realCall is harmless whatever the answer is.
type realCall struct {
	name   string
	number uintptr
	args   [3]uintptr
	want   syscall.Errno
}

func realCalls() []realCall {
	return []realCall{
		{"getppid", unix.SYS_GETPPID, [3]uintptr{}, 0},
		{"unshare user", unix.SYS_UNSHARE, [3]uintptr{unix.CLONE_NEWUSER}, unix.EPERM},
		{"setns", unix.SYS_SETNS, [3]uintptr{^uintptr(0)}, unix.EPERM},
		{"ptrace", unix.SYS_PTRACE, [3]uintptr{^uintptr(0)}, unix.EPERM},
		{"bpf", unix.SYS_BPF, [3]uintptr{^uintptr(0)}, unix.EPERM},
		{"io_uring_setup", unix.SYS_IO_URING_SETUP, [3]uintptr{}, unix.EPERM},
		{"clone3", unix.SYS_CLONE3, [3]uintptr{}, unix.ENOSYS},
		{"clone user", unix.SYS_CLONE, [3]uintptr{unix.CLONE_NEWUSER | unix.CLONE_THREAD}, unix.EPERM},
		{"number 400", 400, [3]uintptr{}, unix.ENOSYS},
		{"number 4000", 4000, [3]uintptr{}, unix.ENOSYS},
		{"mptcp", unix.SYS_SOCKET, [3]uintptr{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, unix.EPROTONOSUPPORT},
		{"packet", unix.SYS_SOCKET, [3]uintptr{unix.AF_PACKET, unix.SOCK_RAW, 0}, unix.EPERM},
		{"packet, high bits", unix.SYS_SOCKET, [3]uintptr{unix.AF_PACKET | hi, unix.SOCK_RAW, 0}, unix.EPERM},
		{"vsock", unix.SYS_SOCKET, [3]uintptr{unix.AF_VSOCK, unix.SOCK_STREAM, 0}, unix.EPERM},
		{"raw", unix.SYS_SOCKET, [3]uintptr{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, unix.EPERM},
		{"nfnetlink", unix.SYS_SOCKET, [3]uintptr{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, unix.EPERM},
		{"TIOCSTI", unix.SYS_IOCTL, [3]uintptr{^uintptr(0), unix.TIOCSTI}, unix.EPERM},
		{"TIOCSTI, high bits", unix.SYS_IOCTL, [3]uintptr{^uintptr(0), unix.TIOCSTI | hi}, unix.EPERM},
		{"TCGETS", unix.SYS_IOCTL, [3]uintptr{^uintptr(0), unix.TCGETS}, unix.EBADF},
		{"personality", unix.SYS_PERSONALITY, [3]uintptr{0x0040000}, unix.EPERM},
		{"capset", unix.SYS_CAPSET, [3]uintptr{}, unix.EPERM},
	}
}

// child runs this test binary as TestSeccompChild in a mode.
func child(t *testing.T, mode string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// A filter that ends one thread leaves the others waiting for it.
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, self, "-test.run=^TestSeccompChild$")
	cmd.Env = append(os.Environ(), "CORDON_SECCOMP_TEST_CHILD="+mode)
	cmd.Stderr = os.Stderr
	return cmd
}

// TestSeccompChild is not a test but the process the others start.
func TestSeccompChild(t *testing.T) {
	mode := os.Getenv("CORDON_SECCOMP_TEST_CHILD")
	if mode == "" {
		return
	}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	if name, ok := strings.CutPrefix(mode, "libcontainer-"); ok {
		if _, err := containerseccomp.InitSeccomp(libcontainerSeccomp(profiles()[name])); err != nil {
			t.Fatal(err)
		}
		fmt.Println(unix.Gettid())
		_, _ = bufio.NewReader(os.Stdin).ReadByte() // until the parent has read the filter
		os.Exit(0)
	}
	prog, err := Compile(seccomp.Default())
	if err != nil {
		t.Fatal(err)
	}
	if err := install(prog); err != nil {
		t.Fatal(err)
	}
	if mode == "x32" {
		_, _, errno := unix.RawSyscall(1<<30|unix.SYS_GETPID, 0, 0, 0)
		fmt.Println("survived", errno)
		os.Exit(0)
	}
	for _, c := range realCalls() {
		_, _, errno := unix.RawSyscall(c.number, c.args[0], c.args[1], c.args[2])
		fmt.Println(c.name, errno)
	}
	os.Exit(0)
}

// filterOf starts a child that installs a filter and returns the program that
// the kernel holds for it.
func filterOf(t *testing.T, mode string) []byte {
	t.Helper()
	cmd := child(t, mode)
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
	defer func() {
		in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("child said %q: %v", line, err)
	}
	tid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatalf("child said %q", line)
	}
	// All calls of a tracer come from one thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.PtraceAttach(tid); err != nil {
		t.Fatal(err)
	}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(tid, &ws, unix.WALL, nil); err != nil {
		t.Fatal(err)
	}
	prog, err := readFilter(tid)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.PtraceDetach(tid); err != nil {
		t.Error(err)
	}
	return prog
}
