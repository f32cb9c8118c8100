package unpack

import (
	"fmt"
	"io"
	"os"
	"runtime"
)

// Run is the worker's main: args are Limits.Args, stdin the tar. It confines
// the process, extracts into what is then its root, and returns the exit
// status. It must be called from main, before any other goroutine is started.
func Run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	// Capabilities are a thread's own: everything from here on is this
	// thread's work.
	runtime.LockOSThread()
	lim, err := parseLimits(args)
	if err == nil {
		err = confine(lim)
	}
	if err != nil {
		fmt.Fprintln(stderr, "unpack:", err)
		return 2
	}
	rep, err := extractRoot(stdin, lim)
	if werr := rep.write(stdout, err); werr != nil {
		fmt.Fprintln(stderr, "unpack:", werr)
		return 2
	}
	if err != nil {
		return 1
	}
	return 0
}

func extractRoot(stdin io.Reader, lim Limits) (Report, error) {
	root, err := os.OpenRoot("/")
	if err != nil {
		return Report{}, fmt.Errorf("open staging directory: %w", err)
	}
	defer root.Close()
	return extract(stdin, root, lim, true)
}
