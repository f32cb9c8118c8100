package sys

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pidfdInfo is struct pidfd_info of linux/pidfd.h, first version (64 bytes).
type pidfdInfo struct {
	mask     uint64
	cgroupID uint64
	ids      [11]uint32 // pid, tgid, ppid, and eight user and group ids
	exitCode int32
}

const (
	pidfdInfoExit = 1 << 3                                // PIDFD_INFO_EXIT, Linux 6.15
	pidfdGetInfo  = 3<<30 | 64<<16 | 0xFF<<8 | 11         // _IOWR(0xFF, 11, struct pidfd_info)
	_             = uint(64 - unsafe.Sizeof(pidfdInfo{})) // the layout is 64 bytes
)

// ExitStatus returns the kernel's own exit status of a process that has been
// reaped by whoever its parent is. ok is false while it is not reaped, or on a
// kernel before 6.15.
func (p *Pidfd) ExitStatus() (status unix.WaitStatus, ok bool) {
	info := pidfdInfo{mask: pidfdInfoExit}
	err := control(p.f, func(fd int) error {
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), pidfdGetInfo, uintptr(unsafe.Pointer(&info)))
		if e != 0 {
			return os.NewSyscallError("ioctl PIDFD_GET_INFO", e)
		}
		return nil
	})
	if err != nil || info.mask&pidfdInfoExit == 0 {
		return 0, false
	}
	return unix.WaitStatus(info.exitCode), true
}

// HavePidfdExit reports whether ExitStatus can answer (Linux 6.15). The flag
// cannot be probed without a reaped process at hand, so the release decides.
func HavePidfdExit() bool {
	return KernelAtLeast(6, 15)
}
