// Package evidence is the record of a lease as pure data: its schema, its
// place in a host's hash chain, its signature, and the strict offline check
// of all three.
//
// It needs no privilege, reads no clock and touches no file, except for the
// signing key that LoadOrCreateKey keeps. Values are plain data and safe to
// share once built. Gathering what a record says is supervisor's work; where
// entries are kept is supervisor's journal.
package evidence

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"cordon/jail"
	"cordon/supervisor/envelope"
)

// Schema names the layout of Record. A verifier knows exactly one.
const Schema = "cordon.record/1"

// Record is everything that is known about one lease once it has ended. All
// integers stay within 2^53-1, so that RFC 8785 can write them exactly;
// times are UTC.
type Record struct {
	Schema string `json:"schema"`
	// State is closed, or quarantined when something of the lease is left. A
	// quarantined lease that is cleaned later gets a second record.
	State string `json:"state"`
	// Supersedes is the head of an earlier record of the same lease, or empty.
	Supersedes string            `json:"supersedes"`
	Lease      Lease             `json:"lease"`
	Identity   Identity          `json:"identity"`
	Envelope   envelope.Envelope `json:"envelope"`
	Digests    Digests           `json:"digests"`
	Host       Host              `json:"host"`
	Repeat     Repeat            `json:"repeat"`
	Inputs     []Input           `json:"inputs"`
	ReadBack   []jail.Check      `json:"read_back"`
	Usage      Usage             `json:"usage"`
	Network    Network           `json:"network"`
	Execs      []Exec            `json:"execs"`
	// ExecsUnlisted counts commands beyond the list's bound.
	ExecsUnlisted int64     `json:"execs_unlisted"`
	Exports       []Export  `json:"exports"`
	End           End       `json:"end"`
	Cleanup       Cleanup   `json:"cleanup"`
	Remanence     Remanence `json:"remanence"`
	// Gaps are the things this record cannot vouch for, in plain words.
	Gaps []string `json:"gaps"`
}

// Lease is the lease itself.
type Lease struct {
	ID       string `json:"id"`
	Fencing  int64  `json:"fencing"` // grows with every lease of the host
	OwnerUID uint32 `json:"owner_uid"`
	IDBase   uint32 `json:"id_base"` // first host id of the lease's range

	RequestedAt time.Time `json:"requested_at"`
	ActiveAt    time.Time `json:"active_at,omitzero"`
	ExpiresAt   time.Time `json:"expires_at,omitzero"`
	EndedAt     time.Time `json:"ended_at"`  // when the end began
	ClosedAt    time.Time `json:"closed_at"` // when nothing was left, or was given up
}

// Identity says for whom the lease ran.
type Identity struct {
	Tenant          string `json:"tenant"`
	RunID           string `json:"run_id"`
	AttemptID       string `json:"attempt_id"`
	TraceID         string `json:"trace_id"`
	ParentSpan      string `json:"parent_span"`
	Principal       string `json:"principal"`
	DelegatedActor  string `json:"delegated_actor"`
	AuthorityExpiry string `json:"authority_expiry"`
}

// Digests name what was enforced. Plan is empty when the lease ended before
// there was one.
type Digests struct {
	Envelope   string `json:"envelope"`
	HostPolicy string `json:"host_policy"`
	Plan       string `json:"plan"`
	Image      string `json:"image"`
}

// Host is the machine and the program that enforced the lease.
type Host struct {
	Version         string `json:"version"`
	RuntimeRevision string `json:"runtime_revision"`
	Kernel          string `json:"kernel"`
	CgroupMode      string `json:"cgroup_mode"`
}

// Repeat is what a second run would have to repeat.
type Repeat struct {
	Locale          string          `json:"locale"`
	Clock           string          `json:"clock"`
	Randomness      string          `json:"randomness"`
	DependencyLocks []envelope.Lock `json:"dependency_locks"`
	NetworkFixtures []string        `json:"network_fixtures"`
}

// Input is one file the run was given.
type Input struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
}

// Usage is what a lease or a command consumed. Times are microseconds: in
// nanoseconds a busy large host passes 2^53 within days.
type Usage struct {
	CPUUserUS        int64 `json:"cpu_user_us"`
	CPUSystemUS      int64 `json:"cpu_system_us"`
	WallUS           int64 `json:"wall_us"`
	MemoryPeakBytes  int64 `json:"memory_peak_bytes"`
	PidsPeak         int64 `json:"pids_peak"` // 0: the kernel does not tell
	PidsRefused      int64 `json:"pids_refused"`
	OOMKills         int64 `json:"oom_kills"`
	OutputBytes      int64 `json:"output_bytes"`
	VolumeBytes      int64 `json:"volume_bytes"`
	VolumeInodes     int64 `json:"volume_inodes"`
	DescendantsAlive int64 `json:"descendants_alive"` // when the command ended
}

// Network is what the run tried to reach.
type Network struct {
	Denied       int64         `json:"denied"`
	Unlisted     int64         `json:"unlisted"` // denied and not in Destinations
	Destinations []Destination `json:"destinations"`
}

// Destination is one address the run tried.
type Destination struct {
	Hook    string    `json:"hook"`
	Address string    `json:"address"`
	Port    uint16    `json:"port"`
	Proto   string    `json:"proto"`
	Verdict string    `json:"verdict"`
	Errno   string    `json:"errno"`
	Count   int64     `json:"count"`
	First   time.Time `json:"first,omitzero"`
	Last    time.Time `json:"last,omitzero"`
}

// Exec is one command. Arguments may hold secrets: only their digest and the
// command's name are kept.
type Exec struct {
	ID         string    `json:"id"`
	Argv0      string    `json:"argv0"`
	ArgvDigest string    `json:"argv_digest"`
	StartedAt  time.Time `json:"started_at"`
	EndedAt    time.Time `json:"ended_at,omitzero"`
	End        End       `json:"end"`
	Usage      Usage     `json:"usage"`
}

// End is how a command or a lease ended, in the vocabulary of supervisor.
type End struct {
	Cause     string `json:"cause"`
	ExitCode  int    `json:"exit_code"`
	Signal    int    `json:"signal"`
	StartCode int    `json:"start_code"` // 125..127: the command never ran
	Witness   string `json:"witness"`    // kernel, or init: the tenant's word
	Detail    string `json:"detail"`
}

// Export is one artifact that left the sandbox, wholly or in part.
type Export struct {
	Path     string    `json:"path"`
	Complete bool      `json:"complete"` // false: the stream broke off
	Bytes    int64     `json:"bytes"`    // at most, when not complete
	Digest   string    `json:"digest"`   // empty when not complete
	Scan     string    `json:"scan"`
	At       time.Time `json:"at"`
}

// ScanNotPerformed is what Export.Scan says while there is no scanner.
const ScanNotPerformed = "not_performed"

// Cleanup is what was looked for after everything had been removed.
type Cleanup struct {
	Clean    bool               `json:"clean"`
	Attempts int64              `json:"attempts"`
	Items    []jail.CleanupItem `json:"items"`
	Errors   []string           `json:"errors"`
}

// Remanence says what was checked for remains and what nobody looked at.
type Remanence struct {
	Checked    []string `json:"checked"`
	NotChecked []string `json:"not_checked"`
}

// ArgvDigest is the SHA-256 of the arguments, each followed by a zero byte,
// which is what /proc/PID/cmdline holds.
func ArgvDigest(argv []string) string {
	h := sha256.New()
	for _, a := range argv {
		h.Write([]byte(a))
		h.Write([]byte{0})
	}
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}
