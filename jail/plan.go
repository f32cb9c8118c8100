package jail

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"cordon/internal/fault"
)

// Plan is the sandbox to build, complete: every namespace, mount, limit,
// capability and filter by name, in the order of their use. It is what
// jail/linux applies and what the read-back is compared with.
type Plan struct {
	Version       int      `json:"version"`
	LeaseID       string   `json:"lease_id"`
	Hostname      string   `json:"hostname"`
	IDs           IDMap    `json:"ids"`
	UID           uint32   `json:"uid"`
	Namespaces    []string `json:"namespaces"`
	Image         Image    `json:"image"`
	InputsDir     string   `json:"inputs_dir"`
	Volume        Volume   `json:"volume"`
	Mounts        []Mount  `json:"mounts"`
	MaskPaths     []string `json:"mask_paths"`
	ReadonlyPaths []string `json:"readonly_paths"`
	Devices       []string `json:"devices"`
	Limits        Limits   `json:"limits"`
	// LeaseTasks bounds all tasks of the lease, PID 1's and parked children's
	// threads too; Limits.Pids bounds the commands.
	LeaseTasks     int64    `json:"lease_tasks"`
	Rlimits        []Rlimit `json:"rlimits"` // of commands
	InitCaps       []string `json:"init_caps"`
	InitFilter     string   `json:"init_filter"`
	WorkloadFilter string   `json:"workload_filter"`
	Env            []string `json:"env"` // base environment of commands
	CgroupMode     string   `json:"cgroup_mode"`
	SwapLimit      bool     `json:"swap_limit"`
}

// IDMap maps inside ids 0..Size-1 to host ids from Base on, users and groups
// alike.
type IDMap struct {
	Base uint32 `json:"base"`
	Size uint32 `json:"size"`
}

// Mount is one mount of the sandbox, in order.
type Mount struct {
	Target string   `json:"target"`
	Kind   string   `json:"kind"` // image, volume, inputs, init, proc, tmpfs, devpts, mqueue
	Part   string   `json:"part,omitempty"`
	Flags  []string `json:"flags"`
	Data   string   `json:"data,omitempty"`
}

// Rlimit is a resource limit, soft and hard alike.
type Rlimit struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

// IDRangeSize is the number of host ids a lease owns.
const IDRangeSize = 65536

// initTasks is the room for PID 1 and the children that wait for their
// command, each a few threads: 64 commands at once and a margin.
const initTasks = 1024

// NewPlan makes the plan of a spec on a host with these features.
//
// Postconditions:
//   - the same arguments give the same bytes;
//   - the plan is complete: nothing is decided when it is applied.
func NewPlan(s Spec, f Features) (*Plan, error) {
	if err := check(s, f); err != nil {
		return nil, err
	}
	return &Plan{
		Version:        1,
		LeaseID:        s.LeaseID,
		Hostname:       "sandbox",
		IDs:            IDMap{Base: s.IDBase, Size: IDRangeSize},
		UID:            s.UID,
		Namespaces:     []string{"user", "pid", "mount", "network", "ipc", "uts", "cgroup"},
		Image:          s.Image,
		InputsDir:      s.InputsDir,
		Volume:         s.Volume,
		Mounts:         mounts(s),
		MaskPaths:      maskPaths(),
		ReadonlyPaths:  readonlyPaths(),
		Devices:        []string{"null", "zero", "full", "random", "urandom", "tty"},
		Limits:         s.Limits,
		LeaseTasks:     s.Limits.Pids + initTasks,
		Rlimits:        rlimits(s.Limits),
		InitCaps:       initCaps(),
		InitFilter:     "init",
		WorkloadFilter: "default",
		Env:            baseEnv(s.Locale),
		CgroupMode:     f.CgroupMode,
		SwapLimit:      f.SwapAccount,
	}, nil
}

func check(s Spec, f Features) error {
	switch {
	case s.LeaseID == "" || strings.ContainsAny(s.LeaseID, "/. "):
		return fmt.Errorf("plan jail: lease id %q is not a plain name", s.LeaseID)
	case s.UID == 0 || s.UID >= IDRangeSize-2:
		return fault.New(fault.InvalidEnvelope, "identity.uid", fmt.Sprintf("%d is not a workload uid", s.UID), "use 1..65533")
	case s.IDBase < IDRangeSize:
		return fmt.Errorf("plan jail: id range at %d overlaps the host's own ids", s.IDBase)
	case s.Image.Path == "":
		return fmt.Errorf("plan jail: image %s has no path", s.Image.Digest)
	case f.CgroupMode != "v2" && f.CgroupMode != "hybrid":
		return fault.New(fault.MissingFeature, "cgroup", fmt.Sprintf("mode %q has no v2 tree", f.CgroupMode), "mount cgroup2 at /sys/fs/cgroup or /sys/fs/cgroup/unified")
	case s.Volume.Medium != "disk" && s.Volume.Medium != "memory":
		return fault.New(fault.InvalidEnvelope, "filesystem.workspace.medium", fmt.Sprintf("%q is no medium", s.Volume.Medium), "use disk or memory")
	}
	return nil
}

