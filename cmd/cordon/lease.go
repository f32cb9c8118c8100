package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"cordon/api/client"
	"cordon/internal/fault"
	"cordon/supervisor/envelope"
)

func (a *app) leaseCommand() *cobra.Command {
	return a.group("lease", "Acquire, look at, renew and release leases",
		a.leaseAcquireCommand(), a.leaseListCommand(), a.leaseShowCommand(),
		a.leaseRenewCommand(), a.leaseReleaseCommand())
}

func (a *app) leaseAcquireCommand() *cobra.Command {
	var (
		f   requestFlags
		key string
	)
	cmd := &cobra.Command{
		Use:   "acquire [flags]",
		Short: "Lease a sandbox and print its id",
		Long: "Lease a sandbox and print its id. The lease's secret is kept for this user's later\n" +
			"commands; only --json prints it.",
		Example: "  id=$(cordon lease acquire --memory 1G --lease 30m)",
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			e, err := f.base()
			if err != nil {
				return err
			}
			declare(&e, f.artifacts)
			in, err := parseInputs(f.inputs)
			if err != nil {
				return err
			}
			return a.acquireLease(cmd.Context(), &f, e, in, key)
		},
	}
	cmd.Flags().SortFlags = false
	f.register(cmd.Flags())
	cmd.Flags().StringArrayVar(&f.artifacts, "artifact", nil, "let this `PATH` of the workspace out; repeatable")
	cmd.Flags().StringVar(&key, "key", "", "idempotency key: the same key with the same request is the same lease")
	return cmd
}

// acquired is what lease acquire --json says.
type acquired struct {
	LeaseID  string            `json:"lease_id"`
	Secret   string            `json:"lease_secret"` // empty on a replay
	Replayed bool              `json:"replayed"`
	Lease    client.LeaseInfo  `json:"lease"`
	Envelope envelope.Envelope `json:"envelope"`
	ReadBack []client.Check    `json:"read_back"`
}

func (a *app) acquireLease(ctx context.Context, f *requestFlags, e envelope.Envelope, in []inputFile, key string) error {
	i := newInterrupts(a.signals())
	defer i.close()
	c, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // nothing is in flight any more
	asking, leave := i.enter(ctx, cancelling)
	e, err = a.request(asking, c, f, e, in)
	leave()
	if err != nil {
		return because(asking, err)
	}
	// From here on there may be a lease, so that nothing stops half-way.
	ctx, leave = i.enter(ctx, holding)
	defer leave()
	l, err := c.Acquire(ctx, e, client.AcquireOptions{Key: key})
	if l == nil {
		return because(ctx, err)
	}
	if err == nil {
		err = i.caught()
	}
	if err == nil {
		err = a.handOver(l)
	}
	if err == nil || l.Replayed {
		return err
	}
	// Nobody has the secret: the lease is of no use to anybody.
	if _, rerr := l.Release(ctx); rerr != nil {
		return errors.Join(err, notReleased(l, rerr))
	}
	a.secrets().drop(l.ID())
	return err
}

// handOver keeps the secret and prints the lease.
func (a *app) handOver(l *client.Lease) error {
	if !l.Replayed {
		switch err := a.secrets().save(l.ID(), l.Secret()); {
		case err != nil && !a.json:
			return err
		case err != nil:
			// The caller gets the secret all the same.
			fmt.Fprintf(a.stderr, "cordon: %s\n", failures(err)[0])
		}
	}
	if a.json {
		return a.printJSON(acquired{l.ID(), l.Secret(), l.Replayed, l.Acquired, l.Envelope, list(l.ReadBack)})
	}
	return a.print(l.ID() + "\n")
}

func (a *app) leaseListCommand() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:     "ls",
		Short:   "List your leases, newest first",
		Example: "  cordon lease ls",
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.connected(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				leases, err := c.Leases(ctx)
				if err != nil {
					return err
				}
				if !all {
					leases = slices.DeleteFunc(leases, func(l client.LeaseInfo) bool { return l.State == "closed" })
				}
				if a.json {
					return a.printJSON(list(leases))
				}
				return a.table("LEASE\tSTATE\tTENANT\tRUN\tCOMMANDS\tEXPIRES", func(row func(...any)) {
					for _, l := range leases {
						row(l.ID, l.State, l.Tenant, l.RunID, len(l.Execs), stamp(l.ExpiresAt))
					}
				})
			})
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "those that are closed too")
	return cmd
}

func (a *app) leaseShowCommand() *cobra.Command {
	var secretFile string
	cmd := &cobra.Command{
		Use:     "show LEASE",
		Short:   "Show one of your leases",
		Example: "  cordon lease show l-7f3a",
		Args:    arguments("LEASE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.connected(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				info, err := a.findLease(ctx, c, args[0], secretFile)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(info)
				}
				return a.print(leaseText(info))
			})
		},
	}
	secretFlag(cmd, &secretFile)
	return cmd
}

