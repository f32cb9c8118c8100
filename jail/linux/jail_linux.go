package linux

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cordon/internal/cleanup"
	"cordon/internal/fault"
	"cordon/internal/sys"
	"cordon/jail"
	"cordon/jail/initproc"
	"cordon/supervisor"
)

// Jail is one live sandbox. Its methods are safe for concurrent use.
type Jail struct {
	host     *Host
	plan     *jail.Plan
	parts    *parts
	cgroupID uint64
	netns    *os.File // the network namespace; open, so that its number stays its own
	pid      int      // of PID 1, on the host; valid while pidfd is not reaped
	pidfd    *sys.Pidfd
	control  *os.File
	readBack jail.ReadBack
	hello    chan struct{} // closed when PID 1 has spoken
	done     chan struct{} // closed when PID 1 has ended

	mu    sync.Mutex       // guards what follows, up to tasks
	execs map[string]*Exec // those PID 1 still owes a word about
	// What leaves that are gone had counted; no ancestor has it.
	refused, oomKills uint64
	closed            bool
	spare             spare
	children          int // that were ever named
	room              int // tasks of parked children, in the v2 tree

	tasks sync.WaitGroup // goroutines that make spares

	closing sync.Mutex // held by Close; before mu
	buried  bool       // PID 1 is reaped
	report  jail.CleanupReport
}

// makeTimeout bounds the making of a jail, whatever the caller's patience.
const makeTimeout = 20 * time.Second

// Make builds the plan's jail and reads it back. On error nothing is left.
func (h *Host) Make(ctx context.Context, p *jail.Plan) (_ supervisor.Jail, err error) {
	ctx, cancel := context.WithTimeout(ctx, makeTimeout)
	defer cancel()
	var undo cleanup.Stack
	defer func() {
		if err != nil {
			err = errors.Join(err, undo.Run())
		}
	}()
	pt := &parts{}
	if pt.group, err = h.groups.newLease(p); err != nil {
		return nil, err
	}
	undo.Push(func() error { return pt.group.remove(context.Background()) })
	if pt.volume, err = newVolume(h.cfg.StateDir, p); err != nil {
		return nil, err
	}
	undo.Push(pt.volume.close)
	undo.Push(pt.closeMounts)
	if err := h.openMounts(p, pt); err != nil {
		return nil, err
	}
	j, err := h.start(ctx, p, pt, &undo)
	if err != nil {
		return nil, err
	}
	// The jail holds its mounts now; ours would only keep them busy.
	_ = pt.closeMounts()
	// The first child is on its way while the rest is read back; not before
	// the limits are, since in the v2 tree room is made for it.
	r := &reader{}
	j.readLimits(r)
	undo.Push(j.stopSpares)
	j.wantSpare()
	if j.readBack, err = j.read(r); err != nil {
		return nil, err
	}
	undo.Disarm()
	return j, nil
}

// start runs the maker and meets PID 1.
func (h *Host) start(ctx context.Context, p *jail.Plan, pt *parts, undo *cleanup.Stack) (*Jail, error) {
	ours, theirs, err := sys.SeqPair("init")
	if err != nil {
		return nil, err
	}
	undo.Push(ours.Close)
	undo.Push(func() error { return errors.Join(pt.group.kill(), pt.group.waitEmpty(context.Background())) })
	defer theirs.Close()
	pidfd, pid, err := h.runMaker(ctx, p, pt, theirs)
	if err != nil {
		return nil, err
	}
	j := &Jail{
		host: h, plan: p, parts: pt, pid: pid, pidfd: pidfd, control: ours,
		hello: make(chan struct{}), done: make(chan struct{}), execs: map[string]*Exec{},
	}
	undo.Push(func() error { return j.bury(context.Background()) })
	if j.cgroupID, err = pt.group.inode(); err != nil {
		return nil, err
	}
	if j.netns, err = os.Open(fmt.Sprintf("/proc/%d/ns/net", pid)); err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	undo.Push(j.netns.Close)
	_ = theirs.Close() // so that PID 1's end is the only one, and its end our end of file
	go j.listen()
	select {
	case <-j.hello:
		return j, nil
	case <-j.done:
		return nil, errors.New("start jail: PID 1 ended before it spoke")
	case <-ctx.Done():
		return nil, fmt.Errorf("start jail: PID 1 said nothing: %w", context.Cause(ctx))
	}
}