func mounts(s Spec) []Mount {
	quiet := []string{"nosuid", "nodev", "noexec"}
	m := []Mount{
		{Target: "/", Kind: "image", Flags: []string{"ro", "nosuid", "nodev"}},
		// hidepid: a command sees its own uid's processes, not PID 1.
		{Target: "/proc", Kind: "proc", Flags: quiet, Data: "hidepid=2"},
		{Target: "/dev", Kind: "tmpfs", Flags: []string{"nosuid", "noexec", "strictatime"}, Data: "mode=755,size=64k,nr_inodes=64"},
		{Target: "/dev/pts", Kind: "devpts", Flags: []string{"nosuid", "noexec"}, Data: "newinstance,ptmxmode=0666,mode=0620,gid=5,max=64"},
		{Target: "/dev/shm", Kind: "tmpfs", Flags: quiet, Data: fmt.Sprintf("mode=1777,size=%d,nr_inodes=4096", shmBytes(s.Limits.MemoryBytes))},
		{Target: "/dev/mqueue", Kind: "mqueue", Flags: quiet},
		{Target: "/workspace", Kind: "volume", Part: "workspace", Flags: []string{"nosuid", "nodev"}},
		{Target: "/tmp", Kind: "volume", Part: "tmp", Flags: []string{"nosuid", "nodev"}},
		{Target: "/.cordon/init", Kind: "init", Flags: []string{"ro", "nosuid", "nodev"}},
	}
	if s.InputsDir != "" {
		m = append(m, Mount{Target: "/inputs", Kind: "inputs", Flags: []string{"ro", "nosuid", "nodev", "noexec"}})
	}
	return m
}

// shmBytes is half of the memory: /dev/shm is charged to the lease anyway,
// the size only makes the failure an ENOSPC before it is an OOM kill.
func shmBytes(memory int64) int64 { return memory / 2 }

// maskPaths are covered by an empty file or directory. Host facts that a
// sandbox has no use for, in the OCI default's order (runtime-spec,
// linux.maskedPaths; CVE-2025-31133 names the ones that hurt most).
func maskPaths() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore",
		"/proc/keys", "/proc/key-users", "/proc/latency_stats", "/proc/sched_debug",
		"/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/proc/kallsyms",
		"/proc/modules", "/proc/config.gz", "/proc/slabinfo", "/proc/vmallocinfo",
		"/proc/pagetypeinfo", "/proc/iomem", "/proc/ioports", "/proc/cmdline",
		"/proc/mdstat", "/proc/driver", "/proc/bootconfig", "/proc/kmsg",
		// What tells of the host's disks and buses, and the pressure files,
		// whose triggers run in threads of the host.
		"/proc/fs", "/proc/bus", "/proc/diskstats", "/proc/partitions", "/proc/pressure",
	}
}

func readonlyPaths() []string {
	return []string{
		"/proc/irq", "/proc/sys", "/proc/sysrq-trigger", "/proc/tty",
	}
}

func rlimits(l Limits) []Rlimit {
	return []Rlimit{
		{Name: "nofile", Value: uint64(l.OpenFiles)},
		// 1 byte, not 0: both keep a core file from being written, but only 1
		// also keeps one from being piped to a handler on the host (core(5)).
		{Name: "core", Value: 1},
		{Name: "memlock", Value: 64 << 10},
		{Name: "msgqueue", Value: 819200},
		{Name: "sigpending", Value: 4096},
		{Name: "nice", Value: 0},
		{Name: "rtprio", Value: 0},
	}
}

// initCaps are all that PID 1 holds (D6): it becomes the workload's uid and
// ends its children, nothing else.
func initCaps() []string {
	return []string{
		"CAP_SETUID", // become identity.uid
		"CAP_SETGID", // become its group, drop supplementary groups
		"CAP_KILL",   // end children of another uid
	}
}

func baseEnv(locale string) []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/workspace",
		"TMPDIR=/tmp",
		"LANG=" + locale,
		"LC_ALL=" + locale,
		"TZ=UTC",
	}
}

// Digest is "sha256:" and the hex digest of the plan's JSON. Two leases of
// one envelope differ in lease id and id base alone; both are part of it.
func (p *Plan) Digest() string {
	sum := sha256.Sum256(append([]byte("cordon plan v1\n"), p.JSON()...))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// JSON is the plan as one line, fields in declaration order.
func (p *Plan) JSON() []byte {
	b, err := json.Marshal(p)
	if err != nil {
		panic("jail: plan is not plain data: " + err.Error())
	}
	return b
}

// String prints the plan for people and for golden files.
func (p *Plan) String() string {
	b, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		panic("jail: plan is not plain data: " + err.Error())
	}
	return string(b) + "\n"
}
