package supervisor

import (
	"fmt"
	"time"

	"cordon/jail"
)

// EndCause is the one vocabulary of ends, for commands and for leases. The
// zero value is no cause.
type EndCause int

// The causes. disk_exceeded, pids_exceeded and egress_budget_exceeded are
// words that nothing says yet: a full volume or a refused fork does not end
// a command, and what the command made of it cannot be told from outside. Its
// usage holds the counts.
const (
	CauseExited EndCause = iota + 1
	CauseSignalled
	CauseOOMKilled
	CauseTimedOut
	CauseOutputExceeded
	CauseDiskExceeded
	CausePidsExceeded
	CauseSeccompKilled
	CauseEgressBudgetExceeded
	CauseCancelled
	CauseLeaseExpired
	CauseInfrastructure
	// CauseReleased is for leases alone: the owner gave it back.
	CauseReleased
)

var causeNames = map[EndCause]string{
	CauseExited: "exited", CauseSignalled: "signalled",
	CauseOOMKilled: "oom_killed", CauseTimedOut: "timed_out",
	CauseOutputExceeded: "output_exceeded", CauseDiskExceeded: "disk_exceeded",
	CausePidsExceeded: "pids_exceeded", CauseSeccompKilled: "seccomp_killed",
	CauseEgressBudgetExceeded: "egress_budget_exceeded",
	CauseCancelled:            "cancelled", CauseLeaseExpired: "lease_expired",
	CauseInfrastructure: "infrastructure", CauseReleased: "released",
}

// String is the cause's name; of no cause, the empty string.
func (c EndCause) String() string { return causeNames[c] }

// MarshalText writes the name.
func (c EndCause) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText reads a name; the empty text is no cause.
func (c *EndCause) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*c = 0
		return nil
	}
	for cause, name := range causeNames {
		if name == string(text) {
			*c = cause
			return nil
		}
	}
	return fmt.Errorf("decode end cause: %q is none", text)
}

// End says how a command or a lease ended.
type End struct {
	Cause    EndCause `json:"cause"`
	ExitCode int      `json:"exit_code"` // with CauseExited
	Signal   int      `json:"signal"`    // with CauseSignalled
	// StartCode is 125, 126 or 127 when the command never ran.
	StartCode int `json:"start_code"`
	// Witness is kernel, or init (the tenant's word) for code and signal.
	Witness string `json:"witness"`
	Detail  string `json:"detail"`
	// Descendants of a command that were alive after it ended.
	Descendants int   `json:"descendants"`
	Usage       Usage `json:"usage"`
}

// Usage is jail.Usage and what the supervisor itself counts.
type Usage struct {
	jail.Usage

	Wall        time.Duration `json:"wall_ns"`
	OutputBytes int64         `json:"output_bytes"`
}

// sigkill is Linux's number, whatever this is built on.
const sigkill = 9

// witnessKernel is jail.ExecEnd.Witness when nobody inside has a say.
const witnessKernel = "kernel"

// act is what the supervisor did to end a command; the zero value is nothing.
type act struct {
	cause  EndCause
	detail string
}

// composeEnd says how a command ended, from what the host saw and what the
// supervisor had done before it saw it. The first line that holds decides:
//
//  1. the output limit was passed: output was cut, whatever came after;
//  2. the command never ran: its start error;
//  3. the supervisor ended it (time, lease, client): only if SIGKILL is what
//     ended it, or if nobody but init vouches for another end;
//  4. the kernel ended it for a forbidden system call;
//  5. the kernel ended it for memory: an OOM kill was counted in its own
//     group, and SIGKILL is what ended it;
//  6. PID 1 of the sandbox died and took it along: as 3, but the reasons 4
//     and 5 are closer to the truth;
//  7. a signal; 8. its exit code.
//
// Code and signal are cut to what a wait status can hold: they may be init's
// word.
func composeEnd(seen jail.ExecEnd, did act) End {
	seen.ExitCode, seen.Signal = seen.ExitCode&0xff, seen.Signal&0x7f
	end := End{
		Witness:     seen.Witness,
		Descendants: seen.Descendants,
		Usage:       Usage{Usage: seen.Usage},
	}
	killed := seen.Signal == sigkill
	ended := did.cause != 0 && (killed || seen.Witness != witnessKernel)
	switch {
	case did.cause == CauseOutputExceeded:
		end.Cause, end.Detail = did.cause, did.detail
	case seen.Start != nil:
		startEnd(&end, seen.Start)
	case ended && did.cause != CauseInfrastructure:
		end.Cause, end.Detail = did.cause, did.detail
	case seen.SeccompKilled:
		end.Cause = CauseSeccompKilled
	case seen.OOMKills > 0 && killed:
		end.Cause = CauseOOMKilled
	case ended:
		end.Cause, end.Detail = did.cause, did.detail
	case seen.Signal != 0:
		end.Cause, end.Signal = CauseSignalled, seen.Signal
	default:
		end.Cause, end.ExitCode = CauseExited, seen.ExitCode
	}
	return end
}

// The container convention's codes for commands that never ran.
const (
	codeNoStart  = 125
	codeNotExec  = 126
	codeNotFound = 127
)

// startEnd follows the container convention: 126 and 127 are the command's
// own exit as a shell would give it; 125 is ours.
func startEnd(end *End, start *jail.StartError) {
	end.StartCode, end.Detail = start.Code, start.Error()
	switch start.Code {
	case codeNotExec, codeNotFound:
		end.Cause, end.ExitCode = CauseExited, start.Code
	default:
		end.Cause, end.StartCode = CauseInfrastructure, codeNoStart
		end.Witness = ""
	}
}
