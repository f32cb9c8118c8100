package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"cordon/api/client"
)

// config is the world around one run of the program. All fields are required;
// main fills them in, tests put something else in their place.
type config struct {
	name           string // as it was called, for hints
	version        string
	stdin          io.Reader
	stdout, stderr io.Writer
	lookup         func(name string) (value string, ok bool) // the environment
	signals        func() (queue <-chan os.Signal, stop func())
	host           fs.FS // the root file system, for doctor
	uid            int
	tempDir        string
}

// app is one run of the program. It belongs to one goroutine.
type app struct {
	config
	socket string
	json   bool
}

func newApp(c config) *app {
	if c.version == "" {
		c.version = "unknown"
	}
	return &app{config: c}
}

// main runs the command that args name and returns the exit status.
func (a *app) main(ctx context.Context, args []string) (status int) {
	root := a.root()         //nolint:contextcheck // cobra hands it to each command
	root.SetArgs(list(args)) // nil would mean those of the process
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	// Commands have released and restored what they must by the time this
	// runs: their own defers come first.
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(a.stderr, "cordon: internal error: %v [report it, with what follows]\n%s", p, debug.Stack())
			status = statusFailed
		}
	}()
	cmd, err := root.ExecuteContextC(ctx)
	return a.finish(cmd, err)
}

func (a *app) root() *cobra.Command {
	root := a.group("cordon", "Lease sandboxes, run commands in them, and check what is left",
		a.runCommand(), a.execCommand(), a.attachCommand(), a.exportCommand(),
		a.leaseCommand(), a.imageCommand(), a.inputCommand(), a.evidenceCommand(),
		a.doctorCommand(), a.versionCommand(), a.quickstartCommand())
	root.Long = root.Short + ".\n\n" +
		"Exit status of run, exec and attach: the command's own; 128+n after signal n;\n" +
		"137 when a limit ended it (the cause is on standard error); 125 when cordon or\n" +
		"the daemon is to blame, 126 and 127 when the command cannot be started.\n" +
		"Of all others: 0, or 1 on failure, or 2 for a mistake in the arguments."
	root.Example = "  cordon run -- sh -c 'id; ls /'"
	root.SilenceErrors, root.SilenceUsage = true, true
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(cmd, err.Error()) })

	socket := client.DefaultSocket
	if s, ok := a.lookup("CORDON_SOCKET"); ok && s != "" {
		socket = s
	}
	root.PersistentFlags().StringVar(&a.socket, "socket", socket, "the daemon's socket, or $CORDON_SOCKET")
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print JSON; errors too")
	return root
}

// group is a command that only has others below it.
func (a *app) group(use, short string, below ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: cobra.ArbitraryArgs}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			cmd.SetOut(a.stderr)
			_ = cmd.Help() // to a standard error that is gone, nothing can be said
			return exited(statusUsage)
		}
		cause := fmt.Sprintf("unknown command %q", args[0])
		if near := cmd.SuggestionsFor(args[0]); len(near) != 0 {
			cause += "; did you mean " + strings.Join(near, " or ") + "?"
		}
		return usage(cmd, cause)
	}
	cmd.SuggestionsMinimumDistance = 2
	cmd.AddCommand(below...)
	return cmd
}

// arguments wants exactly one argument for each name.
func arguments(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return usage(cmd, names[len(args)]+" is missing")
		case len(args) > len(names):
			return usage(cmd, fmt.Sprintf("unexpected argument %q", args[len(names)]))
		}
		return nil
	}
}

// dial connects to the daemon; the caller closes the client.
func (a *app) dial(ctx context.Context) (*client.Client, error) {
	return client.Dial(ctx, a.socket)
}

// connected calls do with a connection. A signal ends do's context, so that it
// can clear up.
func (a *app) connected(ctx context.Context, do func(context.Context, *client.Client) error) error {
	i := newInterrupts(a.signals())
	defer i.close()
	ctx, leave := i.enter(ctx, cancelling)
	defer leave()
	c, err := a.dial(ctx)
	if err != nil {
		return because(ctx, err)
	}
	defer c.Close() //nolint:errcheck // nothing is in flight any more
	return because(ctx, do(ctx, c))
}
