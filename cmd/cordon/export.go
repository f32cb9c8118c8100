package main

import (
	"context"
	"fmt"
	"io"
	"path"

	"github.com/spf13/cobra"

	"cordon/api/client"
)

// exported is an artifact that arrived.
type exported struct {
	Path   string `json:"path"`
	File   string `json:"file"` // - for standard output
	Digest string `json:"digest"`
	Size   int64  `json:"size"`
}

// exportTo writes an artifact to a local file, which appears only when the
// digest is right.
func exportTo(ctx context.Context, l *client.Lease, from string, to target) (exported, error) {
	out := exported{Path: from, File: to.path}
	err := to.write(func(w io.Writer) error {
		var err error
		out.Digest, out.Size, err = l.Export(ctx, from, w)
		return err
	})
	return out, err
}

func (a *app) exportCommand() *cobra.Command {
	var (
		output, secretFile string
		force              bool
	)
	cmd := &cobra.Command{
		Use:   "export [flags] LEASE PATH",
		Short: "Take a declared artifact out of a lease",
		Long: "Take a declared artifact out of a lease. The file appears when it is whole and its\n" +
			"digest is right; with -o - the digest is checked behind the bytes, and a failure\n" +
			"means that what was written is not to be used.",
		Example: "  cordon export l-7f3a result.json -o out/",
		Args:    arguments("LEASE", "PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.connected(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				l, err := a.leaseWith(c, args[0], secretFile)
				if err != nil {
					return err
				}
				return a.export(ctx, l, args[1], output, force)
			})
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "`FILE`, directory, or - (default: the artifact's name, here)")
	cmd.Flags().BoolVar(&force, "force", false, "replace a file that exists")
	secretFlag(cmd, &secretFile)
	return cmd
}

func (a *app) export(ctx context.Context, l *client.Lease, from, output string, force bool) error {
	if output == "-" {
		out := exported{Path: from, File: output}
		var err error
		if out.Digest, out.Size, err = l.Export(ctx, from, a.stdout); err != nil {
			return err
		}
		if a.json {
			return encodeLine(a.stderr, out) // standard output is the artifact's
		}
		return nil
	}
	to, err := newTarget(output, path.Base(from), force)
	if err != nil {
		return err
	}
	out, err := exportTo(ctx, l, from, to)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(out)
	}
	return a.print(plain(fmt.Sprintf("%s  %s  %s", out.File, formatBytes(out.Size), out.Digest)) + "\n")
}

func secretFlag(cmd *cobra.Command, dst *string) {
	cmd.Flags().StringVar(dst, "secret-file", "", "read the lease's secret from `FILE` (or $CORDON_LEASE_SECRET)")
}
