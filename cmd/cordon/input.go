package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"cordon/api/client"
	"cordon/internal/fault"
)

// localFile is an input that was opened, with the caller's rights, and
// hashed. The digest goes with it, so that the daemon refuses a file that
// changes on the way.
type localFile struct {
	name   string
	path   string
	f      *os.File
	size   int64
	digest string
}

// openInput opens and hashes a regular file.
func (a *app) openInput(ctx context.Context, in inputFile) (localFile, error) {
	f, err := os.Open(in.path)
	if err != nil {
		return localFile{}, err
	}
	out := localFile{name: in.name, path: in.path, f: f}
	if err := a.hash(ctx, &out); err != nil {
		return localFile{}, errors.Join(err, f.Close())
	}
	return out, nil
}

func (a *app) hash(ctx context.Context, l *localFile) error {
	info, err := l.f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fault.New(fault.NotRegular, l.path, "is not a regular file", "put the data into a file first")
	}
	p := a.progressLine()
	defer p.close()
	sum := sha256.New()
	r := &counted{Reader: stoppable{ctx, l.f}, p: p, what: "reading " + filepath.Base(l.path), total: info.Size()}
	if l.size, err = io.Copy(sum, r); err != nil {
		return err
	}
	l.digest = "sha256:" + hex.EncodeToString(sum.Sum(nil))
	if _, err := l.f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return nil
}

// stoppable is a reader that ends with its context.
type stoppable struct {
	ctx context.Context //nolint:containedctx // it is the reader's lifetime
	io.Reader
}

func (s stoppable) Read(p []byte) (int, error) {
	if err := context.Cause(s.ctx); err != nil {
		return 0, err
	}
	return s.Reader.Read(p)
}

func (a *app) openInputs(ctx context.Context, in []inputFile) ([]localFile, error) {
	var out []localFile
	for _, i := range in {
		l, err := a.openInput(ctx, i)
		if err != nil {
			return out, err
		}
		out = append(out, l)
	}
	return out, nil
}

func closeAll(files []localFile) {
	for _, l := range files {
		_ = l.f.Close() // only read
	}
}

// upload sends a file that openInput opened.
func (a *app) upload(ctx context.Context, c *client.Client, tenant string, l localFile) (client.Input, error) {
	p := a.progressLine()
	defer p.close()
	r := &counted{Reader: l.f, p: p, what: "sending " + filepath.Base(l.path), total: l.size}
	got, err := c.PutInput(ctx, tenant, r, l.size, l.digest)
	if err != nil {
		return got, err
	}
	if got.Digest != l.digest {
		return got, fault.New(fault.DigestMismatch, l.path,
			fmt.Sprintf("the daemon stored %s, and it is %s", got.Digest, l.digest), "send it again")
	}
	return got, nil
}

func (a *app) inputCommand() *cobra.Command {
	return a.group("input", "Store input files for runs", a.inputPutCommand())
}

func (a *app) inputPutCommand() *cobra.Command {
	var tenant, digest string
	cmd := &cobra.Command{
		Use:     "put [flags] FILE",
		Short:   "Store a file and print the digest that envelopes name it by",
		Example: "  cordon input put data.csv",
		Args:    arguments("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.connected(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return a.putInput(ctx, c, args[0], tenant, digest)
			})
		},
	}
	cmd.Flags().StringVar(&tenant, "tenant", "", "tenant (default: the first you may speak for)")
	cmd.Flags().StringVar(&digest, "digest", "", "refuse the file unless it has this `sha256:...`")
	return cmd
}

func (a *app) putInput(ctx context.Context, c *client.Client, path, tenant, digest string) error {
	l, err := a.openInput(ctx, inputFile{path: path})
	if err != nil {
		return err
	}
	defer l.f.Close()
	if digest != "" && digest != l.digest {
		return fault.New(fault.DigestMismatch, path, "has the digest "+l.digest, "see whether it is the right file")
	}
	if tenant == "" {
		if tenant, err = defaultTenant(ctx, c); err != nil {
			return err
		}
	}
	got, err := a.upload(ctx, c, tenant, l)
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(got)
	}
	return a.print(got.Digest + "\n")
}
