package linux

import (
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"cordon/jail"
)

// idmapNamespace returns a user namespace that maps on-disk ids from disk on
// to a lease's range, for idmapped mounts (mount_setattr(2)). No process
// stays in it: a child is stopped by ptrace at its execve, before it has run
// an instruction of its own, its namespace is opened, and it is killed.
func idmapNamespace(disk uint32, ids jail.IDMap) (*os.File, error) {
	// The tracer is a thread: stay on it until the child is gone.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	m := []syscall.SysProcIDMap{{ContainerID: int(disk), HostID: int(ids.Base), Size: int(ids.Size)}}
	proc, err := os.StartProcess("/proc/self/exe", []string{"idmap"}, &os.ProcAttr{
		Env: []string{},
		Sys: &syscall.SysProcAttr{
			Cloneflags:                 unix.CLONE_NEWUSER,
			UidMappings:                m,
			GidMappings:                m,
			GidMappingsEnableSetgroups: false,
			Ptrace:                     true,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make id-map namespace: %w", err)
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", proc.Pid))
	if kerr := proc.Kill(); kerr == nil {
		_, _ = proc.Wait()
	}
	if err != nil {
		return nil, fmt.Errorf("open id-map namespace: %w", err)
	}
	return ns, nil
}
