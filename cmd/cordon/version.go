package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"cordon/api/client"
)

// askTime bounds questions whose answer is a nicety.
const askTime = 3 * time.Second

// versions is what version --json says. Daemon is null when there is none.
type versions struct {
	Version  string         `json:"version"`
	Go       string         `json:"go"`
	Platform string         `json:"platform"`
	Socket   string         `json:"socket"`
	Daemon   *daemonVersion `json:"daemon"`
}

type daemonVersion struct {
	Version         string `json:"version"`
	RuntimeRevision string `json:"runtime_revision"`
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Show the version of this program and of the daemon",
		Example: "  cordon version",
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versions{
				Version: a.version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Socket: a.socket,
			}
			if info, err := a.info(cmd.Context()); err == nil {
				v.Daemon = &daemonVersion{info.Version, info.RuntimeRevision}
			}
			if a.json {
				return a.printJSON(v)
			}
			daemon := "not reachable at " + a.socket
			if v.Daemon != nil {
				daemon = fmt.Sprintf("%s (runtime %s) at %s", v.Daemon.Version, v.Daemon.RuntimeRevision, a.socket)
			}
			return a.print(fmt.Sprintf("cordon  %s (%s %s)\ncordond %s\n", v.Version, v.Go, v.Platform, plain(daemon)))
		},
	}
}

// info asks the daemon about itself, and does not wait long.
func (a *app) info(ctx context.Context) (client.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	c, err := a.dial(ctx)
	if err != nil {
		return client.Info{}, err
	}
	defer c.Close() //nolint:errcheck // nothing is in flight any more
	return c.Info(ctx)
}
