package linux

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"cordon/internal/fault"
	"cordon/internal/sys"
	"cordon/jail"
)

// idmapNamespace returns a user namespace that maps on-disk ids from disk on
// to a lease's range, for idmapped mounts (mount_setattr(2)).
func idmapNamespace(disk uint32, ids jail.IDMap) (*os.File, error) {
	// The tracer is a thread: stay on it until the child is gone.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return userNamespace(syscall.SysProcIDMap{ContainerID: int(disk), HostID: int(ids.Base), Size: int(ids.Size)})
}

// leaseNamespace returns the user namespace of a jail. It is made by a thread
// whose effective uid is the first of the lease's own range: what the kernel
// counts by user and hands up to the maker of a namespace (inotify instances,
// message queues, queued signals) then ends at that uid. Made by root it
// would be taken from root, and so from all other leases.
func leaseNamespace(ids jail.IDMap) (ns *os.File, err error) {
	runtime.LockOSThread()
	if err := sys.SetThreadEUID(ids.Base); err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	ns, err = userNamespace(syscall.SysProcIDMap{ContainerID: 0, HostID: int(ids.Base), Size: int(ids.Size)})
	if rerr := sys.SetThreadEUID(0); rerr != nil {
		// The thread stays locked and ends with this goroutine: no other code
		// may run with its credentials.
		sys.CloseAll(ns)
		return nil, errors.Join(err, rerr)
	}
	runtime.UnlockOSThread()
	return ns, err
}

// userNamespace makes a namespace with one map for users and groups. No
// process stays in it: a child is stopped by ptrace at its execve, before it
// has run an instruction of its own, its namespace is opened, and it is
// killed. The caller has locked its thread.
func userNamespace(m syscall.SysProcIDMap) (*os.File, error) {
	proc, err := os.StartProcess("/proc/self/exe", []string{"idmap"}, &os.ProcAttr{
		Env: []string{},
		Sys: &syscall.SysProcAttr{
			Cloneflags:                 unix.CLONE_NEWUSER,
			UidMappings:                []syscall.SysProcIDMap{m},
			GidMappings:                []syscall.SysProcIDMap{m},
			GidMappingsEnableSetgroups: true, // a command drops its groups
			Ptrace:                     true,
		},
	})
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) {
		return nil, fault.Wrap(err, fault.MissingFeature, "user namespaces", "the kernel refuses to make one", "do not run cordond in a chroot, and set user.max_user_namespaces above zero")
	}
	if err != nil {
		return nil, fmt.Errorf("make user namespace: %w", err)
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", proc.Pid))
	if kerr := proc.Kill(); kerr == nil {
		_, _ = proc.Wait()
	}
	if err != nil {
		return nil, fmt.Errorf("open user namespace: %w", err)
	}
	return ns, nil
}
