package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"cordon/internal/fault"
	"cordon/internal/sys"
	"cordon/jail"
)

// A lease's groups, the same in every hierarchy:
//
//	<parent>/<lease>        memory, swap, cpu, all tasks
//	    init                PID 1 and children on their way to a command
//	    work                process_count
//	        <exec>          one command: usage, OOM, kill
const (
	initLeaf  = "init"
	workGroup = "work"
	cpuPeriod = 100_000 // microseconds, the kernel's default
)

// hierarchies is where this host keeps its cgroups. The tree for identity,
// kill, freeze and eBPF is always v2; limits are v2 where the controllers
// are, else v1 (D5).
type hierarchies struct {
	mode   string // v2 or hybrid
	parent string
	mount2 string   // of the v2 tree
	root1  string   // above the v1 hierarchies; hybrid only
	v1     []string // controllers in use; hybrid only

	held  *os.File // the parent in the v2 tree, locked for this daemon
	inode uint64   // and its number: the filter is attached to that one
}

func findHierarchies(parent string) (*hierarchies, error) {
	if parent == "" || strings.ContainsAny(parent, "/.") {
		return nil, fmt.Errorf("cgroup parent %q is not a plain name", parent)
	}
	h := &hierarchies{parent: parent}
	switch {
	case isCgroup2("/sys/fs/cgroup"):
		h.mode, h.mount2 = "v2", "/sys/fs/cgroup"
	case isCgroup2("/sys/fs/cgroup/unified"):
		h.mode, h.mount2, h.root1 = "hybrid", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"
		h.v1 = []string{"cpu", "cpuacct", "memory", "pids"}
	default:
		return nil, fault.New(fault.MissingFeature, "cgroup", "no cgroup v2 tree at /sys/fs/cgroup or /sys/fs/cgroup/unified", "mount one")
	}
	if err := h.checkControllers(); err != nil {
		return nil, err
	}
	for _, dir := range h.parents() {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make parent cgroup: %w", err)
		}
	}
	return h, h.hold()
}

// hold takes the parent for this daemon: a second one on the same group would
// end its leases as strays.
func (h *hierarchies) hold() (err error) {
	h.held, err = sys.LockDir(h.v2path(""))
	if errors.Is(err, sys.ErrLocked) {
		return fault.Wrap(err, fault.DaemonRunning, "cgroup "+h.parent, "another cordond has its leases there", "stop it, or use another -cgroup")
	}
	if err != nil {
		return fmt.Errorf("lock parent cgroup: %w", err)
	}
	h.inode, err = fdInode(h.held)
	return err
}

// checkParent refuses to go on when the parent is not the one that was taken:
// a group made anew has no filter.
func (h *hierarchies) checkParent() error {
	var st unix.Stat_t
	if err := unix.Stat(h.v2path(""), &st); err != nil || st.Ino != h.inode {
		return fault.New(fault.WrongState, "cgroup "+h.parent, "it was removed or replaced while cordond runs", "restart cordond, and find out who did it")
	}
	return nil
}

func isCgroup2(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC
}

// checkControllers refuses a host that lacks a controller every lease needs.
func (h *hierarchies) checkControllers() error {
	have := func(c string) bool { return exists(filepath.Join(h.root1, c, "cgroup.procs")) }
	need := h.v1
	if h.mode == "v2" {
		b, err := os.ReadFile(filepath.Join(h.mount2, "cgroup.controllers"))
		if err != nil {
			return fmt.Errorf("read controllers: %w", err)
		}
		list := strings.Fields(string(b))
		have = func(c string) bool { return slices.Contains(list, c) }
		need = []string{"cpu", "memory", "pids"}
	}
	for _, c := range need {
		if !have(c) {
			return fault.New(fault.MissingFeature, "cgroup controller "+c, "this host does not offer it", "enable it on the kernel command line or in systemd")
		}
	}
	return nil
}

