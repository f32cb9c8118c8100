package api

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"cordon/internal/peer"
	"cordon/supervisor/hostpolicy"
)

// Keys of what this package logs.
const (
	keyMethod   = "method"
	keyUID      = "uid"
	keyGID      = "gid"
	keyPID      = "pid"
	keyKind     = "kind"
	keyLease    = "lease"
	keyCode     = "code"
	keyDuration = "duration"
	keyCount    = "count"
	keyError    = "error"
	keyFault    = "fault"
	keyID       = "id"
	keyStack    = "stack"
)

// maxLogged bounds what one attribute of a log line takes of what others wrote.
const maxLogged = 256

// call is what the chain knows about one call.
type call struct {
	method  string
	peer    peer.Info
	kind    kind
	tenants []hostpolicy.Tenant // that the peer may speak for
	lease   string              // set by the handler, for the audit

	// begun is set by the one that gives the call's place back: its second
	// half, or the end of a call that never got there.
	begun atomic.Bool
	late  *time.Timer // ends a call whose first message does not come
}

// caller is the peer as the supervisor knows callers.
func (c *call) caller() hostpolicy.Peer { return callerFrom(c.peer) }

func callerFrom(p peer.Info) hostpolicy.Peer {
	return hostpolicy.Peer{UID: p.UID, GID: p.GID, Groups: p.Groups}
}

func (c *call) account() account { return account{uid: c.peer.UID, kind: c.kind} }

// received notes that the caller's first message is here.
func (c *call) received() {
	if c.late != nil {
		c.late.Stop()
	}
}

// chain runs each call through the same steps in the same order: admit when
// its headers are here (admit.go), and steps when a handler could start. It is
// safe for concurrent use.
type chain struct {
	log      *slog.Logger
	tenants  func(hostpolicy.Peer) []hostpolicy.Tenant
	limit    *callLimit
	patience time.Duration // for a call's first message
}

// step does its part of a call around next, or refuses it.
type step func(ctx context.Context, c *call, next func(context.Context) error) error

// steps is the order of the chain's second half. Size limits come before it,
// in grpc itself (see ServerOptions); strict decode and the handler come after
// it.
func (ch *chain) steps() []step { return []step{ch.guard, ch.begin, ch.audit} }

func (ch *chain) run(ctx context.Context, method string, handler func(context.Context) error) error {
	c, ok := ctx.Value(callKey{}).(*call)
	if !ok || c.method != method {
		return errStatus(ctx, ch.log, fmt.Errorf("%s: the call was not admitted", methodName(method)))
	}
	next := handler
	for _, s := range slices.Backward(ch.steps()) {
		inner := next
		next = func(ctx context.Context) error { return s(ctx, c, inner) }
	}
	return next(ctx)
}

// guard turns a panic into an internal error, and whatever error the steps
// return into a status.
func (ch *chain) guard(ctx context.Context, c *call, next func(context.Context) error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = errStatus(ctx, ch.log, panicked(c.method, v))
		}
	}()
	return errStatus(ctx, ch.log, next(ctx))
}

// panicError is a recovered panic.
type panicError struct {
	text  string
	stack []byte
}

func (e *panicError) Error() string { return e.text }

// panicked makes an error of a recovered value. Call it in the deferred
// function, where the stack still shows the place.
func panicked(where string, v any) error {
	return &panicError{text: fmt.Sprintf("%s: panic: %v", where, v), stack: debug.Stack()}
}

// begin takes over the call's place from admit, and gives it back at the end.
func (ch *chain) begin(ctx context.Context, c *call, next func(context.Context) error) error {
	if !c.begun.CompareAndSwap(false, true) {
		// It has ended, and its place is given back. Not ctx's own error: that
		// may be nil for a moment yet.
		return status.Error(codes.Canceled, "the call has ended")
	}
	defer ch.limit.give(c.account())
	return next(ctx)
}

// audit writes one line for each call, when it ends. Nothing of the request
// but the lease's id is in it: arguments and environment may hold secrets.
func (ch *chain) audit(ctx context.Context, c *call, next func(context.Context) error) (err error) {
	start := time.Now()
	err = status.Error(codes.Internal, "panic") // what is logged if next does not return
	defer func() { ch.note(ctx, c, err, slog.Duration(keyDuration, time.Since(start))) }()
	return errStatus(ctx, ch.log, next(ctx))
}

// note writes a call's audit line.
func (ch *chain) note(ctx context.Context, c *call, err error, more slog.Attr) {
	ch.log.LogAttrs(ctx, slog.LevelInfo, "call",
		slog.String(keyMethod, methodName(c.method)),
		slog.String(keyCode, status.Code(err).String()),
		slog.Uint64(keyUID, uint64(c.peer.UID)),
		slog.Uint64(keyGID, uint64(c.peer.GID)),
		slog.Int64(keyPID, int64(c.peer.PID)),
		slog.String(keyKind, c.kind.String()),
		slog.String(keyLease, clipTo(maxIDLen, c.lease)),
		more)
}

// callKey is the context key of the *call.
type callKey struct{}

func callOf(ctx context.Context) *call {
	if c, ok := ctx.Value(callKey{}).(*call); ok {
		return c
	}
	return &call{} // a caller of no kind, who may do nothing
}

func (ch *chain) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	callOf(ctx).received()
	var resp any
	err := ch.run(ctx, info.FullMethod, func(ctx context.Context) error {
		err := strictRequest(req)
		if err == nil {
			resp, err = handler(ctx, req)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

func (ch *chain) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return ch.run(ss.Context(), info.FullMethod, func(ctx context.Context) error {
		return handler(srv, &strictStream{ServerStream: ss, ctx: ctx, call: callOf(ctx)})
	})
}

// strictStream is a stream that refuses messages strict does not like.
type strictStream struct {
	grpc.ServerStream
	ctx  context.Context // the call's, with what the chain added
	call *call
}

// Context returns the call's context.
func (s *strictStream) Context() context.Context { return s.ctx }

// RecvMsg receives and checks one message.
func (s *strictStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	s.call.received()
	if err != nil {
		return err
	}
	return strictRequest(m)
}

func strictRequest(m any) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("decode request: %T is not a message", m)
	}
	return strict(msg)
}
