package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"cordon/api/client"
	"cordon/internal/fault"
)

// hostImage is made by the daemon out of the host's own packages.
const hostImage = "host"

// resolveImage finds the digest of an image; a digest is its own.
func (a *app) resolveImage(ctx context.Context, c *client.Client, name string) (string, error) {
	if strings.HasPrefix(name, "sha256:") {
		return name, nil
	}
	img, err := a.findImage(ctx, c, name)
	return img.Digest, err
}

// findImage finds an image by name: of several, the newest. The image "host"
// is made when there is none yet.
func (a *app) findImage(ctx context.Context, c *client.Client, name string) (client.Image, error) {
	images, err := c.Images(ctx)
	if err != nil {
		return client.Image{}, err
	}
	if img, ok := newest(images, name); ok {
		return img, nil
	}
	if name != hostImage {
		return client.Image{}, fault.New(fault.UnknownImage, "--image", fmt.Sprintf("there is no image %q", name),
			"see cordon image ls, or import one: cordon image import NAME TAR")
	}
	return a.snapshot(ctx, c)
}

func newest(images []client.Image, name string) (client.Image, bool) {
	var best client.Image
	for _, img := range images {
		if img.Name == name && (best.Digest == "" || img.CreatedAt.After(best.CreatedAt)) {
			best = img
		}
	}
	return best, best.Digest != ""
}

func (a *app) snapshot(ctx context.Context, c *client.Client) (client.Image, error) {
	p := a.progressLine()
	defer p.close()
	return c.SnapshotHost(ctx, func(s string) { p.say("making the image host: " + s) })
}

func (a *app) imageCommand() *cobra.Command {
	return a.group("image", "Look at and make root file systems for leases",
		a.imageListCommand(), a.imageImportCommand(), a.imageSnapshotCommand())
}

func (a *app) imageListCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Short:   "List the images of the store",
		Example: "  cordon image ls",
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.connected(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				images, err := c.Images(ctx)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(list(images))
				}
				return a.printImages(images...)
			})
		},
	}
}

func (a *app) printImages(images ...client.Image) error {
	return a.table("NAME\tSIZE\tFILES\tMADE\tDIGEST", func(row func(...any)) {
		for _, i := range images {
			row(i.Name, formatBytes(i.Bytes), i.Files, i.CreatedAt.UTC().Format(time.DateTime), i.Digest)
		}
	})
}

// table prints aligned columns under a heading.
func (a *app) table(heading string, fill func(row func(...any))) error {
	w := tabwriter.NewWriter(a.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, heading)
	fill(func(cells ...any) {
		var text []string
		for _, c := range cells {
			text = append(text, plain(fmt.Sprint(c)))
		}
		fmt.Fprintln(w, strings.Join(text, "\t"))
	})
	return wrapOutput(w.Flush())
}

func (a *app) imageImportCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "import NAME TAR|-",
		Short:   "Make an image out of the tar of a root file system",
		Example: "  docker export my-container | cordon image import my-image -",
		Args:    arguments("NAME", "TAR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.connected(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				img, err := a.importImage(ctx, c, args[0], args[1])
				if err != nil {
					return err
				}
				return a.printImage(img)
			})
		},
	}
}

func (a *app) importImage(ctx context.Context, c *client.Client, name, tar string) (client.Image, error) {
	var (
		r    io.Reader
		size int64
	)
	if tar == "-" {
		r = abandonable(ctx, a.stdin)
	} else {
		f, err := os.Open(tar)
		if err != nil {
			return client.Image{}, err
		}
		defer f.Close()
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			size = info.Size()
		}
		r = f
	}
	p := a.progressLine()
	defer p.close()
	return c.ImportImage(ctx, name, &counted{Reader: r, p: p, what: "sending " + name, total: size})
}

// abandonable is a reader whose Read returns when ctx ends, even if that of r,
// a terminal or a pipe, does not. The goroutine behind it is left to end with
// r or with the program.
func abandonable(ctx context.Context, r io.Reader) io.Reader {
	out, in := io.Pipe()
	go func() {
		_, err := io.Copy(in, r)
		_ = in.CloseWithError(err) // never fails
	}()
	context.AfterFunc(ctx, func() { _ = out.CloseWithError(context.Cause(ctx)) })
	return out
}

func (a *app) imageSnapshotCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "snapshot",
		Short:   "Make the image host out of this machine's packages",
		Example: "  cordon image snapshot",
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.connected(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				img, err := a.snapshot(ctx, c)
				if err != nil {
					return err
				}
				return a.printImage(img)
			})
		},
	}
}

// printImage prints the digest of an image that was made.
func (a *app) printImage(img client.Image) error {
	if a.json {
		return a.printJSON(img)
	}
	return a.print(img.Digest + "\n")
}