// haveSwapLimit tells whether a lease's swap can be limited. Without the file
// no swap is accounted at all, which is only harmless on a host without swap.
func (h *hierarchies) haveSwapLimit() bool {
	if h.mode == "hybrid" {
		return exists(filepath.Join(h.root1, "memory", "memory.memsw.limit_in_bytes"))
	}
	return exists("/proc/swaps")
}

func (h *hierarchies) v2path(rel string) string { return filepath.Join(h.mount2, h.parent, rel) }

func (h *hierarchies) v1path(controller, rel string) string {
	return filepath.Join(h.root1, controller, h.parent, rel)
}

// parents lists the parent group in every hierarchy in use.
func (h *hierarchies) parents() []string { return h.dirs("") }

// dirs lists a group's directory in every hierarchy in use, v2 first.
func (h *hierarchies) dirs(rel string) []string {
	dirs := []string{h.v2path(rel)}
	for _, c := range h.v1 {
		dirs = append(dirs, h.v1path(c, rel))
	}
	return dirs
}

func (h *hierarchies) removeParents() error {
	defer h.held.Close()
	var errs []error
	for _, dir := range h.parents() {
		err := os.Remove(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
			errs = append(errs, fmt.Errorf("remove parent cgroup: %w", err))
		}
	}
	return errors.Join(errs...)
}

// subsystems is the v1 hierarchy list that containerd/cgroups works on.
func (h *hierarchies) subsystems() ([]cgroup1.Subsystem, error) {
	return []cgroup1.Subsystem{
		cgroup1.NewCpu(h.root1), cgroup1.NewCpuacct(h.root1),
		cgroup1.NewMemory(h.root1), cgroup1.NewPids(h.root1),
	}, nil
}

// leaseGroup is one lease's groups.
type leaseGroup struct {
	h  *hierarchies
	id string
}

// newLease makes a lease's groups with their limits. On error none is left.
func (h *hierarchies) newLease(p *jail.Plan) (*leaseGroup, error) {
	g := &leaseGroup{h: h, id: p.LeaseID}
	if err := h.checkParent(); err != nil {
		return nil, err
	}
	if exists(h.v2path(p.LeaseID)) {
		return nil, fmt.Errorf("make cgroup %s: it exists", p.LeaseID)
	}
	err := errors.Join(
		h.create(p.LeaseID, leaseLimits(p)),
		h.create(filepath.Join(p.LeaseID, initLeaf), limits{}),
		h.create(filepath.Join(p.LeaseID, workGroup), limits{pids: p.Limits.Pids}),
	)
	if err != nil {
		return nil, errors.Join(err, g.remove(context.Background()))
	}
	return g, nil
}

// limits of one group; zero means none.
type limits struct {
	memory, cpuQuota, pids int64
	swap                   bool // limit swap to zero
}

func leaseLimits(p *jail.Plan) limits {
	return limits{
		memory:   p.Limits.MemoryBytes &^ int64(os.Getpagesize()-1), // the kernel counts pages
		cpuQuota: p.Limits.CPUMilli * cpuPeriod / 1000,
		pids:     p.LeaseTasks,
		swap:     p.SwapLimit,
	}
}

func (h *hierarchies) create(rel string, l limits) error {
	res2 := &cgroup2.Resources{}
	if h.mode == "v2" {
		res2 = l.v2()
	}
	group := filepath.Join("/", h.parent, rel)
	if _, err := cgroup2.NewManager(h.mount2, group, res2); err != nil {
		return fmt.Errorf("make cgroup %s: %w", rel, err)
	}
	if h.mode == "v2" {
		return nil
	}
	if _, err := cgroup1.New(cgroup1.StaticPath(group), l.v1(), cgroup1.WithHierarchy(h.subsystems)); err != nil {
		return fmt.Errorf("make v1 cgroup %s: %w", rel, err)
	}
	return nil
}

