// Package jail turns what a lease asks for (Spec) and what the host can do
// (Features) into the exact sandbox to build (Plan), as pure data: the same
// Spec and Features give the same bytes.
//
// It needs no privilege, opens no file and reads no clock, and builds on any
// OS. Applying a Plan is jail/linux's work; what runs inside as PID 1 is
// jail/initproc; the system-call table is jail/seccomp.
package jail

import "time"

// Spec is what was asked, after admission.
type Spec struct {
	LeaseID string
	UID     uint32 // the workload's uid and gid inside
	IDBase  uint32 // first host id of this lease's own range of 65536
	Image   Image
	// InputsDir is a root-owned host directory shown read-only at /inputs;
	// empty when the run has none.
	InputsDir string
	Volume    Volume
	Limits    Limits
	Locale    string
}

// Image is a verified root filesystem of the image store.
type Image struct {
	Digest string `json:"digest"`
	Path   string `json:"path"`    // host directory that holds the tree
	IDBase uint32 `json:"id_base"` // on-disk owner of in-image uid 0
}

// Volume is the run's one writable file system.
type Volume struct {
	Medium string `json:"medium"` // disk: ext4 on a loop device; memory: tmpfs
	Bytes  int64  `json:"bytes"`
	Inodes int64  `json:"inodes"`
}

// Limits hold for the lease as a whole, except OpenFiles, which is each
// process's.
type Limits struct {
	CPUMilli    int64 `json:"cpu_milli"`
	MemoryBytes int64 `json:"memory_bytes"` // swap is always zero
	Pids        int64 `json:"pids"`         // tasks, PID 1 and parked children not counted
	OpenFiles   int64 `json:"open_files"`
}

// ExecSpec is one command to run in a jail.
type ExecSpec struct {
	ID         string   // unique in the lease; [a-z0-9-]
	Argv       []string // Argv[0] is looked up in PATH when it has no slash
	Env        []string // NAME=value; the base environment comes first
	Cwd        string   // absolute, inside
	TTY        bool
	Rows, Cols uint16 // with TTY
}

// ExecEnd is how a command ended, as the host saw it.
type ExecEnd struct {
	ExitCode int // when Signal is 0
	Signal   int
	// Witness says who vouches for ExitCode and Signal: "kernel" (pidfd) or
	// "init" (PID 1 of the jail, the tenant's word).
	Witness string
	// OOMKills counts kernel OOM kills in the command's own cgroup.
	OOMKills uint64
	// SeccompKilled is true when the kernel ended the command with SIGSYS.
	SeccompKilled bool
	// Descendants counts processes of the command still alive after it ended.
	Descendants int
	Usage       Usage
	// Start is set, and nothing else, when the command never ran.
	Start *StartError
}

// StartError says why a command could not be started. Its Code follows the
// container convention: 127 not found, 126 found but not executable, 125 for
// everything else.
type StartError struct {
	Code  int
	Step  string // lookup, cwd, exec, ...
	Errno int    // errno(3), 0 when there is none
	Text  string
}

func (e *StartError) Error() string { return "start command: " + e.Step + ": " + e.Text }

// Usage is what a lease or a command consumed.
type Usage struct {
	CPUUser      time.Duration `json:"cpu_user_ns"`
	CPUSystem    time.Duration `json:"cpu_system_ns"`
	MemoryPeak   uint64        `json:"memory_peak_bytes"`
	PidsPeak     uint64        `json:"pids_peak"`    // 0: the kernel does not tell
	PidsRefused  uint64        `json:"pids_refused"` // forks refused by the limit
	OOMKills     uint64        `json:"oom_kills"`
	VolumeBytes  uint64        `json:"volume_bytes"` // used on the volume at the end
	VolumeInodes uint64        `json:"volume_inodes"`
}

// Check is one thing compared with the kernel's answer.
type Check struct {
	Name string `json:"name"`
	Want string `json:"want"`
	Got  string `json:"got"`
	OK   bool   `json:"ok"`
}

// ReadBack is what the kernel said about a jail that was built.
type ReadBack struct {
	Checks []Check `json:"checks"`
}

// Failed returns the checks that did not hold.
func (r ReadBack) Failed() []Check {
	var bad []Check
	for _, c := range r.Checks {
		if !c.OK {
			bad = append(bad, c)
		}
	}
	return bad
}

// CleanupReport says what Close looked for after it had removed everything,
// and what it still found. An empty Leftovers in every item is the proof.
type CleanupReport struct {
	Items []CleanupItem `json:"items"`
}

// CleanupItem is one kind of thing that must be gone.
type CleanupItem struct {
	Kind      string   `json:"kind"` // processes, cgroups, mounts, netns, loop_devices, bpf_entries, files
	Looked    string   `json:"looked"`
	Leftovers []string `json:"leftovers"`
}

// Clean reports whether nothing was left.
func (r CleanupReport) Clean() bool {
	for _, it := range r.Items {
		if len(it.Leftovers) != 0 {
			return false
		}
	}
	return len(r.Items) != 0
}

// Features are the facts about the host that a Plan depends on.
type Features struct {
	Kernel       string `json:"kernel"`       // uname -r
	CgroupMode   string `json:"cgroup_mode"`  // v2 or hybrid
	PidfdInfo    bool   `json:"pidfd_info"`   // exit status from PIDFD_GET_INFO (6.15)
	SwapAccount  bool   `json:"swap_account"` // the swap limit can be set
	TmpfsIDMap   bool   `json:"tmpfs_idmap"`  // idmapped tmpfs (6.3)
	TimeNS       bool   `json:"time_ns"`
	LoopDirectIO bool   `json:"loop_direct_io"`
}
