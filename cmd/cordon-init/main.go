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

func main() {
	// The stage changes thread state and then executes the command: it must
	// be the main thread, and it checks that it is.
	runtime.LockOSThread()
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
