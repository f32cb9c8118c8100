package linux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cordon/internal/sys"
	"cordon/jail"
)

// Close ends every process of the lease and removes everything it had, goes
// on after errors, then looks again for each kind of thing. A second Close
// tries again what the first could not remove.
func (j *Jail) Close(ctx context.Context) (jail.CleanupReport, error) {
	j.closing.Lock()
	defer j.closing.Unlock()
	if j.report.Clean() {
		return j.report, nil
	}
	j.mu.Lock()
	j.closed = true // no new child from here on
	j.mu.Unlock()
	err := errors.Join(
		j.parts.group.kill(),
		j.dropSpare(),
		j.parts.group.waitEmpty(ctx),
		j.bury(ctx),
		j.parts.closeMounts(),
		j.closeVolume(),
		j.parts.group.remove(ctx),
	)
	_ = j.control.Close()
	look := leftovers{leaseID: j.plan.LeaseID, ids: &j.plan.IDs, loop: j.parts.volume.loop}
	if ino, ierr := fdInode(j.netns); ierr == nil {
		look.netns = ino
	}
	j.report = j.host.lookAgain(look)
	if j.report.Clean() {
		_ = j.netns.Close()
	}
	return j.report, err
}

// closeVolume takes the volume away from Usage and OpenArtifact.
func (j *Jail) closeVolume() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.parts.volume.close()
}

// dropSpare waits for goroutines that make a child, and ends what waits.
func (j *Jail) dropSpare() error {
	j.tasks.Wait()
	j.mu.Lock()
	e := j.spare.child
	j.spare.child = nil
	j.mu.Unlock()
	if e == nil {
		return nil
	}
	return e.abandon()
}

// bury waits for PID 1's end and reaps it: its maker is gone, so it is ours.
// It is idempotent; Close's lock, or being the one that knows j, guards it.
func (j *Jail) bury(ctx context.Context) error {
	if j.buried {
		return nil
	}
	if err := j.pidfd.Signal(unix.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	if err := j.pidfd.Wait(ctx); err != nil {
		return fmt.Errorf("wait for PID 1: %w", err)
	}
	if _, err := j.pidfd.Reap(); err != nil && !errors.Is(err, unix.ECHILD) {
		return err
	}
	j.buried = true
	return j.pidfd.Close()
}

// leftovers is what to look for after a lease: its id is in the names of all
// its things; the rest is known only to the daemon that made it.
type leftovers struct {
	leaseID string
	ids     *jail.IDMap
	netns   uint64 // inode, held open by the caller: the kernel reuses numbers
	loop    string // counts only while it still has this lease's volume behind it
}

// lookLimit is how long the look-again polls: dead namespaces, loop devices
// and shared memory go some 100 ms after their last process.
const lookLimit = 3 * time.Second

// lookAgain lists everything of the lease that is still there. It polls,
// since the kernel frees some of it a little later.
func (h *Host) lookAgain(l leftovers) jail.CleanupReport {
	var report jail.CleanupReport
	sys.PollUntil(lookLimit, 5*time.Millisecond, func() bool {
		report = jail.CleanupReport{Items: []jail.CleanupItem{
			h.lookProcesses(l), h.lookCgroups(l), lookMounts(l), lookLoops(l), h.lookFiles(l),
		}}
		return report.Clean()
	})
	return report
}

// lookProcesses goes through /proc once for three things that only processes
// keep alive: the lease's host ids, its cgroups, its network namespace.
func (h *Host) lookProcesses(l leftovers) jail.CleanupItem {
	it := jail.CleanupItem{Kind: "processes", Looked: "/proc/*/status ids, /proc/*/cgroup, /proc/*/ns/net"}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		it.Leftovers = append(it.Leftovers, "cannot look: "+err.Error())
		return it
	}
	group := "/" + h.cfg.CgroupParent + "/" + l.leaseID
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		if why := belongs(dir, group, l); why != "" {
			it.Leftovers = append(it.Leftovers, "pid "+e.Name()+" by "+why)
		}
	}
	return it
}

