package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"cordon/api"
	"cordon/artifacts"
	"cordon/ebpf"
	"cordon/internal/cleanup"
	"cordon/internal/fault"
	"cordon/internal/sys"
	"cordon/jail"
	"cordon/jail/linux"
	"cordon/supervisor"
	"cordon/supervisor/hostpolicy"
)

// closeTime bounds the end of all leases when the daemon stops; systemd
// waits longer.
const closeTime = 45 * time.Second

// daemon is the parts of a running cordond, in the order they were opened.
type daemon struct {
	opt    options
	log    *slog.Logger
	host   *linux.Host
	policy hostpolicy.Policy
	store  *artifacts.Store
	egress *ebpf.Filter
	sup    *supervisor.Supervisor
	undo   cleanup.Stack // closes what was opened, last first
}

// open opens every part. On error none is left open.
func open(o options, log *slog.Logger) (_ *daemon, err error) {
	if uid := os.Geteuid(); uid != 0 {
		return nil, fault.New(fault.NeedsRoot, "uid", fmt.Sprintf("running as uid %d", uid), "start cordond as root")
	}
	d := &daemon{opt: o, log: log}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.undo.Run())
		}
	}()
	for _, step := range []func() error{
		d.lock, d.loadPolicy, d.openHost, d.openEgress, d.openStore, d.openSupervisor,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// lock makes the directories and takes them for this daemon: a second one on
// either would sweep the first one's leases or take over its filter.
func (d *daemon) lock() error {
	// Files are made with the mode they are given, whatever the caller's.
	syscall.Umask(0o022)
	for _, dir := range []struct {
		name, path string
		mode       os.FileMode
	}{{"state", d.opt.State, 0o700}, {"run", d.opt.Run, 0o755}} {
		if err := os.MkdirAll(dir.path, dir.mode); err != nil {
			return fmt.Errorf("%s directory: %w", dir.name, err)
		}
		if err := onlyRoots(dir.path); err != nil {
			return err
		}
		f, err := sys.LockFile(filepath.Join(dir.path, "lock"))
		if errors.Is(err, sys.ErrLocked) {
			return fault.Wrap(err, fault.DaemonRunning, dir.path, "another cordond is running on this "+dir.name+" directory", "stop it, or use another -"+dir.name)
		}
		if err != nil {
			return fmt.Errorf("%s directory: %w", dir.name, err)
		}
		d.undo.Push(f.Close)
	}
	return nil
}

// onlyRoots refuses a directory in which others could put things.
func onlyRoots(path string) error {
	facts, err := factsOf(func() (os.FileInfo, error) { return os.Lstat(path) })
	if err != nil {
		return err
	}
	if facts.UID != 0 || !facts.Mode.IsDir() || facts.Mode&0o022 != 0 {
		return fault.New(fault.PermissionDenied, path, "it is not a directory that only root can write to", "chown root, chmod go-w")
	}
	return nil
}

func (d *daemon) openHost() (err error) {
	d.host, err = linux.New(linux.Config{
		CgroupParent: d.opt.Cgroup,
		StateDir:     d.opt.State,
		InitPath:     d.opt.Init,
		Maker:        []string{"/proc/self/exe", "maker"},
		Logger:       d.log,
	})
	if err != nil {
		return err
	}
	d.undo.Push(d.host.Close)
	return nil
}

func (d *daemon) openEgress() error {
	dir := filepath.Join(d.opt.Run, "bpf")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("bpf directory: %w", err)
	}
	unmount, err := ebpf.MountBPFFS(dir)
	if err != nil {
		return err
	}
	// Below the top: there the kernel has files of its own.
	pins := filepath.Join(dir, "cordon")
	if err := os.MkdirAll(pins, 0o700); err != nil {
		return fmt.Errorf("bpf directory: %w", err)
	}
	d.egress, err = ebpf.Load(ebpf.Config{
		CgroupParent: d.host.CgroupParentPath(),
		PinDir:       pins,
		Logger:       d.log,
	})
	if err != nil {
		return err
	}
	d.undo.Push(func() error { return d.closeEgress(unmount) })
	return nil
}

