// Package linux applies a jail.Plan on a Linux host: cgroups, detached and
// idmapped mounts, a workspace volume, a container made by libcontainer in a
// short-lived maker process, commands by message to PID 1, and the read-back
// of all of it from the kernel.
//
// It needs root. A Host is safe for concurrent use; a Jail and an Exec own
// their processes, cgroups, mounts and descriptors and give all of them back
// in Close. Everything PID 1 says is the tenant's word; what counts comes
// from pidfds, cgroup files and /proc. Admission, timers and records do not
// belong here (supervisor), nor does anything that parses tenant bytes beyond
// PID 1's length-checked messages.
package linux

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	lcseccomp "github.com/opencontainers/runc/libcontainer/seccomp"
	"golang.org/x/sys/unix"

	"cordon/internal/fault"
	"cordon/internal/sys"
	"cordon/jail"
	"cordon/jail/seccomp"
	"cordon/supervisor"
)

var (
	_ supervisor.Jailer = (*Host)(nil)
	_ supervisor.Jail   = (*Jail)(nil)
	_ supervisor.Exec   = (*Exec)(nil)
)

// Config says where a Host keeps its things. All fields are required.
type Config struct {
	// CgroupParent names the group that holds all leases, directly below the
	// root of each hierarchy. One daemon owns it.
	CgroupParent string
	// StateDir holds volumes and their templates; root-only, on a file system
	// with sparse files.
	StateDir string
	// InitPath is the static cordon-init program on the host.
	InitPath string
	// Maker is the command line of a process that calls RunMaker.
	Maker []string
	// Logger takes what is worth an operator's attention.
	Logger *slog.Logger
}

// Host makes jails on this machine.
type Host struct {
	cfg      Config
	groups   *hierarchies
	features jail.Features
	filter   []byte // the commands' filter, compiled once
}

// New checks the host and prepares its parent cgroups and directories.
func New(cfg Config) (*Host, error) {
	if unix.Geteuid() != 0 {
		return nil, fault.New(fault.NeedsRoot, "uid", fmt.Sprintf("running as uid %d", unix.Geteuid()), "start cordond as root")
	}
	if !lcseccomp.Enabled {
		return nil, errors.New("built without libcontainer's seccomp [build with -tags seccomp]")
	}
	if err := checkInit(cfg.InitPath); err != nil {
		return nil, err
	}
	if !sys.KernelAtLeast(6, 1) {
		return nil, fault.New(fault.MissingFeature, "kernel", "release "+sys.KernelRelease()+" is too old", "use Linux 6.1 or newer")
	}
	groups, err := findHierarchies(cfg.CgroupParent)
	if err != nil {
		return nil, err
	}
	filter, err := Compile(seccomp.Default())
	if err != nil {
		return nil, fmt.Errorf("compile seccomp filter: %w", err)
	}
	for _, dir := range []string{"volumes", "templates"} {
		if err := os.MkdirAll(filepath.Join(cfg.StateDir, dir), 0o700); err != nil {
			return nil, fmt.Errorf("state directory: %w", err)
		}
	}
	// Better now than at the first lease.
	ns, err := leaseNamespace(jail.IDMap{Base: jail.IDRangeSize, Size: 1})
	if err != nil {
		return nil, err
	}
	_ = ns.Close()
	if err := limitCores(); err != nil {
		return nil, err
	}
	// PID 1 of a jail is orphaned when its maker ends; it must fall to us.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, os.NewSyscallError("prctl PR_SET_CHILD_SUBREAPER", err)
	}
	return &Host{cfg: cfg, groups: groups, filter: filter, features: jail.Features{
		Kernel:       sys.KernelRelease(),
		CgroupMode:   groups.mode,
		PidfdInfo:    sys.HavePidfdExit(),
		SwapAccount:  groups.haveSwapLimit(),
		TmpfsIDMap:   sys.KernelAtLeast(6, 3),
		TimeNS:       exists("/proc/self/ns/time"),
		LoopDirectIO: exists("/dev/loop-control"),
	}}, nil
}

// limitCores sets our own core limit, which jails inherit, to one byte: less
// than any core file, and the one value that also keeps the kernel from
// piping a core to a handler on the host (core(5)).
func limitCores() error {
	one := &unix.Rlimit{Cur: 1, Max: 1}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, one); err != nil {
		return fault.Wrap(err, fault.MissingFeature, "core limit", "it is below one byte and cannot be raised", "start cordond with a core limit of 1 or more (LimitCORE=1)")
	}
	return nil
}

func checkInit(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return fault.Wrap(err, fault.MissingFeature, "init", "cordon-init is not there", "install it or say where it is with -init")
	}
	owner, ok := st.Sys().(*syscall.Stat_t)
	if !st.Mode().IsRegular() || st.Mode()&0o111 == 0 || st.Mode()&0o022 != 0 || !ok || owner.Uid != 0 {
		return fault.New(fault.MissingFeature, "init", path+" is not a program that only root can change", "chown root, chmod 0755")
	}
	return nil
}

// Features returns the host facts that plans depend on.
func (h *Host) Features() jail.Features { return h.features }

// CgroupParentPath is the v2 group that holds all leases.
func (h *Host) CgroupParentPath() string { return h.groups.v2path("") }

// Strays lists the leases that have a cgroup or a volume here, in no order.
func (h *Host) Strays() ([]string, error) {
	seen := map[string]bool{}
	for _, dir := range h.groups.parents() {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("list cgroups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() {
				seen[e.Name()] = true
			}
		}
	}
	entries, err := os.ReadDir(filepath.Join(h.cfg.StateDir, "volumes"))
	if err != nil {
		return nil, fmt.Errorf("list volumes: %w", err)
	}
	for _, e := range entries {
		seen[strings.TrimSuffix(e.Name(), volumeSuffix)] = true
	}
	ids := make([]string, 0, len(seen))
	for id := range seen {
		ids = append(ids, id)
	}
	return ids, nil
}

// Sweep ends and removes what an earlier daemon left of a lease. PID 1 left
// when its socket closed; this makes sure of it.
func (h *Host) Sweep(ctx context.Context, leaseID string) (jail.CleanupReport, error) {
	g := &leaseGroup{h: h.groups, id: leaseID}
	err := errors.Join(g.kill(), g.waitEmpty(ctx), g.remove(ctx), removeVolume(h.cfg.StateDir, leaseID))
	report := h.lookAgain(leftovers{leaseID: leaseID})
	return report, err
}

// Close removes the empty parent groups, so that a stopped daemon leaves
// nothing. With leases alive it leaves them where they are.
func (h *Host) Close() error { return h.groups.removeParents() }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
