package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc/codes"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"cordon/internal/fault"
	"cordon/internal/peer"
	"cordon/supervisor/hostpolicy"
)

// firstMessageTimeout is how long a call may keep its place before the first
// message is here.
const firstMessageTimeout = 10 * time.Second

// maxMethodLen bounds the name of a method that does not exist in the log.
const maxMethodLen = 64

// admit is the first half of the chain. grpc runs it when a call's headers
// are here and nothing of its message is: interceptors would run only after
// that, and whoever may call nothing could have any number of messages held.
//
// It runs in the goroutine that reads the connection, so nothing in it waits.
// Rate comes before the table, and lines are thinned out, so that a flood of
// calls is no flood of lines.
func (ch *chain) admit(ctx context.Context, info *tap.Info) (_ context.Context, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = errStatus(ctx, ch.log, panicked(methodName(info.FullMethodName), v))
		}
	}()
	c := &call{method: info.FullMethodName}
	if c.peer, err = identify(ctx); err != nil {
		return ctx, errStatus(ctx, ch.log, err)
	}
	c.tenants = ch.tenants(c.caller())
	c.kind = kindOf(c.peer, c.tenants)
	if err := ch.throttle(ctx, c); err != nil {
		return ctx, errStatus(ctx, ch.log, err)
	}
	row, err := c.authorize()
	if err != nil {
		ch.limit.give(c.account())
		err = errStatus(ctx, ch.log, err)
		ch.noteRefused(ctx, c, err)
		return ctx, err
	}
	return ch.open(ctx, c, row.ceiling), nil
}

func identify(ctx context.Context) (peer.Info, error) {
	p, ok := grpcpeer.FromContext(ctx)
	if !ok {
		return peer.Info{}, errors.New("identify caller: no peer in the call's context")
	}
	auth, ok := p.AuthInfo.(peerAuth)
	if !ok {
		return peer.Info{}, fmt.Errorf("identify caller: %T is not a Unix peer", p.AuthInfo)
	}
	return auth.info, nil
}

func kindOf(p peer.Info, tenants []hostpolicy.Tenant) kind {
	switch {
	case p.UID == 0:
		return kindRoot
	case len(tenants) > 0:
		return kindTenant
	default:
		return kindOther
	}
}

func (ch *chain) throttle(ctx context.Context, c *call) error {
	tell, err := ch.limit.take(c.account())
	if tell > 0 {
		ch.log.LogAttrs(ctx, slog.LevelWarn, "calls refused", slog.Uint64(keyUID, uint64(c.peer.UID)),
			slog.Int64(keyPID, int64(c.peer.PID)), slog.Int(keyCount, tell), errAttr(err))
	}
	return err
}

// authorize returns the method's row if it admits the caller.
func (c *call) authorize() (rule, error) {
	row, ok := methodTable[c.method]
	if !ok {
		return rule{}, fault.New(fault.Unsupported, c.method, "this daemon has no such method", "use the API version of this daemon (cordon version)")
	}
	if !row.admits(c.kind) {
		remedy := "have the operator list this user under a tenant's peers in " + hostpolicy.Path
		if c.kind != kindOther {
			remedy = "call it as root"
		}
		return rule{}, fault.New(fault.PermissionDenied, c.method, fmt.Sprintf("uid %d may not call it", c.peer.UID), remedy)
	}
	return row, nil
}

// open returns the context of an admitted call, which has a place in its
// peer's account until begin takes that over or the call ends.
func (ch *chain) open(ctx context.Context, c *call, limit time.Duration) context.Context {
	bounded, cancel := bound(ctx, limit)
	c.late = time.AfterFunc(ch.patience, cancel)
	context.AfterFunc(ctx, func() { ch.abandon(ctx, c) })
	return context.WithValue(bounded, callKey{}, c)
}

// abandon gives back the place of a call that ended before a handler could
// start: its message did not come, or was none.
func (ch *chain) abandon(ctx context.Context, c *call) {
	c.late.Stop()
	if !c.begun.CompareAndSwap(false, true) {
		return
	}
	ch.limit.give(c.account())
	ch.noteRefused(ctx, c, status.Error(codes.Canceled, "ended before its message was here"))
}

// noteRefused writes the audit line of a call that reached no handler, or adds
// it to the count of the next such line.
func (ch *chain) noteRefused(ctx context.Context, c *call, err error) {
	if n := ch.limit.refused(c.account()); n > 0 {
		ch.note(ctx, c, err, slog.Int(keyCount, n))
	}
}

// bound ends a call's context at its ceiling, and with the call. Only before
// the call starts does that also end a Send or Recv that the other side keeps
// waiting: grpc waits on this context and on no other.
func bound(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	var bounded context.Context
	var cancel context.CancelFunc
	if limit == whileLeased {
		bounded, cancel = context.WithCancel(ctx)
	} else {
		bounded, cancel = context.WithTimeout(ctx, limit)
	}
	context.AfterFunc(ctx, cancel) // grpc cancels ctx when the call ends
	return bounded, cancel
}

// methodName is a method's name for the log.
func methodName(method string) string {
	if _, ok := methodTable[method]; ok {
		return method
	}
	return clipTo(maxMethodLen, method)
}
