package unpack

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"cordon/internal/sys"

	"golang.org/x/sys/unix"
)

// workerCaps is what the extracting thread keeps, in its own user namespace.
// Every other thread keeps nothing: they lose all on the change of uid.
const workerCaps = 1<<unix.CAP_CHOWN | // give entries their in-image owner
	1<<unix.CAP_FOWNER // set modes and link files after that

// confine takes everything from the process but the current directory, which
// becomes its root. Preconditions: PID 1 of fresh namespaces, uid 0 of a user
// namespace that maps other host ids, no_new_privs set, cwd the staging
// directory. Order matters: mounts need the capabilities that drop takes.
func confine(lim Limits) error {
	steps := []struct {
		name string
		run  func() error
	}{
		{"check namespaces", checkNamespaces},
		{"close descriptors", closeInherited},
		{"set limits", func() error { return setLimits(lim) }},
		{"change root", changeRoot},
		{"drop privileges", drop},
		{"check privileges", checkDropped},
	}
	for _, s := range steps {
		if err := s.run(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// checkNamespaces refuses to go on where the next steps would hit the host:
// someone who starts the worker by hand as root must not lose the root mount.
func checkNamespaces() error {
	if os.Getpid() != 1 {
		return errors.New("not PID 1 of a new pid namespace [the worker is started by cordond only]")
	}
	for _, path := range []string{"/proc/self/uid_map", "/proc/self/gid_map"} {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		f := bytes.Fields(text)
		if len(f) != 3 || string(f[0]) != "0" || string(f[1]) == "0" || string(f[2]) != "65536" {
			return fmt.Errorf("%s: unexpected map %q", path, text)
		}
	}
	return nil
}

// closeInherited closes what came through exec beside stdio: whatever the
// daemon's own starter left open would lead out of the new root. It is what
// has no close-on-exec flag; the runtime sets it on all it opens.
func closeInherited() error {
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range fds {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			return err
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if fd <= 2 || err != nil || flags&unix.FD_CLOEXEC != 0 {
			continue // an error: the directory's own, closed by now
		}
		if err := unix.Close(fd); err != nil {
			return fmt.Errorf("close %d: %w", fd, err)
		}
	}
	return nil
}

func setLimits(lim Limits) error {
	syscall.Umask(0)
	for _, l := range []struct {
		what int
		max  uint64
	}{
		{unix.RLIMIT_CORE, 0},
		{unix.RLIMIT_FSIZE, uint64(lim.Bytes)},
		{unix.RLIMIT_NOFILE, 256},
		{unix.RLIMIT_NPROC, 256}, // threads; the id is shared by all workers
		// A tar reader needs a few MiB; headers of a hostile tar ask for more.
		{unix.RLIMIT_DATA, 1 << 30},
	} {
		r := unix.Rlimit{Cur: l.max, Max: l.max}
		if err := unix.Setrlimit(l.what, &r); err != nil {
			return fmt.Errorf("setrlimit %d: %w", l.what, err)
		}
	}
	return nil
}

// changeRoot makes the current directory the root and detaches the rest. It
// goes by ".", because the path to it leads through directories of the real
// root that this process may not search.
func changeRoot() error {
	// Mounts of the host must not arrive here later, nor ours there.
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return os.NewSyscallError("mount private", err)
	}
	tree, err := sys.OpenTree(".")
	if err != nil {
		return err
	}
	defer tree.Close()
	const attrs = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	if err := sys.SetMountAttr(tree, attrs, nil); err != nil {
		return err
	}
	if err := sys.MoveMount(tree, "."); err != nil {
		return err
	}
	// "." still is the directory below the new mount; the descriptor is not.
	if err := unix.Fchdir(int(tree.Fd())); err != nil {
		return os.NewSyscallError("fchdir", err)
	}
	// pivot_root(2), "pivot_root(".", ".")": the old root lands on top of the
	// new one and is taken off again.
	if err := unix.PivotRoot(".", "."); err != nil {
		return os.NewSyscallError("pivot_root", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return os.NewSyscallError("umount", err)
	}
	return os.Chdir("/")
}

// drop becomes WorkerID with workerCaps. It works in a binary with cgo too,
// where capset cannot be run on all threads: the change of uid is made on all
// of them (by the runtime or by libc) and clears their capabilities; keepcaps
// is set on this thread alone.
func drop() error {
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl keepcaps", err)
	}
	if err := syscall.Setresgid(WorkerID, WorkerID, WorkerID); err != nil {
		return os.NewSyscallError("setresgid", err)
	}
	if err := syscall.Setresuid(WorkerID, WorkerID, WorkerID); err != nil {
		return os.NewSyscallError("setresuid", err)
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	caps := [2]unix.CapUserData{{Effective: workerCaps, Permitted: workerCaps}}
	if err := unix.Capset(&hdr, &caps[0]); err != nil {
		return os.NewSyscallError("capset", err)
	}
	// The change of uid cleared it.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl pdeathsig", err)
	}
	return nil
}

// checkDropped asks the kernel whether drop held.
func checkDropped() error {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var got [2]unix.CapUserData
	if err := unix.Capget(&hdr, &got[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	want := [2]unix.CapUserData{{Effective: workerCaps, Permitted: workerCaps}}
	if got != want {
		return fmt.Errorf("capabilities are %x, not %x", got, want)
	}
	nnp, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	if err != nil {
		return os.NewSyscallError("prctl get no_new_privs", err)
	}
	if nnp != 1 {
		return errors.New("no_new_privs is not set")
	}
	if u := os.Getuid(); u != WorkerID {
		return fmt.Errorf("uid is %d, not %d", u, WorkerID)
	}
	return nil
}
