// Package envelope is the sandbox envelope: everything one run asks for, as
// pure data, with one strict YAML reader, one list of checks, one set of
// written-out defaults and one canonical digest.
//
// It needs no privilege and touches no file, clock or environment. Values are
// plain data and safe to share once built. What a host is willing to grant is
// not decided here but in hostpolicy; how it is enforced, in jail and ebpf.
package envelope

import "time"

// Envelope is one run's request: the document of S1-142..164 and the fields
// that cannot be added later without pain. Field order is the canonical order.
type Envelope struct {
	ImageDigest       string     `yaml:"image_digest" json:"image_digest"`
	RuntimeRevision   string     `yaml:"runtime_revision" json:"runtime_revision"`
	Identity          Identity   `yaml:"identity" json:"identity"`
	Filesystem        Filesystem `yaml:"filesystem" json:"filesystem"`
	NetworkEgress     Egress     `yaml:"network_egress" json:"network_egress"`
	Resources         Resources  `yaml:"resources" json:"resources"`
	WorkspaceLifetime string     `yaml:"workspace_lifetime" json:"workspace_lifetime"`
	Artifacts         Artifacts  `yaml:"artifacts" json:"artifacts"`
	Cleanup           Cleanup    `yaml:"cleanup" json:"cleanup"`
	Isolation         Isolation  `yaml:"isolation" json:"isolation"`
	Repeatability     Repeat     `yaml:"repeatability" json:"repeatability"`
	BrowserProfile    string     `yaml:"browser_profile" json:"browser_profile"`
}

// Identity says for whom and as what the run works.
type Identity struct {
	Tenant string `yaml:"tenant" json:"tenant"`
	RunID  string `yaml:"run_id" json:"run_id"`
	// AttemptID tells retries of one run apart; default "1".
	AttemptID string `yaml:"attempt_id" json:"attempt_id"`
	// TraceID and ParentSpan are W3C Trace Context values in lower-case hex
	// (32 and 16 digits), or empty.
	TraceID    string `yaml:"trace_id" json:"trace_id"`
	ParentSpan string `yaml:"parent_span" json:"parent_span"`
	// UID is the workload's uid and gid inside the sandbox; 1..65533.
	UID            uint32 `yaml:"uid" json:"uid"`
	Principal      string `yaml:"principal" json:"principal"`
	DelegatedActor string `yaml:"delegated_actor" json:"delegated_actor"`
	// AuthorityExpiry is when the principal's authority ends (RFC 3339, UTC);
	// the lease never outlives it. Empty: no such limit.
	AuthorityExpiry string `yaml:"authority_expiry" json:"authority_expiry"`
}

// Filesystem is what the run sees of files.
type Filesystem struct {
	Root      string    `yaml:"root" json:"root"` // read_only
	Inputs    []Input   `yaml:"inputs" json:"inputs"`
	Workspace Workspace `yaml:"workspace" json:"workspace"`
	Devices   []string  `yaml:"devices" json:"devices"` // must be empty
}

// Input is one read-only file of the run, at /inputs/<name>.
type Input struct {
	Name   string `yaml:"name" json:"name"` // default: the digest's hex digits
	Digest string `yaml:"digest" json:"digest"`
	Mode   string `yaml:"mode" json:"mode"` // read_only
}

// Workspace is the run's one writable volume.
type Workspace struct {
	Mode     string `yaml:"mode" json:"mode"`           // fresh_overlay
	MaxBytes int64  `yaml:"max_bytes" json:"max_bytes"` // bytes; = resources.disk_bytes
	Medium   string `yaml:"medium" json:"medium"`       // disk or memory
	Inodes   int64  `yaml:"inodes" json:"inodes"`       // files and directories
}

// Egress is the network the run may reach.
type Egress struct {
	Default             string   `yaml:"default" json:"default"` // deny
	AllowedDestinations []string `yaml:"allowed_destinations" json:"allowed_destinations"`
	Methods             []string `yaml:"methods" json:"methods"`
	MaxBytes            int64    `yaml:"max_bytes" json:"max_bytes"`
}

// Resources are the limits of the whole lease, descendants included.
type Resources struct {
	// CPUMilli is the cpu limit in thousandths of a core; written as cores
	// ("2", "0.5") in the document.
	CPUMilli     int64         `yaml:"cpu" json:"cpu_milli"`
	MemoryBytes  int64         `yaml:"memory_bytes" json:"memory_bytes"`
	ProcessCount int64         `yaml:"process_count" json:"process_count"`
	DiskBytes    int64         `yaml:"disk_bytes" json:"disk_bytes"`
	OpenFiles    int64         `yaml:"open_files" json:"open_files"` // per process
	OutputBytes  int64         `yaml:"output_bytes" json:"output_bytes"`
	WallClock    time.Duration `yaml:"wall_clock" json:"wall_clock_ns"`
}

// Artifacts are the files that may leave, relative to /workspace.
type Artifacts struct {
	Allow []string `yaml:"allow" json:"allow"`
	Scan  bool     `yaml:"scan" json:"scan"`
	Hash  bool     `yaml:"hash" json:"hash"`
}

// Cleanup is the lease's length and what its end must do.
type Cleanup struct {
	Lease             time.Duration `yaml:"lease" json:"lease_ns"`
	RevokeCredentials bool          `yaml:"revoke_credentials" json:"revoke_credentials"`
	VerifyProcessTree bool          `yaml:"verify_process_tree" json:"verify_process_tree"`
}

// Isolation names the strength of the boundary.
type Isolation struct {
	Tier string `yaml:"tier" json:"tier"` // namespaces (microvm: refused by name)
}

// Repeat pins what makes a run repeatable.
type Repeat struct {
	Locale          string   `yaml:"locale" json:"locale"`         // default C.UTF-8
	Clock           string   `yaml:"clock" json:"clock"`           // host
	Randomness      string   `yaml:"randomness" json:"randomness"` // host
	DependencyLocks []Lock   `yaml:"dependency_locks" json:"dependency_locks"`
	NetworkFixtures []string `yaml:"network_fixtures" json:"network_fixtures"` // digests
}

// Lock is a dependency lock file by name and digest.
type Lock struct {
	Name   string `yaml:"name" json:"name"`
	Digest string `yaml:"digest" json:"digest"`
}
