package initproc

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// stepError names the step of a child's setup that went wrong.
type stepError struct {
	step string
	err  error
}

func (e *stepError) Error() string { return e.step + ": " + e.err.Error() }
func (e *stepError) Unwrap() error { return e.err }

func step(name string, err error) error {
	if err == nil {
		return nil
	}
	return &stepError{step: name, err: err}
}

// fdPipe reads and writes a descriptor without the runtime's poller, so that
// the parked child opens nothing of its own.
type fdPipe int

func (f fdPipe) Read(p []byte) (int, error) {
	for {
		n, err := unix.Read(int(f), p)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if n == 0 && err == nil {
			return 0, io.EOF
		}
		return max(n, 0), err
	}
}

func (f fdPipe) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n, err := unix.Write(int(f), p[done:])
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// RunStage is the parked child: it places itself in its cgroups, waits, drops
// everything, waits again and becomes the command. It must be called on the
// main thread, locked to it: credentials, filter and cgroup are a thread's,
// and execve makes the calling thread the process.
//
// It returns only when something went wrong; the host has been told.
func RunStage(args []string) error {
	sock := fdPipe(StageFD)
	err := runStage(sock, args)
	var se *stepError
	if !errors.As(err, &se) {
		return err // the host is gone: nobody to tell
	}
	var errno syscall.Errno
	_ = errors.As(err, &errno)
	text := strings.ToValidUTF8(se.err.Error(), "?")
	_ = WriteFrame(sock, FromStage{Failed: &Failed{Step: se.step, Errno: int(errno), Text: text}})
	return err
}

func runStage(sock fdPipe, args []string) error {
	leaves, late, err := counts(args)
	if err != nil {
		return err
	}
	if err := park(leaves); err != nil {
		return err
	}
	if err := WriteFrame(sock, FromStage{Parked: true}); err != nil {
		return err
	}
	var m ToStage
	if err := ReadFrame(sock, MaxFrame, &m); err != nil {
		return err
	}
	if m.Setup == nil || len(m.Setup.Argv) == 0 {
		return step("setup", errors.New("no command in the message"))
	}
	if err := joinCgroups(LeafFD+leaves, late); err != nil {
		return err
	}
	file, err := become(m.Setup)
	if err != nil {
		return err
	}
	if err := WriteFrame(sock, FromStage{Ready: true}); err != nil {
		return err
	}
	var g ToStage
	if err := ReadFrame(sock, 64, &g); err != nil {
		return err
	}
	if !g.Go {
		return step("go", errors.New("unexpected message"))
	}
	return step("exec", syscall.Exec(file, strs(m.Setup.Argv), strs(m.Setup.Env)))
}

func counts(args []string) (leaves, late int, err error) {
	if len(args) != 2 {
		return 0, 0, step("arguments", errors.New("want two counts"))
	}
	leaves, err1 := strconv.Atoi(args[0])
	late, err2 := strconv.Atoi(args[1])
	return leaves, late, step("arguments", errors.Join(err1, err2))
}

// park makes the child's first moves: easy prey for the OOM killer before
// PID 1, undumpable, and a member of its leaf cgroups.
func park(leaves int) error {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("500"), 0); err != nil {
		return step("oom_score_adj", err)
	}
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return step("prctl PR_SET_DUMPABLE", err)
	}
	unix.CloseOnExec(StageFD)
	if err := joinCgroups(LeafFD, leaves); err != nil {
		return err
	}
	return step("close_range", unix.CloseRange(LeafFD, ^uint(0), unix.CLOSE_RANGE_CLOEXEC))
}

// joinCgroups writes "0" to n cgroup files from descriptor first on. It means
// the writer: in a v1 tasks file this thread alone, which is the one that
// stays after execve.
func joinCgroups(first, n int) error {
	for fd := first; fd < first+n; fd++ {
		if _, err := fdPipe(fd).Write([]byte("0")); err != nil {
			return step("join cgroup", err)
		}
		_ = unix.Close(fd)
	}
	return nil
}

// become drops everything the command must not have, in an order in which
// each step still has what it needs, and returns the file to execute.
func become(s *Setup) (string, error) {
	if _, err := unix.Setsid(); err != nil {
		return "", step("setsid", err)
	}
	if s.TTY {
		if err := unix.IoctlSetInt(0, unix.TIOCSCTTY, 0); err != nil {
			return "", step("controlling terminal", err)
		}
	}
	for _, r := range s.Rlimits {
		if err := unix.Prlimit(0, r.Resource, &unix.Rlimit{Cur: r.Value, Max: r.Value}, nil); err != nil {
			return "", step("rlimit "+strconv.Itoa(r.Resource), err)
		}
	}
	if err := dropIDs(s.UID, s.GID); err != nil {
		return "", err
	}
	if err := unix.Chdir(string(s.Cwd)); err != nil {
		return "", step("cwd", err)
	}
	file, err := lookPath(string(s.Argv[0]), pathOf(s.Env))
	if err != nil {
		return "", step("lookup", err)
	}
	unix.Umask(0o022)
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return "", step("no_new_privs", err)
	}
	if err := defaultSignals(); err != nil {
		return "", step("signals", err)
	}
	return file, step("seccomp", installFilter(s.Filter))
}

// dropIDs changes this thread alone, by raw calls: the runtime's own would
// stop all its threads first, and they all die at execve.
func dropIDs(uid, gid uint32) error {
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
		return step("setgroups", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)); e != 0 {
		return step("setresgid", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
		return step("setresuid", e)
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return step("ambient capabilities", err)
	}
	// Leaving uid 0 cleared the permitted and effective sets; the inheritable
	// set stays unless told.
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return step("capset", unix.Capset(&hdr, &none[0]))
}

func pathOf(env [][]byte) string {
	for _, e := range env {
		if v, ok := strings.CutPrefix(string(e), "PATH="); ok {
			return v
		}
	}
	return ""
}

// lookPath finds the file of a command as execvp(3) does, but never in the
// current directory unless a slash says so.
func lookPath(name, list string) (string, error) {
	if name == "" {
		return "", fs.ErrNotExist
	}
	if strings.Contains(name, "/") {
		return name, runnable(name)
	}
	var denied error
	for dir := range strings.SplitSeq(list, ":") {
		if !strings.HasPrefix(dir, "/") {
			continue
		}
		file := path.Join(dir, name)
		err := runnable(file)
		if err == nil {
			return file, nil
		}
		if errors.Is(err, unix.EACCES) {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", unix.ENOENT
}

func runnable(file string) error {
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return unix.EACCES
	}
	return unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS)
}

func strs(b [][]byte) []string {
	s := make([]string, len(b))
	for i := range b {
		s[i] = string(b[i])
	}
	return s
}
