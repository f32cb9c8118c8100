package linux

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"cordon/jail"
)

// reader collects checks: what the plan wants beside what the kernel says.
type reader struct {
	checks []jail.Check
}

func (r *reader) want(name, want, got string) {
	r.checks = append(r.checks, jail.Check{Name: name, Want: want, Got: got, OK: want == got})
}

// wantFile compares a kernel file's whole content.
func (r *reader) wantFile(name, path, want string) {
	b, err := os.ReadFile(path)
	got := strings.Join(strings.Fields(string(b)), " ")
	if err != nil {
		got = err.Error()
	}
	r.want(name, want, got)
}

// read asks the kernel for everything about the parked jail that the plan
// decided. A difference is not an error here; the supervisor refuses on it.
// r has the limits already.
func (j *Jail) read(r *reader) (jail.ReadBack, error) {
	dir := fmt.Sprintf("/proc/%d", j.pid)
	st, err := readStatus(dir)
	if err != nil {
		return jail.ReadBack{}, err
	}
	j.readInit(r, dir, st)
	j.readNamespaces(r, dir)
	if err := j.readMounts(r, dir); err != nil {
		return jail.ReadBack{}, err
	}
	j.readNetwork(r, dir)
	if j.pidfd.Ended() {
		return jail.ReadBack{}, fmt.Errorf("read back: PID 1 ended meanwhile")
	}
	return jail.ReadBack{Checks: r.checks}, nil
}

func (j *Jail) readLimits(r *reader) {
	h, id, l := j.host.groups, j.plan.LeaseID, leaseLimits(j.plan)
	quota, period := strconv.FormatInt(l.cpuQuota, 10), strconv.Itoa(cpuPeriod)
	memory, pids := strconv.FormatInt(l.memory, 10), strconv.FormatInt(j.plan.Limits.Pids, 10)
	tasks := strconv.FormatInt(j.plan.LeaseTasks, 10)
	work := filepath.Join(id, workGroup)
	if h.mode == "v2" {
		r.wantFile("limit memory", filepath.Join(h.v2path(id), "memory.max"), memory)
		r.wantFile("limit swap", filepath.Join(h.v2path(id), "memory.swap.max"), "0")
		r.wantFile("limit cpu", filepath.Join(h.v2path(id), "cpu.max"), quota+" "+period)
		r.wantFile("limit tasks", filepath.Join(h.v2path(id), "pids.max"), tasks)
		r.wantFile("limit process_count", filepath.Join(h.v2path(work), "pids.max"), pids)
		return
	}
	r.wantFile("limit memory", filepath.Join(h.v1path("memory", id), "memory.limit_in_bytes"), memory)
	if j.plan.SwapLimit {
		r.wantFile("limit memory+swap", filepath.Join(h.v1path("memory", id), "memory.memsw.limit_in_bytes"), memory)
	}
	r.wantFile("limit cpu", filepath.Join(h.v1path("cpu", id), "cpu.cfs_quota_us"), quota)
	r.wantFile("limit cpu period", filepath.Join(h.v1path("cpu", id), "cpu.cfs_period_us"), period)
	r.wantFile("limit tasks", filepath.Join(h.v1path("pids", id), "pids.max"), tasks)
	r.wantFile("limit process_count", filepath.Join(h.v1path("pids", work), "pids.max"), pids)
}

func (j *Jail) readInit(r *reader, dir string, st map[string]string) {
	base := strconv.FormatUint(uint64(j.plan.IDs.Base), 10)
	four := strings.Join([]string{base, base, base, base}, " ")
	caps := capMask(j.plan.InitCaps)
	none := capMask(nil)
	r.want("init uid", four, strings.Join(strings.Fields(st["Uid"]), " "))
	r.want("init gid", four, strings.Join(strings.Fields(st["Gid"]), " "))
	for _, c := range []struct{ key, want string }{
		{"CapInh", none},
		{"CapPrm", caps},
		{"CapEff", caps},
		{"CapBnd", caps},
		{"CapAmb", none},
		{"NoNewPrivs", "1"},
		{"Seccomp", "2"},
		{"Seccomp_filters", "1"},
	} {
		r.want("init "+c.key, c.want, st[c.key])
	}
	r.wantFile("init oom_score_adj", dir+"/oom_score_adj", strconv.Itoa(initOOMScore))
	idmap := fmt.Sprintf("0 %d %d", j.plan.IDs.Base, j.plan.IDs.Size)
	r.wantFile("uid_map", dir+"/uid_map", idmap)
	r.wantFile("gid_map", dir+"/gid_map", idmap)
	j.readMembership(r, "init cgroup", dir, filepath.Join(j.plan.LeaseID, initLeaf))
}

