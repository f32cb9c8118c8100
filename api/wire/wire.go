// Package wire turns the messages of api/v1 into the project's own values and
// back, for the server (api) and the client (api/client) alike, and holds the
// sizes both must agree on.
//
// It needs no privilege and touches nothing but its arguments; everything is
// safe for concurrent use. It checks that a value can be represented, not that
// it is allowed: that is supervisor/envelope and supervisor/hostpolicy.
package wire

import (
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	cordonv1 "cordon/api/v1"
	"cordon/internal/fault"
)

const (
	// MaxMessageBytes bounds every message that the server takes.
	MaxMessageBytes = 1 << 20
	// MaxReplyBytes bounds every message that it sends: a record with
	// thousands of destinations fits.
	MaxReplyBytes = 16 << 20
	// ChunkBytes is how much data both sides put into one message of a stream.
	// With its framing, the message fits a 32 KiB buffer: grpc keeps buffers of
	// that size, and takes one of 1 MiB for the next byte.
	ChunkBytes = 32<<10 - 512
	// MaxChunkBytes is how much the server takes in one message of a stream,
	// and how much standard input it acknowledges at once.
	MaxChunkBytes = 64 << 10
	// StdinWindow is how much standard input the server holds for a command
	// that does not read it before the stream stands still.
	StdinWindow = 256 << 10
)

const (
	causePrefix = "END_CAUSE_"
	statePrefix = "LEASE_STATE_"
)

// CauseName is the cause as it is written in records, as "oom_killed"; "" for
// unspecified and unknown ones.
func CauseName(c cordonv1.EndCause) string {
	return enumName(causePrefix, cordonv1.EndCause_name[int32(c)])
}

// Cause is the inverse of CauseName.
func Cause(name string) cordonv1.EndCause {
	return cordonv1.EndCause(cordonv1.EndCause_value[enumConst(causePrefix, name)])
}

// StateName is the lease state as it is written in records, as "active"; ""
// for unspecified and unknown ones.
func StateName(s cordonv1.LeaseState) string {
	return enumName(statePrefix, cordonv1.LeaseState_name[int32(s)])
}

// State is the inverse of StateName.
func State(name string) cordonv1.LeaseState {
	return cordonv1.LeaseState(cordonv1.LeaseState_value[enumConst(statePrefix, name)])
}

func enumName(prefix, constant string) string {
	name := strings.ToLower(strings.TrimPrefix(constant, prefix))
	if name == "unspecified" {
		return ""
	}
	return name
}

func enumConst(prefix, name string) string { return prefix + strings.ToUpper(name) }

// Time converts a time; the zero time is absent.
func Time(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// TimeOf is the inverse of Time, in UTC.
func TimeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// Duration converts a duration; zero is absent.
func Duration(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// DurationOf is the inverse of Duration. What time.Duration cannot hold is a
// fault.InvalidArgument about field.
func DurationOf(d *durationpb.Duration, field string) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	if err := d.CheckValid(); err != nil {
		return 0, fault.New(fault.InvalidArgument, field, "is not a valid duration", "give seconds and nanos of the same sign, nanos below 10^9")
	}
	v := d.AsDuration()
	if durationpb.New(v).GetSeconds() != d.GetSeconds() {
		return 0, fault.New(fault.InvalidArgument, field, "is longer than 292 years", "give a shorter duration")
	}
	return v, nil
}
