package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"cordon/api/client"
	"cordon/internal/fault"
)

// execFlags are all flags of exec.
type execFlags struct {
	command      commandFlags
	secretFile   string
	timeout      int64
	keep, detach bool
}

func (a *app) execCommand() *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:         "exec [flags] LEASE [--] COMMAND [ARG...]",
		Short:       "Run a command in a lease that you hold",
		Example:     "  cordon exec l-7f3a -- make test",
		Args:        execArguments,
		Annotations: containerStatuses(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[1] == "--" {
				args = append(args[:1:1], args[2:]...)
			}
			return a.exec(cmd.Context(), &f, args[0], args[1:])
		},
	}
	set := cmd.Flags()
	f.command.register(set)
	secretFlag(cmd, &f.secretFile)
	set.Var(&quantity{dst: &f.timeout, parse: parseLength, kind: "time"}, "timeout", "wall clock of this command (default: what is left of the run's)")
	set.BoolVar(&f.keep, "keep", false, "let the command go on when this program goes, for attach")
	set.BoolVarP(&f.detach, "detach", "d", false, "start the command, print its id, and go")
	return cmd
}

// execArguments wants a lease and a command. A flag between them would be the
// command's name to us and a mistake to everybody else.
func execArguments(cmd *cobra.Command, args []string) error {
	switch {
	case len(args) == 0:
		return usage(cmd, "LEASE is missing")
	case len(args) == 1 || len(args) == 2 && args[1] == "--":
		return usage(cmd, "COMMAND is missing")
	case strings.HasPrefix(args[1], "-") && args[1] != "--":
		return usage(cmd, fmt.Sprintf("%q follows the lease: flags go before it, or write -- before the command", args[1]))
	}
	return nil
}

func (a *app) exec(ctx context.Context, f *execFlags, leaseID string, argv []string) error {
	cmd, err := a.command(f.command, argv)
	if err != nil {
		return err
	}
	if f.detach && f.command.tty {
		return fault.New(fault.InvalidArgument, "--detach", "a command left alone has no terminal", "use --keep, or leave out --tty")
	}
	cmd.Timeout, cmd.Keep = time.Duration(f.timeout), f.keep || f.detach
	var execID string
	cmd.Started = func(id string) { execID = id }
	return a.inLease(ctx, leaseID, f.secretFile, func(ctx context.Context, i *interrupts, l *client.Lease) error {
		if f.detach {
			return a.detach(ctx, i, l, cmd)
		}
		w := wiring{tty: f.command.tty, noStdin: f.command.noStdin, leaveOnHangup: f.keep}
		end, err := a.wired(ctx, i, w, func(ctx context.Context, s client.Streams, size client.Size) (client.End, error) {
			cmd.Stdin, cmd.Stdout, cmd.Stderr = s.Stdin, s.Stdout, s.Stderr
			cmd.Resize, cmd.Signals, cmd.Size = s.Resize, s.Signals, size
			return l.Run(ctx, cmd)
		})
		if err != nil && f.keep && execID != "" {
			fmt.Fprintf(a.stderr, "cordon: command %s goes on [cordon attach %s %s]\n", execID, leaseID, execID)
		}
		return a.ended(argv[0], end, err)
	})
}

// inLease calls do with a lease and with signals taken over.
func (a *app) inLease(ctx context.Context, leaseID, secretFile string,
	do func(context.Context, *interrupts, *client.Lease) error,
) error {
	i := newInterrupts(a.signals())
	defer i.close()
	c, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // nothing is in flight any more
	l, err := a.leaseWith(c, leaseID, secretFile)
	if err != nil {
		return err
	}
	return do(ctx, i, l)
}

// ended turns how a command ended into how this program does.
func (a *app) ended(command string, end client.End, err error) error {
	if client.CodeOf(err) == client.Unavailable {
		return goneAway(err)
	}
	if err != nil {
		return err
	}
	status := statusOf(end)
	if a.json {
		_ = encodeLine(a.stderr, struct {
			ExitStatus int        `json:"exit_status"`
			End        client.End `json:"end"`
		}{status, end}) // there is no place left to complain
	} else if cause := causeOf(end, command, nil); cause != "" {
		fmt.Fprintf(a.stderr, "cordon: %s\n", cause)
	}
	if status == 0 {
		return nil
	}
	return exited(status)
}

// errDetached ends the stream of a command that has started.
var errDetached = errors.New("detached")

// detach starts the command and leaves it running. The command has no streams
// here, so that its id on standard output is in nobody's way.
func (a *app) detach(ctx context.Context, i *interrupts, l *client.Lease, cmd client.Command) error {
	ctx, leave := i.enter(ctx, cancelling)
	defer leave()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var execID string
	cmd.Started = func(id string) {
		execID = id
		cancel(errDetached)
	}
	end, err := l.Run(ctx, cmd)
	switch {
	case execID == "" && err == nil: // it could not be started
		return a.ended(cmd.Argv[0], end, nil)
	case execID == "":
		return because(ctx, err)
	case a.json:
		return a.printJSON(map[string]string{"exec_id": execID})
	}
	return a.print(execID + "\n")
}

func (a *app) attachCommand() *cobra.Command {
	var (
		secretFile   string
		tty, noStdin bool
	)
	cmd := &cobra.Command{
		Use:   "attach [flags] LEASE EXEC",
		Short: "Take over the streams of a running command",
		Long: "Take over the streams of a running command, beginning with the end of what it wrote.\n" +
			"Signals go to the command; a hang-up leaves it running, if it was started to be kept.",
		Example:     "  cordon attach l-7f3a e-2",
		Args:        arguments("LEASE", "EXEC"),
		Annotations: containerStatuses(),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.inLease(cmd.Context(), args[0], secretFile, func(ctx context.Context, i *interrupts, l *client.Lease) error {
				w := wiring{tty: tty, noStdin: noStdin, leaveOnHangup: true, sendSize: true}
				end, err := a.wired(ctx, i, w, func(ctx context.Context, s client.Streams, _ client.Size) (client.End, error) {
					return l.Attach(ctx, args[1], s)
				})
				return a.ended(args[1], end, err)
			})
		},
	}
	cmd.Flags().BoolVarP(&tty, "tty", "t", false, "the command has a terminal: pass keys and sizes as they are")
	cmd.Flags().BoolVar(&noStdin, "no-stdin", false, "leave the command's standard input alone")
	secretFlag(cmd, &secretFile)
	return cmd
}