// findLease asks with the secret, if there is one, and looks among the
// caller's own leases otherwise: looking needs no secret.
func (a *app) findLease(ctx context.Context, c *client.Client, id, secretFile string) (client.LeaseInfo, error) {
	if l, err := a.leaseWith(c, id, secretFile); err == nil {
		return l.Get(ctx)
	} else if secretFile != "" {
		return client.LeaseInfo{}, err
	}
	leases, err := c.Leases(ctx)
	if err != nil {
		return client.LeaseInfo{}, err
	}
	for _, l := range leases {
		if l.ID == id {
			return l, nil
		}
	}
	return client.LeaseInfo{}, fault.New(fault.NotFound, "lease "+id, "you have no such lease", "see cordon lease ls")
}

func leaseText(l client.LeaseInfo) string {
	var p page
	p.line("lease", "%s, %s (fencing %d)", l.ID, l.State, l.Fencing)
	p.line("for", "tenant %s, run %s, attempt %s, owner uid %d", l.Tenant, l.RunID, l.AttemptID, l.OwnerUID)
	p.line("image", "%s", l.ImageDigest)
	p.line("envelope", "%s", l.EnvelopeDigest)
	p.line("plan", "%s", l.PlanDigest)
	p.line("acquired", "%s", stamp(l.AcquiredAt))
	p.line("expires", "%s, at most %s", stamp(l.ExpiresAt), stamp(l.MaxExpiresAt))
	for _, x := range l.Execs {
		how := "running"
		if !x.Running && x.End != nil {
			how = endText(*x.End)
		}
		p.line("command", "%s %s: %s", x.ID, strings.Join(x.Argv, " "), how)
	}
	if l.End != nil {
		p.line("end", "%s", endText(*l.End))
	}
	return p.String()
}

// endText is an end in a few words.
func endText(e client.End) string {
	if e.Cause == client.Exited && e.StartCode == 0 {
		return fmt.Sprintf("exited with %d", e.ExitCode)
	}
	if e.Detail == "" && e.StartCode == 0 && e.Cause != client.Signalled {
		return string(e.Cause)
	}
	return causeOf(e, "", nil)
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format(time.RFC3339)
}

func (a *app) leaseRenewCommand() *cobra.Command {
	var secretFile string
	cmd := &cobra.Command{
		Use:     "renew LEASE TIME",
		Short:   "Let a lease expire that much later than now",
		Example: "  cordon lease renew l-7f3a 30m",
		Args:    arguments("LEASE", "TIME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			extend, err := parseLength(args[1])
			if err != nil {
				return usage(cmd, "TIME: "+err.Error())
			}
			return a.connected(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				l, err := a.leaseWith(c, args[0], secretFile)
				if err != nil {
					return err
				}
				info, err := l.Renew(ctx, time.Duration(extend))
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(info)
				}
				return a.print(stamp(info.ExpiresAt) + "\n")
			})
		},
	}
	secretFlag(cmd, &secretFile)
	return cmd
}

func (a *app) leaseReleaseCommand() *cobra.Command {
	var (
		secretFile, record string
		force              bool
	)
	cmd := &cobra.Command{
		Use:     "release LEASE",
		Short:   "End a lease and everything in it",
		Example: "  cordon lease release l-7f3a --record record.json",
		Args:    arguments("LEASE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var to *target
			if record != "" {
				t, err := newTarget(record, "record.json", force)
				if err != nil {
					return err
				}
				to = &t
			}
			return a.connected(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				l, err := a.leaseWith(c, args[0], secretFile)
				if err != nil {
					return err
				}
				return a.releaseLease(ctx, l, to)
			})
		},
	}
	cmd.Flags().StringVar(&record, "record", "", "write the signed record to this `file`")
	cmd.Flags().BoolVar(&force, "force", false, "replace a record file that exists")
	secretFlag(cmd, &secretFile)
	return cmd
}

func (a *app) releaseLease(ctx context.Context, l *client.Lease, to *target) error {
	rec, err := l.Release(ctx)
	if err != nil {
		return err
	}
	a.secrets().drop(l.ID())
	if to != nil {
		if err := to.write(recordLine(rec)); err != nil {
			return err
		}
	}
	if a.json {
		err = a.printJSON(struct {
			LeaseID string          `json:"lease_id"`
			Head    string          `json:"head"`
			Record  json.RawMessage `json:"record"`
		}{l.ID(), rec.Head, rec.JSON})
	} else {
		err = a.print(plain(rec.Head) + "\n")
	}
	return errors.Join(err, notClean(l.ID(), rec))
}

// recordLine writes a record as a file holds it: one line.
func recordLine(rec client.Record) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s\n", rec.JSON)
		return err
	}
}
