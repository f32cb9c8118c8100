package sys

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// KernelRelease is uname -r.
func KernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown" // EFAULT is the one error, and cannot happen here
	}
	return unix.ByteSliceToString(u.Release[:])
}

// KernelAtLeast compares the running kernel's version.
func KernelAtLeast(major, minor int) bool {
	var a, b int
	if _, err := fmt.Sscanf(KernelRelease(), "%d.%d", &a, &b); err != nil {
		return false
	}
	return a > major || a == major && b >= minor
}