// v2 names every controller, so that each group counts usage of its own.
func (l limits) v2() *cgroup2.Resources {
	r := &cgroup2.Resources{CPU: &cgroup2.CPU{}, Memory: &cgroup2.Memory{}, Pids: &cgroup2.Pids{}}
	if l.memory > 0 {
		r.Memory.Max = &l.memory
	}
	if l.swap {
		r.Memory.Swap = new(int64)
	}
	if l.cpuQuota > 0 {
		period := uint64(cpuPeriod)
		r.CPU.Max = cgroup2.NewCPUMax(&l.cpuQuota, &period)
	}
	if l.pids > 0 {
		r.Pids.Max = l.pids
	}
	return r
}

func (l limits) v1() *specs.LinuxResources {
	r := &specs.LinuxResources{}
	if l.memory > 0 {
		r.Memory = &specs.LinuxMemory{Limit: &l.memory}
		if l.swap {
			r.Memory.Swap = &l.memory // memory and swap together
		}
	}
	if l.cpuQuota > 0 {
		period := uint64(cpuPeriod)
		r.CPU = &specs.LinuxCPU{Quota: &l.cpuQuota, Period: &period}
	}
	if l.pids > 0 {
		r.Pids = &specs.LinuxPids{Limit: &l.pids}
	}
	return r
}

// inode is the v2 group's id, the same as bpf_get_current_cgroup_id.
func (g *leaseGroup) inode() (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(g.h.v2path(g.id), &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: g.h.v2path(g.id), Err: err}
	}
	return st.Ino, nil
}

// kill ends every process below the group, descendants that fork meanwhile
// included (cgroup.kill, Linux 5.14).
func (g *leaseGroup) kill() error { return killGroup(g.h.v2path(g.id)) }

func killGroup(dir string) error {
	err := os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("kill cgroup: %w", err)
	}
	return nil
}

func (g *leaseGroup) freeze(on bool) error {
	val := "0"
	if on {
		val = "1"
	}
	if err := os.WriteFile(filepath.Join(g.h.v2path(g.id), "cgroup.freeze"), []byte(val), 0); err != nil {
		return fmt.Errorf("freeze cgroup: %w", err)
	}
	return nil
}

func (g *leaseGroup) waitEvent(ctx context.Context, dir, key, want string) error {
	file := filepath.Join(dir, "cgroup.events")
	for {
		got, err := flatKey(file, key)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return nil // the group is gone, and with it every process
		}
		if err != nil {
			return err
		}
		if got == want {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for cgroup %s %s=%s: %w", g.id, key, want, context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
}

func (g *leaseGroup) waitFrozen(ctx context.Context) error {
	return g.waitEvent(ctx, g.h.v2path(g.id), "frozen", "1")
}

func (g *leaseGroup) waitEmpty(ctx context.Context) error {
	return g.waitEvent(ctx, g.h.v2path(g.id), "populated", "0")
}

// remove deletes the lease's directories, deepest first. A group whose last
// process is still on its way out answers EBUSY for a moment.
func (g *leaseGroup) remove(ctx context.Context) error {
	var errs []error
	for _, dir := range g.h.dirs(g.id) {
		errs = append(errs, removeTree(ctx, dir))
	}
	return errors.Join(errs...)
}

func removeTree(ctx context.Context, dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if e.IsDir() {
			errs = append(errs, removeTree(ctx, filepath.Join(dir, e.Name())))
		}
	}
	limit := 2 * time.Second
	if d, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(d))
	}
	sys.PollUntil(limit, 2*time.Millisecond, func() bool {
		err = os.Remove(dir)
		return err == nil || errors.Is(err, os.ErrNotExist) || !errors.Is(err, unix.EBUSY)
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, fmt.Errorf("remove cgroup: %w", err))
	}
	return errors.Join(errs...)
}

// flatKey reads one "key value" line of a cgroup file.
func flatKey(file, key string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, key+" "); ok {
			return strings.TrimSpace(v), nil
		}
	}
	return "", fmt.Errorf("read %s: no key %s", file, key)
}

func flatUint(file, key string) uint64 {
	s, err := flatKey(file, key)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(s, 10, 64)
	return n
}

func fileUint(file string) uint64 {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return n
}
