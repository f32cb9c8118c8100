package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cordon/api/client"
	"cordon/internal/fault"
)

// commandFlags are the flags of a command in a lease.
type commandFlags struct {
	tty, stdin, noStdin bool
	env                 []string
	cwd                 string
}

func (f *commandFlags) register(set *pflag.FlagSet) {
	set.BoolVarP(&f.tty, "tty", "t", false, "give the command a terminal")
	set.BoolVarP(&f.stdin, "interactive", "i", false, "pass standard input on (the default)")
	set.BoolVar(&f.noStdin, "no-stdin", false, "give the command an empty standard input")
	set.StringArrayVar(&f.env, "env", nil, "`NAME=VALUE`, or NAME for the value here; repeatable")
	set.StringVar(&f.cwd, "cwd", "", "working `directory` inside (default: /workspace)")
	set.SetInterspersed(false) // what follows the command is the command's
}

// command makes the command, without its streams.
func (a *app) command(f commandFlags, argv []string) (client.Command, error) {
	cmd := client.Command{Argv: argv, Cwd: f.cwd, TTY: f.tty}
	if f.stdin && f.noStdin {
		return cmd, fault.New(fault.InvalidArgument, "--no-stdin", "contradicts --interactive", "use one of them")
	}
	haveTerm := false
	for _, e := range f.env {
		name, _, ok := strings.Cut(e, "=")
		if name == "" {
			return cmd, fault.New(fault.InvalidArgument, "--env", fmt.Sprintf("%q has no name", e), "write NAME=VALUE")
		}
		if !ok {
			value, set := a.lookup(name)
			if !set {
				return cmd, fault.New(fault.InvalidArgument, "--env", name+" is not set here", "write "+name+"=VALUE")
			}
			e = name + "=" + value
		}
		haveTerm = haveTerm || name == "TERM"
		cmd.Env = append(cmd.Env, e)
	}
	// As ssh does: programs must know what kind of terminal they draw on.
	if kind, ok := a.lookup("TERM"); ok && f.tty && !haveTerm && kind != "" {
		cmd.Env = append(cmd.Env, "TERM="+kind)
	}
	return cmd, nil
}

// runFlags are all flags of run.
type runFlags struct {
	request     requestFlags
	command     commandFlags
	artifacts   []string
	record      string
	keep, force bool
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run [flags] [--] COMMAND [ARG...]",
		Short: "Run one command in a sandbox of its own",
		Long: "Run one command in a sandbox of its own, and release the sandbox whatever happens.\n" +
			"Standard output is the command's alone; --json writes its summary, one line, at the\n" +
			"end of standard error.",
		Example: "  cordon run --input a.csv=./a.csv --artifact sum.txt -- sh -c 'wc -l </inputs/a.csv >sum.txt'",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(cmd, "COMMAND is missing")
			}
			return nil
		},
		Annotations: containerStatuses(),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.run(cmd.Context(), &f, args)
		},
	}
	set := cmd.Flags()
	set.SortFlags = false
	f.request.register(set)
	f.command.register(set)
	set.StringArrayVar(&f.artifacts, "artifact", nil, "take `PATH[:LOCALFILE]` of the workspace out at the end; repeatable")
	set.StringVar(&f.record, "record", "", "write the signed record to this `file`")
	set.BoolVar(&f.force, "force", false, "replace local files that exist")
	set.BoolVar(&f.keep, "keep", false, "do not release the lease at the end")
	return cmd
}