// closeEgress leaves nothing pinned when no lease is left; with one alive the
// filter outlives the daemon.
func (d *daemon) closeEgress(unmount func() error) error {
	left, err := d.host.Strays()
	if err != nil || len(left) != 0 {
		return errors.Join(err, d.egress.Close())
	}
	return errors.Join(d.egress.Remove(), d.egress.Close(), unmount())
}

func (d *daemon) openStore() (err error) {
	base, _ := d.policy.IDRange()
	d.store, err = artifacts.Open(artifacts.Config{
		Dir: d.opt.State,
		// The range below the leases' own is the image store's.
		ImageIDBase: base - jail.IDRangeSize,
	})
	return err
}

func (d *daemon) openSupervisor() (err error) {
	base, count := d.policy.IDRange()
	d.sup, err = supervisor.New(supervisor.Config{
		StateDir:        d.opt.State,
		Jailer:          d.host,
		Egress:          d.egress,
		Store:           d.store,
		Admission:       d.policy,
		HostImage:       d.hostImage,
		CopyArtifact:    artifacts.CopyArtifact,
		Version:         version,
		RuntimeRevision: d.revision(),
		IDBase:          base,
		IDRanges:        int(count / jail.IDRangeSize),
		Log:             d.log,
	})
	if err != nil {
		return err
	}
	d.undo.Push(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		return d.sup.Close(ctx)
	})
	return nil
}

// revision names the runtime and host policy (S1-143) that an envelope may
// pin: the same program, kernel and policy give the same text.
func (d *daemon) revision() string {
	return fmt.Sprintf("cordon-%s+linux-%s+policy-%.19s", version, d.host.Features().Kernel, d.policy.Digest())
}

// hostImage is the digest of the host's snapshot, or "" while there is none.
func (d *daemon) hostImage() string {
	img, _ := d.store.ByName(artifacts.HostImage)
	return img.Digest
}

// run recovers, listens and serves until ctx ends or a part fails.
func (d *daemon) run(ctx context.Context) error {
	if err := d.sup.Recover(ctx); err != nil {
		return err
	}
	srv, err := api.New(api.Config{
		Supervisor: api.FromSupervisor(d.sup),
		Images:     images{d.store, d.policy},
		Tenants:    d.policy.Tenants,
		Info:       d.info,
		Logger:     d.log,
	})
	if err != nil {
		return err
	}
	l, err := api.Listen(d.opt.Socket, groupID(d.opt.Group))
	if err != nil {
		return err
	}
	d.log.Info("listening", slog.String("socket", d.opt.Socket), slog.String("version", version),
		slog.String("cgroup_mode", d.host.Features().CgroupMode))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	parts := []func(context.Context) error{
		func(ctx context.Context) error { return srv.Run(ctx, l) },
		d.sup.Run,
		d.expireInputs,
	}
	ended := make(chan error, len(parts))
	for _, part := range parts {
		go func() {
			err := part(ctx)
			cancel(err) // one part's end is every part's
			ended <- err
		}()
	}
	var errs []error
	for range parts {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
}

// expireInputs drops inputs that were staged and never used.
func (d *daemon) expireInputs(ctx context.Context) error {
	tick := time.NewTicker(time.Minute)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if _, err := d.store.Expire(); err != nil {
				d.log.Warn("staged inputs not dropped", slog.Any("error", err))
			}
		}
	}
}

func (d *daemon) close() error { return d.undo.Run() }

func (d *daemon) info(context.Context) (api.Info, error) {
	f := d.host.Features()
	return api.Info{
		Version:         version,
		RuntimeRevision: d.revision(),
		Kernel:          f.Kernel,
		CgroupMode:      f.CgroupMode,
		Terms:           terms(f),
		RecordKey:       base64.StdEncoding.EncodeToString(d.sup.PublicKey()),
		Leases:          d.sup.Count(),
	}, nil
}

// groupID is the group's id, or -1 where there is none: then root alone
// reaches the socket.
func groupID(name string) int {
	g, err := user.LookupGroup(name)
	if err != nil {
		return -1
	}
	id, err := strconv.Atoi(g.Gid)
	if err != nil {
		return -1
	}
	return id
}
