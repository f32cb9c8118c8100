package artifacts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"cordon/artifacts/unpack"
	"cordon/internal/fault"

	"golang.org/x/sys/unix"
)

const maxWorkerStderr = 4 << 10

// worker is one running unpack process.
type worker struct {
	stdin  *os.File // ours to close
	cancel context.CancelFunc
	stdout cappedBuffer
	stderr cappedBuffer
	done   chan error // the process's end
}

// startWorker starts the unpack worker with rootfs as its working directory.
// The caller feeds stdin and calls wait.
func (s *Store) startWorker(ctx context.Context, rootfs string) (*worker, error) {
	dir, err := openDir(rootfs)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	pr, pw, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer pr.Close()
	ctx, cancel := context.WithCancel(ctx)
	w := &worker{
		stdin: pw, cancel: cancel,
		stdout: cappedBuffer{max: unpack.MaxReport + 1}, stderr: cappedBuffer{max: maxWorkerStderr},
		done: make(chan error, 1),
	}
	cmd := s.workerCommand(ctx)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = pr, &w.stdout, &w.stderr
	started := make(chan error)
	go onOwnThread(func() { w.run(cmd, dir, started) }) // wait waits for it
	if err := <-started; err != nil {
		cancel()
		_ = pw.Close()
		return nil, startFault(err)
	}
	return w, nil
}

func (s *Store) workerCommand(ctx context.Context) *exec.Cmd {
	argv := append(append([]string{}, s.cfg.UnpackCommand...), s.cfg.limits().Args()...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	// Without the setting the runtime keeps cgroup files of the host open.
	cmd.Env = []string{"GODEBUG=containermaxprocs=0,updatemaxprocs=0", "GOMAXPROCS=2", "GOMEMLIMIT=256MiB", "LC_ALL=C"}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(s.cfg.ImageIDBase), Size: unpack.MaxID + 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID |
			unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
		UidMappings: ids,
		GidMappings: ids,
		// Needed to drop the daemon's supplementary groups.
		GidMappingsEnableSetgroups: true,
		Credential:                 &syscall.Credential{Uid: 0, Gid: 0},
		Pdeathsig:                  syscall.SIGKILL,
		Setsid:                     true,
	}
	return cmd
}

// onOwnThread runs fn on a thread that ends with it. The main thread cannot
// end, so it is sidestepped.
func onOwnThread(fn func()) {
	runtime.LockOSThread()
	if unix.Gettid() != os.Getpid() {
		fn()
		return // locked still: the runtime ends the thread
	}
	defer runtime.UnlockOSThread()
	done := make(chan struct{})
	go func() {
		defer close(done)
		onOwnThread(fn)
	}()
	<-done
}

// run starts the process and waits for it. It needs a thread that ends with
// it: no_new_privs cannot be taken back, the working directory is how the
// worker gets at a place that it has no right to look up (and so needs no
// descriptor), and the death signal is tied to the thread that forked.
func (w *worker) run(cmd *exec.Cmd, dir *os.File, started chan<- error) {
	if err := prepareThread(dir); err != nil {
		started <- err
		return
	}
	err := cmd.Start()
	// The thread lives as long as the worker and a moment longer; it must not
	// keep the directory in use. "/" can always be entered.
	_ = unix.Chdir("/")
	started <- err
	if err != nil {
		return
	}
	w.done <- cmd.Wait()
}

func prepareThread(dir *os.File) error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return os.NewSyscallError("unshare", err)
	}
	if err := unix.Fchdir(int(dir.Fd())); err != nil {
		return os.NewSyscallError("fchdir", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl no_new_privs", err)
	}
	return nil
}

// wait returns when the worker and all it may have started are gone (they
// share its pid namespace). It closes stdin; an error is the worker's fault
// or says how the worker broke.
func (w *worker) wait() (unpack.Report, error) {
	_ = w.stdin.Close()
	err := <-w.done
	w.cancel()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return unpack.Report{}, fmt.Errorf("wait for unpack worker: %w", err)
	}
	if err == nil || exit.ExitCode() == 1 {
		rep, perr := unpack.ParseReport(w.stdout.Bytes())
		switch {
		case perr != nil:
			return unpack.Report{}, perr
		case err == nil:
			return rep, nil
		}
	}
	return unpack.Report{}, fmt.Errorf("unpack worker: %w: %+q", err, strings.TrimSpace(w.stderr.String()))
}

// kill ends the worker; wait still has to be called.
func (w *worker) kill() { w.cancel() }

func startFault(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EINVAL):
		return fault.Wrap(err, fault.MissingFeature, "user_namespaces", "unpack worker cannot be started",
			"allow user namespaces (sysctl user.max_user_namespaces)")
	case errors.Is(err, unix.EACCES):
		return fault.Wrap(err, fault.MissingFeature, "unpack_command", "unpack worker cannot be started",
			"make the daemon's program executable for everyone (mode 0755)")
	}
	return fmt.Errorf("start unpack worker: %w", err)
}

// cappedBuffer keeps the first max bytes and swallows the rest, so that a
// worker that talks too much neither fills memory nor blocks.
type cappedBuffer struct {
	bytes.Buffer
	max int
}

func (b *cappedBuffer) Write(p []byte) (int, error) {
	if room := b.max - b.Len(); room > 0 {
		b.Buffer.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}
