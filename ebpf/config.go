package ebpf

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
)

const defaultMaxLeases = 1024

// Config says where the filter lives.
type Config struct {
	// CgroupParent is the absolute path of an existing cgroup of the v2 tree,
	// whose children are the leases' cgroups. Required.
	CgroupParent string
	// PinDir is an existing directory on a bpffs that holds nothing but this
	// filter's pins; anything else in it is removed. Required.
	PinDir string
	// MaxLeases bounds the number of entries. Optional; 1024. A daemon that
	// changes it starts with no entries: every live lease must be admitted
	// again.
	MaxLeases uint32
	// Logger gets what no caller asks about: what was taken over from an
	// earlier daemon, and trouble of the event reader. Optional.
	Logger *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	if !filepath.IsAbs(c.CgroupParent) {
		return c, fmt.Errorf("check config cgroup parent %q: %w", c.CgroupParent, errNotAbsolute)
	}
	if !filepath.IsAbs(c.PinDir) {
		return c, fmt.Errorf("check config pin directory %q: %w", c.PinDir, errNotAbsolute)
	}
	c.CgroupParent, c.PinDir = filepath.Clean(c.CgroupParent), filepath.Clean(c.PinDir)
	if c.MaxLeases == 0 {
		c.MaxLeases = defaultMaxLeases
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

var errNotAbsolute = errors.New("not an absolute path")