func belongs(dir, group string, l leftovers) string {
	if inGroup(dir, group) {
		return "cgroup"
	}
	if l.netns != 0 {
		if ino, err := inodeOf(filepath.Join(dir, "ns/net")); err == nil && ino == l.netns {
			return "network namespace"
		}
	}
	if l.ids != nil && runsAs(dir, *l.ids) {
		return "uid"
	}
	return ""
}

// inGroup compares whole paths: who may make cgroups somewhere else may give
// them any name.
func inGroup(dir, group string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup"))
	if err != nil {
		return false // it ended meanwhile
	}
	for line := range strings.Lines(string(b)) {
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) == 3 && (part[2] == group || strings.HasPrefix(part[2], group+"/")) {
			return true
		}
	}
	return false
}

func runsAs(dir string, ids jail.IDMap) bool {
	st, err := readStatus(dir)
	if err != nil {
		return false // it ended meanwhile
	}
	for f := range strings.FieldsSeq(st["Uid"]) {
		if n, err := strconv.ParseUint(f, 10, 32); err == nil && n >= uint64(ids.Base) && n < uint64(ids.Base)+uint64(ids.Size) {
			return true
		}
	}
	return false
}

func (h *Host) lookCgroups(l leftovers) jail.CleanupItem {
	it := jail.CleanupItem{Kind: "cgroups", Looked: strings.Join(h.groups.dirs(l.leaseID), " ")}
	for _, dir := range h.groups.dirs(l.leaseID) {
		if exists(dir) {
			it.Leftovers = append(it.Leftovers, dir)
		}
	}
	return it
}

// lookMounts reads the mount table of every mount namespace: a mount lives as
// long as any of them has it. It goes by the device's number, which is the
// kernel's; source and mount point are whatever the one who mounted wrote, and
// in a user namespace that is anybody.
func lookMounts(l leftovers) jail.CleanupItem {
	it := jail.CleanupItem{Kind: "mounts", Looked: "/proc/*/mountinfo by the volume's device"}
	if l.loop == "" || !loopBacks(l.loop, l.leaseID) {
		return it // no device, no mount of it
	}
	dev, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(l.loop), "dev"))
	if err != nil {
		return it
	}
	number := strings.TrimSpace(string(dev))
	tables, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		it.Leftovers = append(it.Leftovers, "cannot look: "+err.Error())
	}
	seen := map[string]bool{}
	for _, table := range tables {
		ns, err := os.Readlink(filepath.Join(filepath.Dir(table), "ns/mnt"))
		if err != nil || seen[ns] {
			continue
		}
		seen[ns] = true
		b, _ := os.ReadFile(table) // a process that ended holds no mount
		for line := range bytes.Lines(b) {
			if f := bytes.Fields(line); len(f) > 4 && string(f[2]) == number {
				it.Leftovers = append(it.Leftovers, "device "+number+" in "+ns)
			}
		}
	}
	return it
}

// loopBacks tells whether a loop device still serves a lease's volume; a free
// number goes to the next lease at once.
func loopBacks(dev, leaseID string) bool {
	b, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(dev), "loop/backing_file"))
	return err == nil && bytes.Contains(b, []byte("/"+leaseID+volumeSuffix))
}

func lookLoops(l leftovers) jail.CleanupItem {
	it := jail.CleanupItem{Kind: "loop_devices", Looked: "/sys/block/loop*/loop/backing_file"}
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		it.Leftovers = append(it.Leftovers, "cannot look: "+err.Error())
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte("/"+l.leaseID+volumeSuffix)) {
			it.Leftovers = append(it.Leftovers, strings.TrimSpace(f+" "+string(b)))
		}
	}
	return it
}

func (h *Host) lookFiles(l leftovers) jail.CleanupItem {
	path := volumePath(h.cfg.StateDir, l.leaseID)
	it := jail.CleanupItem{Kind: "files", Looked: path}
	if exists(path) {
		it.Leftovers = append(it.Leftovers, path)
	}
	return it
}
