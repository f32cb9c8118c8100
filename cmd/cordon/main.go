// Command cordon is the command line: it leases sandboxes from cordond, runs
// commands in them, takes declared artifacts out, and shows and checks the
// signed records.
//
// It has the caller's rights and nothing more: it opens the caller's files
// itself and sends bytes, never paths. Flags, environment and signals are
// read here and handed on; one command runs per process, so that nothing is
// shared beyond it. It speaks to the daemon through api/client only; what is
// allowed is decided there, and how it is enforced is no concern of this
// program.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// version is set by the linker.
var version string

func main() {
	a := newApp(config{
		name:    os.Args[0],
		version: version,
		stdin:   os.Stdin,
		stdout:  os.Stdout,
		stderr:  os.Stderr,
		lookup:  os.LookupEnv,
		signals: signals,
		host:    os.DirFS("/"),
		uid:     os.Getuid(),
		tempDir: os.TempDir(),
	})
	os.Exit(a.main(context.Background(), os.Args[1:]))
}

// signals opens the one queue for everything this program may be told. A
// signal that was ignored when it started stays ignored: whoever wrote nohup,
// or put a job into the background of a script, meant it.
func signals() (queue <-chan os.Signal, stop func()) {
	var wanted []os.Signal
	for _, s := range []os.Signal{
		syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGCONT,
		// Asked for only to get EPIPE where Go would end the process: a lease
		// must be released first.
		syscall.SIGPIPE,
	} {
		if !signal.Ignored(s) {
			wanted = append(wanted, s)
		}
	}
	ch := make(chan os.Signal, 32)
	signal.Notify(ch, wanted...)
	return ch, func() { signal.Stop(ch) }
}
