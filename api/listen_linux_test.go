package api

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cordon/internal/fault"
)

func TestListenMakesTightDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "s")
	old := unix.Umask(0o077) // must not get in the way
	defer unix.Umask(old)
	l, err := Listen(path, os.Getegid())
	if err != nil {
		t.Fatal(err)
	}
	if got := unix.Umask(0o077); got != 0o077 {
		t.Errorf("umask is %#o afterwards, want 077", got)
	}
	checkMode(t, filepath.Dir(path), 0o750|os.ModeDir)
	checkMode(t, path, 0o660|os.ModeSocket)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("socket after close: %v, want it gone", err)
	}
}

func TestListenGivesGroup(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root") // to give files to another group
	}
	path := filepath.Join(t.TempDir(), "run", "s")
	l, err := Listen(path, 54321)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, name := range []string{filepath.Dir(path), path} {
		var st unix.Stat_t
		if err := unix.Lstat(name, &st); err != nil {
			t.Fatal(err)
		}
		if st.Uid != 0 || st.Gid != 54321 {
			t.Errorf("%s belongs to %d:%d, want 0:54321", name, st.Uid, st.Gid)
		}
	}
}

func checkMode(t *testing.T, path string, want os.FileMode) {
	t.Helper()
	st, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode() != want {
		t.Errorf("%s has mode %v, want %v", path, st.Mode(), want)
	}
}

func TestListenTakesTightDirectory(t *testing.T) {
	for _, mode := range []os.FileMode{0o700, 0o750} {
		dir := filepath.Join(t.TempDir(), "run")
		mkdir(t, dir, mode)
		l, err := Listen(filepath.Join(dir, "s"), os.Getegid())
		if err != nil {
			t.Fatalf("mode %v: %v", mode, err)
		}
		checkMode(t, dir, 0o750|os.ModeDir)
		l.Close()
	}
}

func mkdir(t *testing.T, dir string, mode os.FileMode) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, mode); err != nil { // whatever the umask is
		t.Fatal(err)
	}
}

func TestListenRefuses(t *testing.T) {
	tests := []struct {
		name  string
		make  func(t *testing.T, dir string) // what is there before
		path  string
		cause string
	}{
		{"relative", nil, "run/s", "not a clean absolute path"},
		{"not clean", nil, "/run/../run/cordon/s", "not a clean absolute path"},
		{"too long", nil, "/" + strings.Repeat("x", 107), "is 108 bytes long; the kernel allows 107"},
		{"open to others", func(t *testing.T, dir string) { mkdir(t, dir, 0o755) }, "", "others may enter it"},
		{"writable by group", func(t *testing.T, dir string) { mkdir(t, dir, 0o770) }, "", "its group may write"},
		{
			"symbolic link", func(t *testing.T, dir string) {
				mkdir(t, dir+".real", 0o750)
				if err := os.Symlink(dir+".real", dir); err != nil {
					t.Fatal(err)
				}
			}, "", "symbolic link",
		},
		{
			"file for a directory", func(t *testing.T, dir string) { touch(t, dir) }, "", "not a directory",
		},
		{
			"file for a socket", func(t *testing.T, dir string) {
				mkdir(t, dir, 0o750)
				touch(t, filepath.Join(dir, "s"))
			}, "", "not a socket",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "run")
			path := tt.path
			if path == "" {
				path = filepath.Join(dir, "s")
			}
			if tt.make != nil {
				tt.make(t, dir)
			}
			l, err := Listen(path, -1)
			if err == nil {
				l.Close()
			}
			if fault.CodeOf(err) != fault.InvalidArgument || !strings.Contains(err.Error(), tt.cause) {
				t.Errorf("got %v, want invalid_argument with %q", err, tt.cause)
			}
		})
	}
}

func TestListenRefusesForeignDirectory(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root") // to give the directory away
	}
	dir := filepath.Join(t.TempDir(), "run")
	mkdir(t, dir, 0o750)
	if err := os.Chown(dir, 54321, -1); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(filepath.Join(dir, "s"), -1)
	if err == nil {
		l.Close()
	}
	if fault.CodeOf(err) != fault.InvalidArgument || !strings.Contains(err.Error(), "belongs to uid 54321") {
		t.Errorf("got %v, want a fault about the owner", err)
	}
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestListenReplacesStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "s")
	dead, err := Listen(path, -1)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false) // as kill -9 would leave it
	dead.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Fatalf("no stale socket to replace: %v", err)
	}
	l, err := Listen(path, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("dial the new daemon: %v", err)
	}
	c.Close()
}

func TestListenRefusesLiveDaemon(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "s")
	live, err := Listen(path, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer live.Close()
	l, err := Listen(path, -1)
	if err == nil {
		l.Close()
	}
	if fault.CodeOf(err) != fault.DaemonRunning {
		t.Errorf("got %v, want daemon_running", err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the live daemon's socket is gone: %v", err)
	}
	c.Close()
}

// Two daemons that start together: the one that holds the directory wins.
func TestListenRefusesWhileAnotherStarts(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	mkdir(t, dir, 0o750)
	other, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(filepath.Join(dir, "s"), -1)
	if err == nil {
		l.Close()
	}
	if fault.CodeOf(err) != fault.DaemonRunning {
		t.Errorf("got %v, want daemon_running", err)
	}
}
