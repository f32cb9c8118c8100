package client

import (
	"time"

	cordonv1 "cordon/api/v1"
	"cordon/api/wire"
)

// LeaseInfo is what the daemon tells about a lease.
type LeaseInfo struct {
	ID             string     `json:"id"`
	State          string     `json:"state"` // requested, preparing, active, draining, closing, closed, quarantined
	Tenant         string     `json:"tenant"`
	RunID          string     `json:"run_id"`
	AttemptID      string     `json:"attempt_id"`
	ImageDigest    string     `json:"image_digest"`
	EnvelopeDigest string     `json:"envelope_digest"`
	PlanDigest     string     `json:"plan_digest"`
	AcquiredAt     time.Time  `json:"acquired_at"`
	ExpiresAt      time.Time  `json:"expires_at"`
	MaxExpiresAt   time.Time  `json:"max_expires_at"`
	Fencing        uint64     `json:"fencing"` // grows with every lease of the host
	OwnerUID       uint32     `json:"owner_uid"`
	Execs          []ExecInfo `json:"execs"`
	End            *End       `json:"end,omitempty"` // when closed
}

// ExecInfo is a command that was run in a lease.
type ExecInfo struct {
	ID      string   `json:"id"`
	Argv    []string `json:"argv"`
	Running bool     `json:"running"`
	End     *End     `json:"end,omitempty"` // when not running
}

// Cause is how a command or a lease ended.
type Cause string

// All causes. A lease cannot end as Exited or Signalled, a command not as
// Released.
const (
	Exited               Cause = "exited"
	Signalled            Cause = "signalled"
	OOMKilled            Cause = "oom_killed"
	TimedOut             Cause = "timed_out"
	OutputExceeded       Cause = "output_exceeded"
	DiskExceeded         Cause = "disk_exceeded"
	PidsExceeded         Cause = "pids_exceeded"
	SeccompKilled        Cause = "seccomp_killed"
	EgressBudgetExceeded Cause = "egress_budget_exceeded"
	CommandCancelled     Cause = "cancelled"
	LeaseExpired         Cause = "lease_expired"
	Infrastructure       Cause = "infrastructure"
	Released             Cause = "released"
)

// End says how a command or a lease ended.
type End struct {
	Cause    Cause  `json:"cause"`
	ExitCode int    `json:"exit_code"` // with Exited
	Signal   int    `json:"signal"`    // with Signalled
	Detail   string `json:"detail,omitempty"`
	// Witness says who vouches for ExitCode and Signal: "kernel", or "init",
	// which is the sandbox's own word.
	Witness          string `json:"witness,omitempty"`
	DescendantsAlive uint32 `json:"descendants_alive"`
	// StartCode is 125, 126 or 127 when the command never ran.
	StartCode int   `json:"start_code,omitempty"`
	Usage     Usage `json:"usage"`
}

// OK reports whether the command ran and exited with 0.
func (e End) OK() bool { return e.Cause == Exited && e.ExitCode == 0 && e.StartCode == 0 }

// ExitStatus is what a shell would show: the command's exit code, 128 plus
// the signal, 126 or 127 when it could not be started, and 125 when it was
// ended from outside without a signal of its own.
func (e End) ExitStatus() int {
	switch {
	case e.StartCode != 0:
		return e.StartCode
	case e.Cause == Exited:
		return e.ExitCode
	case e.Signal != 0:
		return 128 + e.Signal
	default:
		return 125
	}
}

// Usage is what a command or a lease consumed.
type Usage struct {
	CPUUser         time.Duration `json:"cpu_user_ns"`
	CPUSystem       time.Duration `json:"cpu_system_ns"`
	Wall            time.Duration `json:"wall_ns"`
	MemoryPeakBytes uint64        `json:"memory_peak_bytes"`
	OutputBytes     uint64        `json:"output_bytes"`
	PidsRefused     uint64        `json:"pids_refused"`
	OOMKills        uint64        `json:"oom_kills"`
}

// Check is one thing that was compared with the kernel's answer.
type Check struct {
	Name string `json:"name"`
	Want string `json:"want"`
	Got  string `json:"got"`
	OK   bool   `json:"ok"`
}

// Event is one thing that happened to a lease.
type Event struct {
	Sequence   uint64            `json:"sequence"`
	At         time.Time         `json:"at"`
	Kind       string            `json:"kind"` // state, exec_started, exec_ended, exported, egress_denied, renewed, ...
	Attributes map[string]string `json:"attributes,omitempty"`
}

// Record is the signed record of a lease.
type Record struct {
	JSON []byte // the document that "cordon evidence verify" checks
	Head string // sha256:<hex>: the host's chain up to and with this record
	// State is closed, or quarantined: something of the lease was left, and
	// the daemon goes on trying to remove it.
	State string
}

func leaseInfo(l *cordonv1.Lease) LeaseInfo {
	info := LeaseInfo{
		ID:             l.GetId(),
		State:          wire.StateName(l.GetState()),
		Tenant:         l.GetTenant(),
		RunID:          l.GetRunId(),
		AttemptID:      l.GetAttemptId(),
		ImageDigest:    l.GetImageDigest(),
		EnvelopeDigest: l.GetEnvelopeDigest(),
		PlanDigest:     l.GetPlanDigest(),
		AcquiredAt:     wire.TimeOf(l.GetAcquiredAt()),
		ExpiresAt:      wire.TimeOf(l.GetExpiresAt()),
		MaxExpiresAt:   wire.TimeOf(l.GetMaxExpiresAt()),
		Fencing:        l.GetFencing(),
		OwnerUID:       l.GetOwnerUid(),
		Execs:          []ExecInfo{}, // a list in JSON too, never null
		End:            maybeEnd(l.GetEnd()),
	}
	for _, e := range l.GetExecs() {
		info.Execs = append(info.Execs, ExecInfo{ID: e.GetId(), Argv: e.GetArgv(), Running: e.GetRunning(), End: maybeEnd(e.GetEnd())})
	}
	return info
}

func maybeEnd(e *cordonv1.End) *End {
	if e == nil {
		return nil
	}
	out := end(e)
	return &out
}

func end(e *cordonv1.End) End {
	u := e.GetUsage()
	return End{
		Cause:            Cause(wire.CauseName(e.GetCause())),
		ExitCode:         int(e.GetExitCode()),
		Signal:           int(e.GetSignal()),
		Detail:           e.GetDetail(),
		Witness:          e.GetWitness(),
		DescendantsAlive: e.GetDescendantsAlive(),
		StartCode:        int(e.GetStartCode()),
		Usage: Usage{
			CPUUser:         u.GetCpuUser().AsDuration(),
			CPUSystem:       u.GetCpuSystem().AsDuration(),
			Wall:            u.GetWall().AsDuration(),
			MemoryPeakBytes: u.GetMemoryPeakBytes(),
			OutputBytes:     u.GetOutputBytes(),
			PidsRefused:     u.GetPidsRefused(),
			OOMKills:        u.GetOomKills(),
		},
	}
}

func record(r *cordonv1.SignedRecord) Record {
	return Record{JSON: r.GetJson(), Head: r.GetHead(), State: wire.StateName(r.GetState())}
}
