package sys

import (
	"os"

	"golang.org/x/sys/unix"
)

// SetThreadEUID gives the calling thread, and no other, an effective uid, and
// keeps its capabilities in effect. The caller is root, has locked the thread,
// and sets 0 again before it unlocks it; should that fail, it must let the
// thread end.
func SetThreadEUID(uid uint32) error {
	const keep = ^uintptr(0)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); e != 0 {
		return os.NewSyscallError("setresuid", e)
	}
	// Leaving euid 0 took the effective set away, not the permitted one.
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	for i := range data {
		data[i].Effective = data[i].Permitted
	}
	return os.NewSyscallError("capset", unix.Capset(&hdr, &data[0]))
}
