package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	"cordon/internal/fault"
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

// call is what the chain knows about one call.
type call struct {
	method  string
	peer    peer.Info
	kind    kind
	tenants []hostpolicy.Tenant // that the peer may speak for
	lease   string              // set by the handler, for the audit
}

// caller is the peer as the supervisor knows callers.
func (c *call) caller() hostpolicy.Peer {
	return hostpolicy.Peer{UID: c.peer.UID, GID: c.peer.GID, Groups: c.peer.Groups}
}

// chain runs each call through the same steps in the same order. It is safe
// for concurrent use.
type chain struct {
	log     *slog.Logger
	tenants func(hostpolicy.Peer) []hostpolicy.Tenant
	limit   *callLimit
}

// step does its part of a call around next, or refuses it.
type step func(ctx context.Context, c *call, next func(context.Context) error) error

// steps is the order of the chain. Size limits and the deadline's ceiling come
// before it, in grpc itself (see ServerOptions); strict decode and the handler
// come after it.
//
// Rate comes before audit, so that a flood of calls is no flood of lines; the
// table comes after it, so that every refusal leaves one.
func (ch *chain) steps() []step {
	return []step{ch.guard, ch.identify, ch.throttle, ch.audit, ch.authorize}
}

func (ch *chain) run(ctx context.Context, method string, handler func(context.Context) error) error {
	c := &call{method: method}
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

// panicked makes an error of a recovered value. Call it in the deferred
// function, where the stack still shows the place.
func panicked(where string, v any) error {
	return fmt.Errorf("%s: panic: %v\n%s", where, v, debug.Stack())
}

func (ch *chain) identify(ctx context.Context, c *call, next func(context.Context) error) error {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return errors.New("identify caller: no peer in the call's context")
	}
	auth, ok := p.AuthInfo.(peerAuth)
	if !ok {
		return fmt.Errorf("identify caller: %T is not a Unix peer", p.AuthInfo)
	}
	c.peer = auth.info
	c.tenants = ch.tenants(c.caller())
	switch {
	case c.peer.UID == 0:
		c.kind = kindRoot
	case len(c.tenants) > 0:
		c.kind = kindTenant
	default:
		c.kind = kindOther
	}
	return next(context.WithValue(ctx, callKey{}, c))
}

func (ch *chain) throttle(ctx context.Context, c *call, next func(context.Context) error) error {
	tell, err := ch.limit.take(c.peer.UID)
	if tell > 0 {
		ch.log.LogAttrs(ctx, slog.LevelWarn, "calls refused", slog.Uint64(keyUID, uint64(c.peer.UID)),
			slog.Int64(keyPID, int64(c.peer.PID)), slog.Int(keyCount, tell), slog.Any(keyError, err))
	}
	if err != nil {
		return err
	}
	defer ch.limit.give(c.peer.UID)
	return next(ctx)
}

// audit writes one line for each call, when it ends. Nothing of the request
// but the lease's id is in it: arguments and environment may hold secrets.
func (ch *chain) audit(ctx context.Context, c *call, next func(context.Context) error) (err error) {
	start := time.Now()
	err = status.Error(codes.Internal, "panic") // what is logged if next does not return
	defer func() {
		ch.log.LogAttrs(ctx, slog.LevelInfo, "call",
			slog.String(keyMethod, c.method),
			slog.String(keyCode, status.Code(err).String()),
			slog.Uint64(keyUID, uint64(c.peer.UID)),
			slog.Uint64(keyGID, uint64(c.peer.GID)),
			slog.Int64(keyPID, int64(c.peer.PID)),
			slog.String(keyKind, c.kind.String()),
			slog.String(keyLease, c.lease),
			slog.Duration(keyDuration, time.Since(start)))
	}()
	return errStatus(ctx, ch.log, next(ctx))
}

func (ch *chain) authorize(ctx context.Context, c *call, next func(context.Context) error) error {
	row, ok := methodTable[c.method]
	if !ok {
		return fault.New(fault.Unsupported, c.method, "this daemon has no such method", "use the API version of this daemon (cordon version)")
	}
	if !row.admits(c.kind) {
		remedy := "have the operator list this user under a tenant's peers in " + hostpolicy.Path
		if c.kind != kindOther {
			remedy = "call it as root"
		}
		return fault.New(fault.PermissionDenied, c.method, fmt.Sprintf("uid %d may not call it", c.peer.UID), remedy)
	}
	return next(ctx)
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
		return handler(srv, &strictStream{ServerStream: ss, ctx: ctx})
	})
}

// strictStream is a stream that refuses messages strict does not like.
type strictStream struct {
	grpc.ServerStream
	ctx context.Context // the call's, with what the chain added
}

// Context returns the call's context.
func (s *strictStream) Context() context.Context { return s.ctx }

// RecvMsg receives and checks one message.
func (s *strictStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
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

// ceiling bounds each call's context before the call starts. Only here does
// that also end a Send or Recv that the other side keeps waiting: grpc waits
// on this context and on no other.
func ceiling(limitOf func(method string) time.Duration) tap.ServerInHandle {
	return func(ctx context.Context, info *tap.Info) (context.Context, error) {
		limit := limitOf(info.FullMethodName)
		if limit == whileLeased {
			return ctx, nil
		}
		bounded, cancel := context.WithTimeout(ctx, limit)
		context.AfterFunc(ctx, cancel) // grpc cancels ctx when the call ends
		return bounded, nil
	}
}
