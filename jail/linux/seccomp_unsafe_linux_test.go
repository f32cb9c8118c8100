package linux

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// install puts a compiled filter on this thread.
func install(prog []byte) error {
	fprog := unix.SockFprog{
		Len:    uint16(len(prog) / 8),
		Filter: (*unix.SockFilter)(unsafe.Pointer(&prog[0])),
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP,
		unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&fprog))); errno != 0 {
		return errno
	}
	return nil
}

// readFilter returns the last filter of a stopped tracee. The kernel wants
// CAP_SYS_ADMIN and CONFIG_CHECKPOINT_RESTORE.
func readFilter(tid int) ([]byte, error) {
	const request = 0x420c // PTRACE_SECCOMP_GET_FILTER
	n, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, request, uintptr(tid), 0, 0, 0, 0)
	if errno != 0 {
		return nil, errno
	}
	prog := make([]byte, n*8)
	if _, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, request, uintptr(tid), 0,
		uintptr(unsafe.Pointer(&prog[0])), 0, 0); errno != 0 {
		return nil, errno
	}
	return prog, nil
}
