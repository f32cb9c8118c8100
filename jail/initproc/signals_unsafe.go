package initproc

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// defaultSignals puts every signal back to its default action and unblocks
// all of them on this thread. What was ignored when the daemon was started
// (nohup, a shell's background job) would be inherited through every execve,
// and what the runtime blocks for a moment must not be caught by one.
func defaultSignals() error {
	const last, size = 64, 8 // _NSIG, and the kernel's sigset in bytes
	var action [4]uint64     // struct kernel_sigaction: SIG_DFL, no flags, empty mask
	for sig := uintptr(1); sig <= last; sig++ {
		// SIGKILL and SIGSTOP answer EINVAL, and have no other action.
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&action)), 0, size, 0, 0)
	}
	var none uint64
	const setMask = 2
	_, _, e := unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, setMask, uintptr(unsafe.Pointer(&none)), 0, size, 0, 0)
	if e != 0 {
		return e
	}
	return nil
}
