package api

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	cordonv1 "cordon/api/v1"
	"cordon/internal/fault"
)

// Codes of ErrorDetail that no fault has: they are about the call, not about
// what was asked.
const (
	codeInternal  = "internal"
	codeCancelled = "cancelled"
	codeDeadline  = "deadline_exceeded"
)

// Bounds of an error's texts: all of them travel in one header, of which
// clients take 16 KiB and more.
const (
	maxDetailLen  = 512
	maxDetails    = 8
	maxMessageLen = 2048
	maxStack      = 16 << 10 // of a panic, in the log
)

// faultCodes is the gRPC status of each fault code.
var faultCodes = map[fault.Code]codes.Code{
	fault.InvalidArgument:  codes.InvalidArgument,
	fault.InvalidEnvelope:  codes.InvalidArgument,
	fault.InvalidPolicy:    codes.FailedPrecondition,
	fault.UnknownImage:     codes.NotFound,
	fault.UnknownInput:     codes.NotFound,
	fault.DigestMismatch:   codes.InvalidArgument,
	fault.NotFound:         codes.NotFound,
	fault.PermissionDenied: codes.PermissionDenied,
	fault.PolicyExceeded:   codes.PermissionDenied,
	fault.Unsupported:      codes.Unimplemented,
	fault.MissingFeature:   codes.FailedPrecondition,
	fault.HostFull:         codes.ResourceExhausted,
	fault.DiskFull:         codes.ResourceExhausted,
	fault.TooLarge:         codes.ResourceExhausted,
	fault.Conflict:         codes.AlreadyExists,
	fault.WrongState:       codes.FailedPrecondition,
	fault.ReadBackMismatch: codes.Internal,
	fault.NotDeclared:      codes.PermissionDenied,
	fault.NotRegular:       codes.FailedPrecondition,
	fault.HostileImage:     codes.InvalidArgument,
	fault.DaemonRunning:    codes.Unavailable,
	fault.NeedsRoot:        codes.PermissionDenied,
}

// errStatus is the one place where an error becomes a gRPC status.
//
// A fault keeps its code, field, cause and remedy, and nothing of what it
// wraps; of joined faults the first decides the code, and each is a detail.
// Everything else tells a caller no more than an id, under which the cause is
// logged here, once.
func errStatus(ctx context.Context, log *slog.Logger, err error) error {
	if err == nil {
		return nil
	}
	faults, whole := collect(err, nil)
	if len(faults) > 0 {
		code := faultCodes[faults[0].Code]
		if !whole || code == codes.Internal {
			log.LogAttrs(ctx, slog.LevelWarn, "call refused", slog.String(keyFault, string(faults[0].Code)), errAttr(err))
		}
		return detailed(code, details(faults))
	}
	// What was a status already, or is grpc's own verdict about a stream (Recv,
	// Send), comes unwrapped; a wrapped one is somebody else's.
	if s, ok := err.(interface{ GRPCStatus() *status.Status }); ok {
		return s.GRPCStatus().Err()
	}
	// Only the call's own end counts: a deadline inside the daemon is ours.
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return detailed(codes.Canceled, about(codeCancelled, "cancelled by the caller", ""))
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return detailed(codes.DeadlineExceeded, about(codeDeadline, "took longer than its deadline allows",
			"allow more time, or see whether the host is overloaded"))
	}
	id := newID()
	attrs := []slog.Attr{slog.String(keyID, id), errAttr(err)}
	if p, ok := errors.AsType[*panicError](err); ok {
		attrs = append(attrs, slog.String(keyStack, clipTo(maxStack, string(p.stack))))
	}
	log.LogAttrs(ctx, slog.LevelError, "internal error", attrs...)
	return detailed(codes.Internal, about(codeInternal, "internal error", "see the daemon's log (id "+id+")"))
}

// collect gathers the faults of err's tree that have a status, in order. whole
// is false if there is more to err than the caller will see.
func collect(err error, found []*fault.Fault) (faults []*fault.Fault, whole bool) {
	switch e := err.(type) { //nolint:errorlint // this is the walk that errors.As would do
	case *fault.Fault:
		if _, ok := faultCodes[e.Code]; !ok {
			return found, false
		}
		return append(found, e), e.Err == nil
	case interface{ Unwrap() error }:
		return collect(e.Unwrap(), found)
	case interface{ Unwrap() []error }:
		whole = true
		for _, each := range e.Unwrap() {
			var ok bool
			found, ok = collect(each, found)
			whole = whole && ok
		}
		return found, whole
	default:
		return found, false
	}
}

func details(faults []*fault.Fault) []*cordonv1.ErrorDetail {
	var out []*cordonv1.ErrorDetail
	for _, f := range faults[:min(len(faults), maxDetails)] {
		out = append(out, &cordonv1.ErrorDetail{
			Code: string(f.Code), Field: clip(f.Field), Cause: clip(f.Cause), Remedy: clip(f.Remedy),
		})
	}
	return out
}

func about(code, cause, remedy string) []*cordonv1.ErrorDetail {
	return []*cordonv1.ErrorDetail{{Code: code, Field: "call", Cause: cause, Remedy: remedy}}
}

// detailed makes a status whose message says the same as its details, for
// clients that show only the message.
func detailed(code codes.Code, list []*cordonv1.ErrorDetail) error {
	texts := make([]string, len(list))
	attached := make([]protoadapt.MessageV1, len(list))
	for i, d := range list {
		texts[i] = d.GetCause()
		if d.GetField() != "" {
			texts[i] = d.GetField() + ": " + texts[i]
		}
		if d.GetRemedy() != "" {
			texts[i] += " [" + d.GetRemedy() + "]"
		}
		attached[i] = protoadapt.MessageV1Of(d)
	}
	st := status.New(code, clipTo(maxMessageLen, strings.Join(texts, "; ")))
	with, err := st.WithDetails(attached...)
	if err != nil {
		return st.Err() // cannot be: the details are valid UTF-8 and code is not OK
	}
	return with.Err()
}

// errAttr is an error in the log. Callers have a hand in its text.
func errAttr(err error) slog.Attr { return slog.String(keyError, clipTo(maxLogged, err.Error())) }

func clip(s string) string { return clipTo(maxDetailLen, s) }

func clipTo(n int, s string) string {
	if len(s) > n {
		s = s[:n] + "..."
	}
	return strings.ToValidUTF8(s, "?")
}

// newID names one internal error, in the log and to the caller.
func newID() string {
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand, since Go 1.24)
	return hex.EncodeToString(b[:])
}
