//go:build linux

package peer

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// peerGroups reads SO_PEERGROUPS into room for at least one and at most room
// ids. With ERANGE, size is how many ids there are. x/sys/unix has no wrapper
// that returns more than one integer.
func peerGroups(fd, room int) (ids []uint32, size int, err error) {
	const idSize = unsafe.Sizeof(uint32(0))
	ids = make([]uint32, max(room, 1))
	length := uint32(uintptr(len(ids)) * idSize) // socklen_t
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
		uintptr(unsafe.Pointer(&ids[0])), uintptr(unsafe.Pointer(&length)), 0)
	size = int(uintptr(length) / idSize)
	if errno != 0 {
		return nil, size, errno
	}
	return ids[:size], size, nil
}
