// Command cordond is the supervisor daemon: the one privileged program of the
// project. It leases sandboxes over a gRPC API on a Unix socket.
//
// This package wires the others together and decides nothing. The same
// program is started again, by itself, as three helpers that must not be
// called by hand: "maker" makes one jail, "init" is libcontainer's stage
// inside it, "unpack" reads one image tar without privilege.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"cordon/artifacts/unpack"
	"cordon/jail/linux"
)

// version is set when the program is linked.
var version = "unknown"

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "init":
			linux.RunContainerInit() // does not return
		case "maker":
			exit(linux.RunMaker())
		case "unpack":
			os.Exit(unpack.Run(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
		}
	}
	exit(serve())
}

func exit(err error) {
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "cordond:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// options are the command line.
type options struct {
	State  string
	Run    string
	Socket string
	Group  string
	Init   string
	Policy string
	Cgroup string
}

func parseFlags(args []string) (options, error) {
	var o options
	fs := flag.NewFlagSet("cordond", flag.ContinueOnError)
	fs.StringVar(&o.State, "state", "/var/lib/cordon", "directory for journal, keys, images and volumes")
	fs.StringVar(&o.Run, "run", "/run/cordon", "directory for the BPF file system and the socket's directory")
	fs.StringVar(&o.Socket, "socket", "", "socket to listen on (default RUN/api/cordond.sock)")
	fs.StringVar(&o.Group, "group", "cordon", "group that may reach the socket; root alone when it does not exist")
	fs.StringVar(&o.Init, "init", "", "cordon-init program (default beside cordond, or ../libexec/cordon/)")
	fs.StringVar(&o.Policy, "policy", "/etc/cordon/policy.yaml", "host policy")
	fs.StringVar(&o.Cgroup, "cgroup", "cordon", "name of the cgroup that holds all leases")
	show := fs.Bool("version", false, "print the version and exit")
	if err := fs.Parse(args); err != nil {
		return options{}, err
	}
	if *show {
		fmt.Fprintln(os.Stdout, "cordond", version)
		return options{}, flag.ErrHelp
	}
	if fs.NArg() != 0 {
		return options{}, fmt.Errorf("unexpected argument %q [cordond takes flags only]", fs.Arg(0))
	}
	return o.complete()
}

// complete makes every path absolute: helpers run in other directories.
func (o options) complete() (options, error) {
	if o.Socket == "" {
		o.Socket = filepath.Join(o.Run, "api", "cordond.sock")
	}
	if o.Init == "" {
		o.Init = findInit()
	}
	for _, p := range []*string{&o.State, &o.Run, &o.Socket, &o.Init, &o.Policy} {
		abs, err := filepath.Abs(*p)
		if err != nil {
			return options{}, fmt.Errorf("resolve %s: %w", *p, err)
		}
		*p = abs
	}
	return o, nil
}

// findInit looks where a build and where an installation put cordon-init.
func findInit() string {
	self, err := os.Executable()
	if err != nil {
		return "/usr/local/libexec/cordon/cordon-init"
	}
	beside := filepath.Join(filepath.Dir(self), "cordon-init")
	if _, err := os.Stat(beside); err == nil {
		return beside
	}
	return filepath.Join(filepath.Dir(self), "..", "libexec", "cordon", "cordon-init")
}

func serve() error {
	o, err := parseFlags(os.Args[1:])
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	d, err := open(o, log)
	if err != nil {
		return err
	}
	return errors.Join(d.run(ctx), d.close())
}
