package client

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cordonv1 "cordon/api/v1"
)

// Code is what a program may branch on. Codes are never renamed.
type Code string

// The codes that come with an Error.
const (
	InvalidArgument  Code = "invalid_argument"
	InvalidEnvelope  Code = "invalid_envelope"
	InvalidPolicy    Code = "invalid_policy"
	UnknownImage     Code = "unknown_image"
	UnknownInput     Code = "unknown_input"
	DigestMismatch   Code = "digest_mismatch"
	NotFound         Code = "not_found"
	PermissionDenied Code = "permission_denied"
	PolicyExceeded   Code = "policy_exceeded"
	Unsupported      Code = "unsupported"
	MissingFeature   Code = "missing_feature"
	HostFull         Code = "host_full"
	DiskFull         Code = "disk_full"
	TooLarge         Code = "too_large"
	Conflict         Code = "conflict"
	WrongState       Code = "wrong_state"
	ReadBackMismatch Code = "read_back_mismatch"
	NotDeclared      Code = "not_declared"
	NotRegular       Code = "not_regular"
	HostileImage     Code = "hostile_image"
	DaemonRunning    Code = "daemon_running"
	NeedsRoot        Code = "needs_root"

	// Unavailable: there is no daemon, or it went away in mid-call.
	Unavailable Code = "unavailable"
	// Cancelled and DeadlineExceeded wrap the context's error.
	Cancelled        Code = "cancelled"
	DeadlineExceeded Code = "deadline_exceeded"
	// Internal: the daemon's log has the cause, under the id in Remedy.
	Internal Code = "internal"
)

// Error is what went wrong, and what to do about it.
type Error struct {
	Code   Code
	Field  string // the field or the fact, as resources.memory_bytes
	Cause  string
	Remedy string // may be empty
	// Also are further reasons, when the daemon found several; nil otherwise.
	Also []*Error

	err error // for errors.Is: the context's or the operating system's
}

// Error is "field: cause [remedy]", for each reason.
func (e *Error) Error() string {
	s := e.Cause
	if e.Field != "" {
		s = e.Field + ": " + s
	}
	if e.Remedy != "" {
		s += " [" + e.Remedy + "]"
	}
	for _, other := range e.Also {
		s += "; " + other.Error()
	}
	return s
}

// Unwrap returns context.Canceled, context.DeadlineExceeded, the operating
// system's error, or nil.
func (e *Error) Unwrap() error { return e.err }

// CodeOf returns the code of the Error in err's tree, or "".
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ""
}

// answer turns what a call returned into nil or an *Error.
func answer(err error) error {
	if err == nil {
		return nil
	}
	st := status.Convert(err)
	if e := fromDetail(st); e != nil {
		return e
	}
	// No detail: the answer is grpc's own, not the daemon's.
	e := &Error{Field: "call", Cause: st.Message()}
	switch st.Code() {
	case codes.Canceled:
		e.Code, e.Cause, e.err = Cancelled, "cancelled", context.Canceled
	case codes.DeadlineExceeded:
		e.Code, e.Cause, e.err = DeadlineExceeded, "took longer than its deadline allows", context.DeadlineExceeded
	case codes.Unavailable:
		e.Code, e.Field, e.Remedy = Unavailable, "cordond", "see whether it still runs (systemctl status cordond)"
	case codes.ResourceExhausted:
		e.Code, e.Remedy = TooLarge, "send less in one message"
	case codes.Unimplemented:
		e.Code, e.Remedy = Unsupported, "use the API version of this daemon (cordon version)"
	case codes.OK, codes.Unknown, codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.PermissionDenied,
		codes.FailedPrecondition, codes.Aborted, codes.OutOfRange, codes.Internal, codes.DataLoss, codes.Unauthenticated:
		e.Code = Internal
	}
	return e
}

// fromDetail is nil for a status without ErrorDetail.
func fromDetail(st *status.Status) *Error {
	var first *Error
	for _, d := range st.Details() {
		detail, ok := d.(*cordonv1.ErrorDetail)
		if !ok {
			continue
		}
		e := &Error{
			Code:   Code(detail.GetCode()),
			Field:  detail.GetField(),
			Cause:  detail.GetCause(),
			Remedy: detail.GetRemedy(),
		}
		switch e.Code { //nolint:exhaustive // the two that wrap something
		case Cancelled:
			e.err = context.Canceled
		case DeadlineExceeded:
			e.err = context.DeadlineExceeded
		}
		if first == nil {
			first = e
			continue
		}
		first.Also = append(first.Also, e)
	}
	return first
}

// broken is a daemon that does not keep the protocol.
func broken(what string) error {
	return &Error{
		Code: Internal, Field: "cordond", Cause: "unexpected answer: " + what,
		Remedy: "use the API version of this daemon (cordon version)",
	}
}

// ended turns the end of a stream that should have gone on into an error.
func ended(err error, missing string) error {
	if errors.Is(err, io.EOF) {
		return broken("the stream ended before " + missing)
	}
	return answer(err)
}