// readMembership checks that a process is where it must be in every
// hierarchy: libcontainer ignores errors on a hybrid host's v2 tree, and a
// child joins by itself.
func (j *Jail) readMembership(r *reader, name, dir, rel string) {
	want := filepath.Join("/", j.host.cfg.CgroupParent, rel)
	b, err := os.ReadFile(dir + "/cgroup")
	if err != nil {
		r.want(name, want, err.Error())
		return
	}
	for line := range strings.Lines(string(b)) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) != 3 {
			continue
		}
		switch {
		case part[0] == "0":
			r.want(name+" v2", want, part[2])
		case slices.Contains(j.host.groups.v1, part[1]):
			r.want(name+" "+part[1], want, part[2])
		}
	}
}

func (j *Jail) readNamespaces(r *reader, dir string) {
	files := map[string]string{"mount": "mnt", "network": "net"}
	for _, n := range j.plan.Namespaces {
		f := n
		if short, ok := files[n]; ok {
			f = short
		}
		ours, err1 := inodeOf("/proc/self/ns/" + f)
		theirs, err2 := inodeOf(dir + "/ns/" + f)
		got := "own"
		if err1 != nil || err2 != nil || ours == theirs {
			got = "the host's"
		}
		r.want("namespace "+n, "own", got)
	}
}

// readMounts compares every mount of the plan with the jail's own table, and
// demands that nothing else is mounted but what libcontainer adds for
// devices and masks.
func (j *Jail) readMounts(r *reader, dir string) error {
	b, err := os.ReadFile(dir + "/mountinfo")
	if err != nil {
		return fmt.Errorf("read back mounts: %w", err)
	}
	have := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 6 {
			have[f[4]] = f[5]
			if f[6] != "-" {
				r.want("mount propagation "+f[4], "private", f[6])
			}
		}
	}
	for _, m := range j.plan.Mounts {
		opts := strings.Split(have[m.Target], ",")
		got := []string{}
		for _, flag := range m.Flags {
			if flag == "strictatime" || slices.Contains(opts, flag) {
				got = append(got, flag)
			}
		}
		if _, ok := have[m.Target]; !ok {
			got = []string{"not mounted"}
		}
		r.want("mount "+m.Target, strings.Join(m.Flags, ","), strings.Join(got, ","))
		delete(have, m.Target)
	}
	r.want("mounts beyond the plan", "", strings.Join(j.unplanned(have), " "))
	return nil
}

func (j *Jail) unplanned(have map[string]string) []string {
	var extra []string
	for target := range have {
		dev, isDev := strings.CutPrefix(target, "/dev/")
		switch {
		case isDev && slices.Contains(j.plan.Devices, dev):
		case slices.Contains(j.plan.MaskPaths, target):
		case slices.Contains(j.plan.ReadonlyPaths, target):
		default:
			extra = append(extra, target)
		}
	}
	slices.Sort(extra)
	return extra
}

// readNetwork looks into the jail's network namespace: one interface, the
// loopback, up; no route leads out of it.
func (j *Jail) readNetwork(r *reader, dir string) {
	got, err := interfaces(dir + "/ns/net")
	if err != nil {
		got = err.Error()
	}
	r.want("network interfaces", "lo up", got)
}

func interfaces(nsPath string) (string, error) {
	ns, err := netns.GetFromPath(nsPath)
	if err != nil {
		return "", fmt.Errorf("open network namespace: %w", err)
	}
	defer ns.Close()
	nl, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return "", fmt.Errorf("netlink: %w", err)
	}
	defer nl.Close()
	links, err := nl.LinkList()
	if err != nil {
		return "", fmt.Errorf("list interfaces: %w", err)
	}
	var names []string
	for _, l := range links {
		state := " down"
		if l.Attrs().RawFlags&unix.IFF_UP != 0 {
			state = " up"
		}
		names = append(names, l.Attrs().Name+state)
	}
	return strings.Join(names, ", "), nil
}

