package linux

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"cordon/internal/sys"
	"cordon/jail"
)

// A jail is made by a process of its own, the maker: cordond re-executed,
// born in the lease's v2 group and in a private mount namespace. It puts
// itself into the v1 groups, attaches the detached mounts it was handed, lets
// libcontainer make the container, sends back a pidfd of PID 1, and ends. So
// no mount of a lease is ever visible in the host's namespace, no process is
// moved between cgroups, and libcontainer's threads cannot pin a dead jail's
// mounts in cordond (jail-making facts: docs/architecture.md).
//
// Descriptors a maker is started with, after the three standard streams.
const (
	makerReplyFD   = 3 // SOCK_SEQPACKET: one message with the pidfd
	makerControlFD = 4 // PID 1's control socket
	makerImageFD   = 5 // detached mounts
	makerVolumeFD  = 6
	makerInitFD    = 7
	makerUserFD    = 8 // the jail's user namespace
	makerInputsFD  = 9 // only when the plan has inputs
)

// makerOrder is what a maker reads from its standard input.
type makerOrder struct {
	Plan   *jail.Plan `json:"plan"`
	Mount2 string     `json:"mount2"` // of the v2 tree
	Tasks  []string   `json:"tasks"`  // v1 files to join, "0" is written
}

// makerReply is the maker's one message.
type makerReply struct {
	PID int `json:"pid"`
}

// parts are the pieces of a jail that exist before its processes.
type parts struct {
	group  *leaseGroup
	volume *volume
	image  *os.File // detached mounts
	init   *os.File
	inputs *os.File // nil without inputs
	userns *os.File // the jail's user namespace
}

func (p *parts) closeMounts() error {
	sys.CloseAll(p.image, p.init, p.inputs, p.userns)
	p.image, p.init, p.inputs, p.userns = nil, nil, nil, nil
	return nil
}

// openMounts makes the jail's user namespace and clones what the plan shows
// read-only as detached mounts.
func (h *Host) openMounts(p *jail.Plan, out *parts) error {
	const ro = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	ns, err := idmapNamespace(p.Image.IDBase, p.IDs)
	if err != nil {
		return err
	}
	defer ns.Close()
	if out.userns, err = leaseNamespace(p.IDs); err != nil {
		return err
	}
	if out.image, err = sys.OpenTree(p.Image.Path); err != nil {
		return err
	}
	if err := sys.SetMountAttr(out.image, ro, ns); err != nil {
		return err
	}
	if out.init, err = sys.OpenTree(h.cfg.InitPath); err != nil {
		return err
	}
	if err := sys.SetMountAttr(out.init, ro, nil); err != nil {
		return err
	}
	if p.InputsDir == "" {
		return nil
	}
	if out.inputs, err = sys.OpenTree(p.InputsDir); err != nil {
		return err
	}
	return sys.SetMountAttr(out.inputs, ro|unix.MOUNT_ATTR_NOEXEC, nil)
}

// runMaker starts a maker and returns PID 1's handle. control is PID 1's end
// of its socket and is borrowed.
func (h *Host) runMaker(ctx context.Context, p *jail.Plan, pt *parts, control *os.File) (*sys.Pidfd, int, error) {
	reply, theirs, err := sys.SeqPair("maker")
	if err != nil {
		return nil, 0, err
	}
	defer sys.CloseAll(reply, theirs)
	leaf, err := os.OpenFile(h.groups.v2path(filepath.Join(p.LeaseID, initLeaf)), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("open cgroup: %w", err)
	}
	defer leaf.Close()
	order, err := json.Marshal(makerOrder{Plan: p, Mount2: h.groups.mount2, Tasks: h.groups.taskFiles(filepath.Join(p.LeaseID, initLeaf))})
	if err != nil {
		return nil, 0, fmt.Errorf("encode maker order: %w", err)
	}
	var complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, h.cfg.Maker[0], h.cfg.Maker[1:]...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdin = bytes.NewReader(order)
	cmd.Stderr = &complaint
	cmd.ExtraFiles = []*os.File{theirs, control, pt.image, pt.volume.mnt, pt.init, pt.userns}
	if pt.inputs != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, pt.inputs)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWNS,
		UseCgroupFD: true,
		CgroupFD:    int(leaf.Fd()),
	}
	if err := cmd.Run(); err != nil {
		return nil, 0, fmt.Errorf("make container: %w: %s", err, lastLines(complaint.String()))
	}
	return readReply(reply)
}

func readReply(reply *os.File) (*sys.Pidfd, int, error) {
	buf := make([]byte, 256)
	n, files, err := sys.RecvFiles(reply, buf, 1)
	if err != nil {
		return nil, 0, fmt.Errorf("maker reply: %w", err)
	}
	var r makerReply
	if err := json.Unmarshal(buf[:n], &r); err != nil || len(files) != 1 {
		sys.CloseAll(files...)
		return nil, 0, fmt.Errorf("maker reply: %q with %d descriptors", buf[:n], len(files))
	}
	pidfd, err := sys.NewPidfd(files[0])
	return pidfd, r.PID, err
}

// taskFiles are the files a thread writes "0" to, to join a group in the v1
// hierarchies; one thread joining itself does not wait for an RCU grace
// period, moving a process does (8-18 ms after idle).
func (h *hierarchies) taskFiles(rel string) []string {
	var files []string
	for _, c := range h.v1 {
		files = append(files, filepath.Join(h.v1path(c, rel), "tasks"))
	}
	return files
}

// joinFiles opens what a parked child writes "0" to, at once and late. Files,
// never directories: a cgroup directory leads to the host's files by "..".
//
// Late is v1's pids, so that a child that waits does not count as one of the
// run's processes. In the v2 tree a process is in one group for everything;
// there makeRoom keeps the count right.
func (h *hierarchies) joinFiles(rel string) (early, late []*os.File, err error) {
	open := func(path string, to *[]*os.File) {
		f, oerr := os.OpenFile(path, os.O_WRONLY, 0)
		if oerr != nil {
			err = errors.Join(err, fmt.Errorf("open cgroup: %w", oerr))
			return
		}
		*to = append(*to, f)
	}
	open(filepath.Join(h.v2path(rel), "cgroup.procs"), &early)
	for _, c := range h.v1 {
		to := &early
		if c == "pids" {
			to = &late
		}
		open(filepath.Join(h.v1path(c, rel), "tasks"), to)
	}
	if err != nil {
		sys.CloseAll(append(early, late...)...)
		return nil, nil, err
	}
	return early, late, nil
}

// lastLines keeps the end of what a process complained about.
func lastLines(s string) string {
	s = strings.TrimSpace(s)
	if len(s) > 2000 {
		s = "..." + s[len(s)-2000:]
	}
	return strings.ReplaceAll(s, "\n", "; ")
}
