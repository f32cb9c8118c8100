package linux

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/opencontainers/runc/libcontainer"
	_ "github.com/opencontainers/runc/libcontainer/nsenter" // its C constructor enters the namespaces
	"golang.org/x/sys/unix"

	"cordon/internal/sys"
	"cordon/jail"
	"cordon/jail/initproc"
)

// Where a maker attaches things, in its own mount namespace.
const (
	makerDir    = "/run"
	makerImage  = makerDir + "/image"
	makerVolume = makerDir + "/volume"
	makerInit   = makerDir + "/init"
	makerInputs = makerDir + "/inputs"
	makerState  = makerDir + "/state" // libcontainer's, gone with the namespace
)

// initOOMScore makes a jail's PID 1 go before anything of the host when memory
// is short, and after the jail's commands (500).
const initOOMScore = 300

// RunContainerInit is libcontainer's stage inside a jail that is being made:
// what a maker starts its own program as, with the one argument "init". It
// becomes cordon-init and does not return.
func RunContainerInit() { libcontainer.Init() }

// RunMaker is the maker process: see runMaker for its descriptors. It works on
// one thread, which joins the v1 groups and starts the container; which one is
// all the same, and nobody can promise the main one: before main locks it, the
// runtime may have moved main to another.
func RunMaker() error {
	runtime.LockOSThread()
	for fd := makerReplyFD; fd <= makerInputsFD; fd++ {
		unix.CloseOnExec(fd)
	}
	var order makerOrder
	if err := json.NewDecoder(os.Stdin).Decode(&order); err != nil {
		return fmt.Errorf("read order: %w", err)
	}
	for _, file := range order.Tasks {
		if err := os.WriteFile(file, []byte("0"), 0); err != nil {
			return fmt.Errorf("join cgroup: %w", err)
		}
	}
	// Before it loses the right to: with CAP_SYS_RESOURCE this moves the
	// lowest score that any process of the jail can go back to.
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(initOOMScore)), 0); err != nil {
		return fmt.Errorf("oom_score_adj: %w", err)
	}
	if err := furnish(&order); err != nil {
		return err
	}
	return makeContainer(order.Plan)
}

// furnish attaches the jail's parts in this namespace alone.
func furnish(o *makerOrder) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return &os.PathError{Op: "make private", Path: "/", Err: err}
	}
	if err := hideCgroups(o.Mount2); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", makerDir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755,size=1m"); err != nil {
		return &os.PathError{Op: "mount tmpfs", Path: makerDir, Err: err}
	}
	for _, dir := range []string{makerImage, makerVolume, makerInputs, makerState} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("furnish: %w", err)
		}
	}
	if err := os.WriteFile(makerInit, nil, 0o755); err != nil {
		return fmt.Errorf("furnish: %w", err)
	}
	attach := map[int]string{makerImageFD: makerImage, makerVolumeFD: makerVolume, makerInitFD: makerInit}
	if o.Plan.InputsDir != "" {
		attach[makerInputsFD] = makerInputs
	}
	for fd, path := range attach {
		if err := sys.MoveMount(os.NewFile(uintptr(fd), path), path); err != nil {
			return err
		}
	}
	return nil
}

// hideCgroups makes libcontainer's cgroup work a no-op: it finds a read-only
// v2 tree and, told that it is rootless, goes on with the groups that this
// process is in. That is what is wanted, and the read-back checks it.
func hideCgroups(mount2 string) error {
	const path = "/sys/fs/cgroup"
	if err := unix.Mount(mount2, path, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "bind", Path: path, Err: err}
	}
	if err := unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return &os.PathError{Op: "remount read-only", Path: path, Err: err}
	}
	return nil
}

func makeContainer(p *jail.Plan) error {
	cfg, err := containerConfig(p)
	if err != nil {
		return err
	}
	c, err := libcontainer.Create(makerState, p.LeaseID, cfg)
	if err != nil {
		return fmt.Errorf("create container: %w", err)
	}
	proc := &libcontainer.Process{
		Args:       []string{initproc.Path},
		Env:        []string{"GOMAXPROCS=2"},
		Cwd:        "/",
		Init:       true,
		ExtraFiles: []*os.File{os.NewFile(makerControlFD, "control")},
	}
	if err := c.Run(proc); err != nil {
		return fmt.Errorf("run container: %w", err)
	}
	pid, err := proc.Pid()
	if err != nil {
		return fmt.Errorf("run container: %w", err)
	}
	return reply(pid)
}

// reply sends a handle on PID 1. It is still our child here, so the pid
// cannot have been reused.
func reply(pid int) error {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return os.NewSyscallError("pidfd_open", err)
	}
	b, err := json.Marshal(makerReply{PID: pid})
	if err != nil {
		return fmt.Errorf("encode reply: %w", err)
	}
	sock := os.NewFile(makerReplyFD, "reply")
	return sys.SendFiles(sock, b, os.NewFile(uintptr(fd), "pidfd"))
}

// bindSource is where the maker has a mount's source.
func bindSource(m jail.Mount) (string, bool) {
	switch m.Kind {
	case "volume":
		return filepath.Join(makerVolume, m.Part), true
	case "inputs":
		return makerInputs, true
	case "init":
		return makerInit, true
	default:
		return "", false
	}
}
