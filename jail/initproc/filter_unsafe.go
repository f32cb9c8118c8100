package initproc

import (
	"errors"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// installFilter puts a compiled seccomp program on this thread. It comes on
// top of PID 1's filter; the kernel takes the stricter answer of the two.
func installFilter(prog []byte) error {
	size := int(unsafe.Sizeof(unix.SockFilter{}))
	n := len(prog) / size
	if len(prog) == 0 || len(prog)%size != 0 || n > unix.BPF_MAXINSNS {
		return errors.New("filter is not a BPF program")
	}
	insns := make([]unix.SockFilter, n)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&insns[0])), len(prog)), prog)
	fprog := unix.SockFprog{Len: uint16(n), Filter: &insns[0]}
	_, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&fprog)))
	runtime.KeepAlive(insns)
	if e != 0 {
		return e
	}
	return nil
}
