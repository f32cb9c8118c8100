package seccomp

import "strconv"

// Action is what happens to a call. The zero value ends the process.
type Action uint32

// Actions without a number. Errno makes the others.
const (
	KillProcess Action = iota
	Allow
)

const errnoAction Action = 1 << 16

// Errno values that this package answers with, as Linux numbers them.
const (
	EPERM           = 1
	ENOSYS          = 38
	EPROTONOSUPPORT = 93
)

// Errno refuses the call with an error number.
func Errno(n uint16) Action { return errnoAction | Action(n) }

// Errno returns the error number of an action made by Errno.
func (a Action) Errno() (n uint16, ok bool) {
	return uint16(a & 0xffff), a&^0xffff == errnoAction && a != errnoAction
}

// known reports whether a is one of the actions; error 0 would be success
// without the call.
func (a Action) known() bool {
	_, isErrno := a.Errno()
	return a == KillProcess || a == Allow || isErrno
}

// Kernel returns the value that a program returns to the kernel
// (SECCOMP_RET_*).
func (a Action) Kernel() uint32 {
	const (
		retKillProcess = 0x80000000
		retErrno       = 0x00050000
		retAllow       = 0x7fff0000
	)
	if n, ok := a.Errno(); ok {
		return retErrno | uint32(n)
	}
	if a == Allow {
		return retAllow
	}
	return retKillProcess
}

func (a Action) String() string {
	n, ok := a.Errno()
	switch {
	case a == KillProcess:
		return "kill"
	case a == Allow:
		return "allow"
	case !ok:
		return "action(" + strconv.FormatUint(uint64(a), 16) + ")"
	case n == EPERM:
		return "EPERM"
	case n == ENOSYS:
		return "ENOSYS"
	case n == EPROTONOSUPPORT:
		return "EPROTONOSUPPORT"
	default:
		return "errno " + strconv.Itoa(int(n))
	}
}