// readExec compares a child that has dropped everything and waits for its go.
func (j *Jail) readExec(pid int, execID string) ([]jail.Check, error) {
	r := &reader{}
	dir := fmt.Sprintf("/proc/%d", pid)
	st, err := readStatus(dir)
	if err != nil {
		return nil, err
	}
	id := strconv.FormatUint(uint64(j.plan.IDs.Base)+uint64(j.plan.UID), 10)
	four := strings.Join([]string{id, id, id, id}, " ")
	r.want("exec uid", four, strings.Join(strings.Fields(st["Uid"]), " "))
	r.want("exec gid", four, strings.Join(strings.Fields(st["Gid"]), " "))
	r.want("exec groups", "", strings.TrimSpace(st["Groups"]))
	none := capMask(nil)
	for _, c := range []struct{ key, want string }{
		{"CapInh", none},
		{"CapPrm", none},
		{"CapEff", none},
		{"CapAmb", none},
		// Nothing can be gained from the bounding set: no_new_privs, and no
		// file with capabilities or setuid bits. Emptying it takes SETPCAP,
		// which PID 1 does not have.
		{"CapBnd", capMask(j.plan.InitCaps)},
		{"NoNewPrivs", "1"},
		{"Seccomp", "2"},
		{"Seccomp_filters", "2"},
		{"SigBlk", noSignals},
		{"SigIgn", noSignals},
	} {
		r.want("exec "+c.key, c.want, st[c.key])
	}
	j.readMembership(r, "exec cgroup", dir, filepath.Join(j.plan.LeaseID, workGroup, execID))
	j.readRlimits(r, dir)
	readDescriptors(r, dir)
	return r.checks, nil
}

func (j *Jail) readRlimits(r *reader, dir string) {
	b, err := os.ReadFile(dir + "/limits")
	for _, l := range j.plan.Rlimits {
		got := "not listed"
		if err != nil {
			got = err.Error()
		}
		for line := range strings.Lines(string(b)) {
			if rest, ok := strings.CutPrefix(line, rlimitTitle(l.Name)); ok && len(strings.Fields(rest)) >= 2 {
				got = strings.Join(strings.Fields(rest)[:2], " ")
			}
		}
		r.want("exec rlimit "+l.Name, fmt.Sprintf("%d %d", l.Value, l.Value), got)
	}
}

// rlimitTitle is a limit's line in /proc/<pid>/limits.
func rlimitTitle(name string) string {
	titles := map[string]string{
		"nofile": "Max open files", "core": "Max core file size", "memlock": "Max locked memory",
		"msgqueue": "Max msgqueue size", "sigpending": "Max pending signals",
		"nice": "Max nice priority", "rtprio": "Max realtime priority",
	}
	if t, ok := titles[name]; ok {
		return t + " "
	}
	return "no such limit"
}

// readDescriptors demands that nothing but the three standard streams
// survives execve.
func readDescriptors(r *reader, dir string) {
	entries, err := os.ReadDir(dir + "/fdinfo")
	if err != nil {
		r.want("exec descriptors", "0 1 2", err.Error())
		return
	}
	var kept []string
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, "fdinfo", e.Name()))
		if err != nil || !closedOnExec(string(b)) {
			kept = append(kept, e.Name())
		}
	}
	slices.Sort(kept)
	r.want("exec descriptors", "0 1 2", strings.Join(kept, " "))
}

func closedOnExec(fdinfo string) bool {
	for line := range strings.Lines(fdinfo) {
		if v, ok := strings.CutPrefix(line, "flags:"); ok {
			flags, err := strconv.ParseUint(strings.TrimSpace(v), 8, 64)
			return err == nil && flags&unix.O_CLOEXEC != 0
		}
	}
	return false
}

// readStatus reads /proc/<pid>/status of the main thread as key and value.
func readStatus(dir string) (map[string]string, error) {
	b, err := os.ReadFile(dir + "/status")
	if err != nil {
		return nil, fmt.Errorf("read back: %w", err)
	}
	st := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok {
			st[k] = strings.TrimSpace(v)
		}
	}
	return st, nil
}

// noSignals is an empty signal set as /proc prints it.
const noSignals = "0000000000000000"

// capMask prints a capability set as /proc does.
func capMask(names []string) string {
	bits := map[string]uint{"CAP_KILL": unix.CAP_KILL, "CAP_SETGID": unix.CAP_SETGID, "CAP_SETUID": unix.CAP_SETUID}
	var mask uint64
	for _, n := range names {
		bit, ok := bits[n]
		if !ok {
			return "unknown capability " + n
		}
		mask |= 1 << bit
	}
	return fmt.Sprintf("%016x", mask)
}

func rlimitNumber(name string) (int, error) {
	numbers := map[string]int{
		"nofile": unix.RLIMIT_NOFILE, "core": unix.RLIMIT_CORE, "memlock": unix.RLIMIT_MEMLOCK,
		"msgqueue": unix.RLIMIT_MSGQUEUE, "sigpending": unix.RLIMIT_SIGPENDING, "nice": unix.RLIMIT_NICE, "rtprio": unix.RLIMIT_RTPRIO,
	}
	n, ok := numbers[name]
	if !ok {
		return 0, fmt.Errorf("no resource limit %q", name)
	}
	return n, nil
}
