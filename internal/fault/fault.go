// Package fault is the one error type that crosses a process boundary: a
// stable code, the field or fact it is about, the cause, and what to do.
//
// Leaf packages return one where a caller's mistake or a host's lack is the
// reason; anything else is an ordinary wrapped error, which the api answers
// as "internal" without its text. Values are immutable and safe to share.
package fault

import (
	"errors"
	"fmt"
)

// Code is what a program may branch on. Codes are never renamed.
type Code string

// The codes of this API. The comment gives the gRPC status each one travels
// with.
const (
	InvalidArgument  Code = "invalid_argument"   // InvalidArgument
	InvalidEnvelope  Code = "invalid_envelope"   // InvalidArgument
	InvalidPolicy    Code = "invalid_policy"     // FailedPrecondition
	UnknownImage     Code = "unknown_image"      // NotFound
	UnknownInput     Code = "unknown_input"      // NotFound
	DigestMismatch   Code = "digest_mismatch"    // InvalidArgument
	NotFound         Code = "not_found"          // NotFound
	PermissionDenied Code = "permission_denied"  // PermissionDenied
	PolicyExceeded   Code = "policy_exceeded"    // PermissionDenied
	Unsupported      Code = "unsupported"        // Unimplemented
	MissingFeature   Code = "missing_feature"    // FailedPrecondition
	HostFull         Code = "host_full"          // ResourceExhausted
	DiskFull         Code = "disk_full"          // ResourceExhausted
	TooLarge         Code = "too_large"          // ResourceExhausted
	Conflict         Code = "conflict"           // AlreadyExists
	WrongState       Code = "wrong_state"        // FailedPrecondition
	ReadBackMismatch Code = "read_back_mismatch" // Internal
	NotDeclared      Code = "not_declared"       // PermissionDenied
	NotRegular       Code = "not_regular"        // FailedPrecondition
	HostileImage     Code = "hostile_image"      // InvalidArgument
	DaemonRunning    Code = "daemon_running"     // Unavailable
	NeedsRoot        Code = "needs_root"         // PermissionDenied
)

// Fault is an error a caller can act on.
type Fault struct {
	Code   Code
	Field  string // the field or the fact, e.g. resources.memory_bytes
	Cause  string // lower case, no period
	Remedy string // what to do, imperative
	Err    error  // the wrapped cause, or nil; never shown to a remote caller
}

// New returns a fault without a wrapped cause.
func New(code Code, field, cause, remedy string) *Fault {
	return &Fault{Code: code, Field: field, Cause: cause, Remedy: remedy}
}

// Wrap returns a fault that keeps err for logs and errors.Is.
func Wrap(err error, code Code, field, cause, remedy string) *Fault {
	return &Fault{Code: code, Field: field, Cause: cause, Remedy: remedy, Err: err}
}

// Error is "field: cause: wrapped (remedy)".
func (f *Fault) Error() string {
	s := f.Cause
	if f.Field != "" {
		s = f.Field + ": " + s
	}
	if f.Err != nil {
		s = fmt.Sprintf("%s: %v", s, f.Err)
	}
	if f.Remedy != "" {
		s += " [" + f.Remedy + "]"
	}
	return s
}

// Unwrap returns the wrapped cause.
func (f *Fault) Unwrap() error { return f.Err }

// CodeOf returns the code of the first fault in err's tree, or "".
func CodeOf(err error) Code {
	if f, ok := errors.AsType[*Fault](err); ok {
		return f.Code
	}
	return ""
}
