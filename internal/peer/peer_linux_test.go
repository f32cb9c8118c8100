package peer_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"cordon/internal/peer"
)

const (
	dialEnv   = "PEER_TEST_DIAL"
	groupsEnv = "PEER_TEST_GROUPS"
	childUID  = 54321
	childGID  = 54322
)

func TestMain(m *testing.M) {
	if path := os.Getenv(dialEnv); path != "" {
		os.Exit(dialAs(path))
	}
	os.Exit(m.Run())
}

// dialAs drops to the test's ids, connects, and holds on until its standard
// input ends.
func dialAs(path string) int {
	var groups []int
	for i := range len(strings.Split(os.Getenv(groupsEnv), ",")) {
		groups = append(groups, 60000+i)
	}
	if err := errors.Join(syscall.Setgroups(groups), syscall.Setgid(childGID), syscall.Setuid(childUID)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer conn.Close()
	_, _ = os.Stdin.Read(make([]byte, 1))
	return 0
}

// accept returns the server's end of one connection made by dial.
func accept(t *testing.T, path string, dial func()) *net.UnixConn {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dial()
	conn, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func TestOfOwnProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	conn := accept(t, path, func() {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	})
	got, err := peer.Of(conn)
	if err != nil {
		t.Fatal(err)
	}
	if got.UID != uint32(os.Geteuid()) || got.GID != uint32(os.Getegid()) || got.PID != int32(os.Getpid()) {
		t.Errorf("got %+v, want this process", got)
	}
	if !got.InGroup(uint32(os.Getegid())) || got.InGroup(4_000_000_000) {
		t.Errorf("InGroup is wrong for %+v", got)
	}
	checkPidfd(t, got)
	if err := got.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// checkPidfd sends signal 0 through the pidfd, which the kernel must have
// from 6.5 on.
func checkPidfd(t *testing.T, got peer.Info) {
	t.Helper()
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		t.Fatal(err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(uts.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	if got.Pidfd == nil {
		if major > 6 || major == 6 && minor >= 5 {
			t.Errorf("no pidfd on Linux %d.%d", major, minor)
		}
		return
	}
	if err := unix.PidfdSendSignal(int(got.Pidfd.Fd()), 0, nil, 0); err != nil {
		t.Errorf("signal 0 through the pidfd: %v", err)
	}
	flags, err := unix.FcntlInt(got.Pidfd.Fd(), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("pidfd flags %#x, %v; want close-on-exec", flags, err)
	}
}

func TestOfOtherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root") // to become somebody else
	}
	for _, n := range []int{1, 32, 33, 100} {
		t.Run(fmt.Sprintf("%d groups", n), func(t *testing.T) {
			dir := t.TempDir()
			for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
				if err := os.Chmod(d, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			path := filepath.Join(dir, "s")
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), dialEnv+"="+path, groupsEnv+"="+strings.Repeat(",", n-1))
			cmd.Stderr = os.Stderr
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			conn := accept(t, path, func() {
				if err := os.Chmod(path, 0o666); err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
			})
			got, err := peer.Of(conn)
			if err != nil {
				t.Fatal(err)
			}
			checkPidfd(t, got)
			var want []uint32
			for i := range n {
				want = append(want, uint32(60000+i))
			}
			slices.Sort(got.Groups)
			if diff := cmp.Diff(want, got.Groups); diff != "" {
				t.Errorf("groups (-want +got):\n%s", diff)
			}
			if got.UID != childUID || got.GID != childGID || got.PID != int32(cmd.Process.Pid) {
				t.Errorf("got %+v, want uid %d gid %d pid %d", got, childUID, childGID, cmd.Process.Pid)
			}
			stdin.Close()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
			_ = got.Close()
		})
	}
}

func TestOfRefusesOtherSockets(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := peer.Of(c.(*net.TCPConn)); err == nil {
		t.Errorf("TCP peer: got %+v, want an error", got)
	}
}

func TestOfClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	conn := accept(t, path, func() {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	})
	conn.Close()
	if _, err := peer.Of(conn); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v, want net.ErrClosed", err)
	}
}
