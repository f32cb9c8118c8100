// Package peer asks the kernel who is at the other end of a connected Unix
// socket: uid, gid, groups, pid and, where the kernel has it, a pidfd.
//
// It needs no privilege. All answers are what the peer had when it connected;
// nothing a peer sends can change them. Info owns its pidfd; values are
// otherwise plain and safe to share. What a peer may do is not decided here
// but in api (method table) and supervisor/hostpolicy (tenants).
package peer

import (
	"os"
	"slices"
)

// Info is the process that connected.
type Info struct {
	UID    uint32
	GID    uint32
	Groups []uint32 // supplementary groups, in the kernel's order
	// PID is in our pid namespace. It may be reused once the process has
	// ended; Pidfd may not.
	PID int32
	// Pidfd stays the process that connected for as long as it is open. It is
	// nil before Linux 6.5.
	Pidfd *os.File
}

// InGroup reports whether gid is the peer's group or one of its groups.
func (i Info) InGroup(gid uint32) bool {
	return i.GID == gid || slices.Contains(i.Groups, gid)
}

// Close releases the pidfd. It is safe without one.
func (i Info) Close() error {
	if i.Pidfd == nil {
		return nil
	}
	return i.Pidfd.Close()
}
