// Command cordon-init is PID 1 of every jail and, as "cordon-init stage", the
// parked child that becomes a command. It runs inside the jail only and is
// untrusted; see package initproc.
package main

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"cordon/jail/initproc"
)

// The parked child changes its thread's credentials, cgroups and filter and
// is read back by its process id: it must be the main thread. The runtime
// promises that for main only if the lock is taken while packages initialise.
var _ = lockMainThread()

func lockMainThread() struct{} {
	runtime.LockOSThread()
	return struct{}{}
}

func main() {
	if unix.Getpid() != unix.Gettid() {
		fmt.Fprintln(os.Stderr, "cordon-init: not on the main thread")
		os.Exit(125)
	}
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == "stage":
		// The host has been told; standard error is the command's.
		_ = initproc.RunStage(os.Args[2:])
		os.Exit(125)
	case os.Getpid() == 1:
		err = initproc.RunInit()
	default:
		err = fmt.Errorf("this program is started by cordond inside a jail")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cordon-init:", err)
		os.Exit(125)
	}
}
