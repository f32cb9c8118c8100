package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"cordon/api/client"
	"cordon/internal/fault"
	"cordon/supervisor/envelope"
)

const (
	maxEnvelope = 1 << 20
	// leaseMargin is what a lease has beyond its run's time, for artifacts.
	leaseMargin = 5 * time.Minute
	// usualWall is the wall clock that the default lease has room for.
	usualWall = 10 * time.Minute
)

// requestFlags are the flags that say what to lease. They come on top of the
// envelope file, if there is one.
type requestFlags struct {
	file, image, tenant, runID string
	inputs, artifacts          []string

	cpuMilli, memory, pids, disk, openFiles, output int64
	timeout, lease                                  int64 // durations

	set *pflag.FlagSet
}

func (f *requestFlags) register(set *pflag.FlagSet) {
	f.set = set
	set.StringVar(&f.file, "envelope", "", "start from the envelope in this YAML `file`")
	set.StringVar(&f.image, "image", "host", "image: host, another name, or sha256:...")
	set.StringVar(&f.tenant, "tenant", "", "tenant (default: the first you may speak for)")
	set.StringVar(&f.runID, "run-id", "", "run id (default: a new one)")
	set.StringArrayVar(&f.inputs, "input", nil, "show a local file at /inputs/NAME, as `NAME=PATH`; repeatable")
	for _, q := range []struct {
		name, usage, kind string
		dst               *int64
		parse             func(string) (int64, error)
	}{
		{"cpu", "cores, such as 2 or 0.5", "cores", &f.cpuMilli, parseCores},
		{"memory", "memory, such as 512M", "size", &f.memory, parseBytes},
		{"pids", "processes and threads", "count", &f.pids, parseCount},
		{"disk", "workspace, such as 1G", "size", &f.disk, parseBytes},
		{"open-files", "open files of each process", "count", &f.openFiles, parseCount},
		{"output-limit", "standard output and error together", "size", &f.output, parseBytes},
		{"timeout", "wall clock of the run, such as 10m", "time", &f.timeout, parseLength},
		{"lease", "length of the lease", "time", &f.lease, parseLength},
	} {
		set.Var(&quantity{dst: q.dst, parse: q.parse, kind: q.kind}, q.name, q.usage)
	}
}

// inputFile is a local file that the run is to see.
type inputFile struct{ name, path string }

// base is the envelope as far as it is known without the daemon and without
// reading inputs.
func (f *requestFlags) base() (envelope.Envelope, error) {
	e := envelope.New()
	if f.file != "" {
		doc, err := readBounded(f.file, maxEnvelope)
		if err != nil {
			return e, err
		}
		if e, err = envelope.Parse(doc); err != nil {
			return e, err
		}
	}
	for _, s := range []struct {
		dst  *string
		flag string
	}{{&e.Identity.Tenant, f.tenant}, {&e.Identity.RunID, f.runID}} {
		if s.flag != "" {
			*s.dst = s.flag
		}
	}
	if e.Identity.RunID == "" {
		e.Identity.RunID = newRunID(time.Now())
	}
	f.limits(&e)
	return e, nil
}

func (f *requestFlags) limits(e *envelope.Envelope) {
	r := &e.Resources
	for _, n := range []struct {
		dst  *int64
		flag int64
	}{
		{&r.CPUMilli, f.cpuMilli},
		{&r.MemoryBytes, f.memory},
		{&r.ProcessCount, f.pids},
		{&r.DiskBytes, f.disk},
		{&r.OpenFiles, f.openFiles},
		{&r.OutputBytes, f.output},
	} {
		if n.flag != 0 {
			*n.dst = n.flag
		}
	}
	if f.disk != 0 {
		e.Filesystem.Workspace.MaxBytes = f.disk // the two must agree
	}
	if f.timeout != 0 {
		r.WallClock = time.Duration(f.timeout)
	}
	if f.lease != 0 {
		e.Cleanup.Lease = time.Duration(f.lease)
	}
	// A longer run in the default lease would be cut short by it.
	if e.Cleanup.Lease == 0 && r.WallClock > usualWall {
		e.Cleanup.Lease = min(r.WallClock+leaseMargin, envelope.MostLease)
	}
}