// listen takes PID 1's words until it ends. They are the tenant's: each is
// small, about an exec we started, and heard at most once.
func (j *Jail) listen() {
	defer close(j.done)
	buf := make([]byte, initproc.MaxPacket)
	heard := false
	for said := 1; ; said++ {
		n, _, err := sys.RecvFiles(j.control, buf, 0)
		if err != nil || n == 0 || said > j.mayBeSaid() {
			break
		}
		var m initproc.FromInit
		if json.Unmarshal(buf[:n], &m) != nil {
			continue
		}
		if m.Hello && !heard {
			heard = true
			close(j.hello)
		}
		j.hear(m)
	}
	// Without its socket PID 1 is of no use; make sure that it ends.
	_ = j.pidfd.Signal(unix.SIGKILL)
	_ = j.pidfd.Wait(context.Background())
}

// mayBeSaid is how many messages an honest PID 1 can have sent: a greeting,
// and two about each child. One that floods would have the daemon work beyond
// the lease's cpu limit, so its jail ends.
func (j *Jail) mayBeSaid() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return 8 + 4*j.children
}

func (j *Jail) hear(m initproc.FromInit) {
	id := m.Spawned
	switch {
	case m.Exited != nil:
		id = m.Exited.ID
	case m.Failed != nil:
		id = m.Failed.ID
	}
	j.mu.Lock()
	e := j.execs[id]
	j.mu.Unlock()
	if e == nil {
		return
	}
	switch {
	case m.Exited != nil:
		e.exited.set(unix.WaitStatus(m.Exited.Status))
	case m.Failed != nil:
		e.refused.set(*m.Failed)
	}
}

// CgroupID is the id of the lease's group in the v2 tree.
func (j *Jail) CgroupID() uint64 { return j.cgroupID }

// ReadBack is what the kernel said about the jail when it was made.
func (j *Jail) ReadBack() jail.ReadBack { return j.readBack }

// Done is closed when PID 1 has ended.
func (j *Jail) Done() <-chan struct{} { return j.done }

// Freeze stops every process of the lease and returns when all have stopped.
func (j *Jail) Freeze(ctx context.Context) error {
	if err := j.parts.group.freeze(true); err != nil {
		return err
	}
	if err := j.parts.group.waitFrozen(ctx); err != nil {
		return errors.Join(err, j.parts.group.freeze(false))
	}
	return nil
}

// Thaw lets the processes go on.
func (j *Jail) Thaw() error { return j.parts.group.freeze(false) }

// Usage is what the lease consumed so far.
func (j *Jail) Usage() (jail.Usage, error) {
	u := j.host.groups.usage(j.plan.LeaseID)
	j.mu.Lock()
	defer j.mu.Unlock()
	u.PidsRefused = j.refused + j.host.groups.refused(filepath.Join(j.plan.LeaseID, workGroup))
	u.OOMKills = j.oomKills + j.host.groups.oomKills(filepath.Join(j.plan.LeaseID, workGroup))
	if !j.closed {
		u.VolumeBytes, u.VolumeInodes = j.parts.volume.used()
	}
	return u, nil
}

// OpenArtifact opens a regular file of the workspace beneath its root. No
// link is followed, no other file system entered, and a FIFO or device does
// not block or act, since nothing but a regular file is opened for reading.
func (j *Jail) OpenArtifact(path string) (*os.File, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return nil, fault.New(fault.WrongState, "lease", "the workspace is gone", "export before release")
	}
	root, err := sys.OpenBeneath(j.parts.volume.mnt, "workspace", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return openRegular(root, path)
}

func openRegular(root *os.File, path string) (*os.File, error) {
	probe, err := sys.OpenBeneath(root, path, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return nil, artifactFault(err, path)
	}
	defer probe.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(probe.Fd()), &st); err != nil {
		return nil, os.NewSyscallError("fstat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fault.New(fault.NotRegular, path, "it is not a regular file", "write a regular file; links, devices and sockets do not leave")
	}
	f, err := sys.OpenBeneath(root, path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK)
	if err != nil {
		return nil, artifactFault(err, path)
	}
	var now unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &now); err != nil || now.Ino != st.Ino || now.Mode&unix.S_IFMT != unix.S_IFREG {
		_ = f.Close()
		return nil, fault.New(fault.NotRegular, path, "it changed while it was opened", "export when nothing runs")
	}
	return f, nil
}

func artifactFault(err error, path string) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return fault.Wrap(err, fault.NotFound, path, "the run left no such file", "write it below /workspace before the export")
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return fault.Wrap(err, fault.NotRegular, path, "a link or a mount is on the way", "write a regular file; links do not leave")
	case errors.Is(err, unix.EAGAIN):
		return fault.Wrap(err, fault.NotRegular, path, "the run holds a lease on it", "export when nothing runs")
	default:
		return fmt.Errorf("open artifact: %w", err)
	}
}

func fdInode(f *os.File) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return 0, os.NewSyscallError("fstat", err)
	}
	return st.Ino, nil
}

func inodeOf(path string) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return st.Ino, nil
}