// newRunID is a run id that sorts by time.
func newRunID(now time.Time) string {
	return "cli-" + now.UTC().Format("20060102t150405") + "-" + strings.ToLower(rand.Text()[:6])
}

// parseInputs reads NAME=PATH.
func parseInputs(flags []string) ([]inputFile, error) {
	var out []inputFile
	for _, s := range flags {
		name, file, ok := strings.Cut(s, "=")
		if !ok || name == "" || file == "" {
			return nil, fault.New(fault.InvalidArgument, "--input", fmt.Sprintf("%q is not NAME=PATH", s), "write it as data.csv=./data.csv")
		}
		out = append(out, inputFile{name, file})
	}
	return out, nil
}

// artifact is a file that is to come out of the run, and where to.
type artifact struct {
	path string
	to   target
}

// parseArtifacts reads PATH[:LOCALFILE] and looks at the local side, so that
// a run is not wasted on a result that has no place.
func parseArtifacts(flags []string, force bool) ([]artifact, error) {
	var out []artifact
	taken := map[string]string{}
	for _, s := range flags {
		from, to, _ := strings.Cut(s, ":")
		t, err := newTarget(to, path.Base(from), force)
		if err != nil {
			return nil, err
		}
		if first, ok := taken[t.path]; ok {
			return nil, fault.New(fault.InvalidArgument, "--artifact",
				fmt.Sprintf("%q and %q would both become %s", first, s, t.path), "give one another local name: PATH:LOCALFILE")
		}
		taken[t.path] = s
		out = append(out, artifact{from, t})
	}
	return out, nil
}

// declare adds what flags name to the envelope's lists, once each.
func declare(e *envelope.Envelope, paths []string) {
	have := map[string]bool{}
	for _, p := range e.Artifacts.Allow {
		have[p] = true
	}
	for _, p := range paths {
		if !have[p] {
			e.Artifacts.Allow = append(e.Artifacts.Allow, p)
		}
		have[p] = true
	}
}

// request completes the envelope with what only the daemon and the files can
// tell, judges it, and only then uploads: nothing is sent for a request that
// cannot be.
func (a *app) request(ctx context.Context, c *client.Client, f *requestFlags, e envelope.Envelope, in []inputFile) (envelope.Envelope, error) {
	if e.Identity.Tenant == "" {
		tenant, err := defaultTenant(ctx, c)
		if err != nil {
			return e, err
		}
		e.Identity.Tenant = tenant
	}
	if e.ImageDigest == "" || f.set.Changed("image") {
		digest, err := a.resolveImage(ctx, c, f.image)
		if err != nil {
			return e, err
		}
		e.ImageDigest = digest
	}
	files, err := a.openInputs(ctx, in)
	defer closeAll(files)
	if err != nil {
		return e, err
	}
	for _, file := range files {
		e.Filesystem.Inputs = append(e.Filesystem.Inputs, envelope.Input{Name: file.name, Digest: file.digest})
	}
	e = envelope.Complete(e)
	if err := envelope.Validate(e); err != nil {
		return e, err
	}
	for _, file := range files {
		if _, err := a.upload(ctx, c, e.Identity.Tenant, file); err != nil {
			return e, err
		}
	}
	return e, nil
}

// defaultTenant is the first tenant that the caller may speak for.
func defaultTenant(ctx context.Context, c *client.Client) (string, error) {
	info, err := c.Info(ctx)
	if err != nil {
		return "", err
	}
	if len(info.Tenants) == 0 {
		return "", fault.New(fault.PermissionDenied, "identity.tenant", "this user may speak for no tenant",
			"have the host policy (/etc/cordon/policy.yaml) name one for you")
	}
	return info.Tenants[0], nil
}
