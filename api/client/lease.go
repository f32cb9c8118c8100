package client

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"iter"
	"time"

	cordonv1 "cordon/api/v1"
	"cordon/api/wire"
	"cordon/supervisor/envelope"
)

// AcquireOptions are the rest of what Acquire takes.
type AcquireOptions struct {
	// Key makes Acquire safe to repeat: the same key with the same envelope is
	// the same lease. Optional; default: a new random one.
	Key string
}

// Acquire leases a sandbox and returns it running. What e leaves empty is the
// default; the lease's Envelope has it written out.
func (c *Client) Acquire(ctx context.Context, e envelope.Envelope, opt AcquireOptions) (*Lease, error) {
	if opt.Key == "" {
		opt.Key = rand.Text()
	}
	resp, err := c.rpc.Acquire(ctx, &cordonv1.AcquireRequest{Envelope: wire.Envelope(e), IdempotencyKey: opt.Key})
	if err != nil {
		return nil, answer(err)
	}
	l := c.Lease(resp.GetLease().GetId(), resp.GetLeaseSecret())
	l.Replayed = resp.GetReplayed()
	l.Acquired = leaseInfo(resp.GetLease())
	for _, ck := range resp.GetReadBack() {
		l.ReadBack = append(l.ReadBack, Check{Name: ck.GetName(), Want: ck.GetWant(), Got: ck.GetGot(), OK: ck.GetOk()})
	}
	if l.Envelope, err = wire.EnvelopeOf(resp.GetEnvelope()); err != nil {
		// Without it the caller could not know what holds; the lease is made
		// all the same, so it is returned too, to be released.
		return l, broken(err.Error())
	}
	return l, nil
}

// Lease returns a handle on a lease that was acquired earlier. Nothing is
// asked of the daemon yet.
func (c *Client) Lease(id, secret string) *Lease { return &Lease{c: c, id: id, secret: secret} }

// Lease is one leased sandbox, and the right to use it.
type Lease struct {
	c          *Client
	id, secret string

	// The rest is set by Acquire only.

	// Replayed is true when an earlier call with the same key made the lease.
	// It has no secret then, and cannot be used through this handle.
	Replayed bool
	Acquired LeaseInfo
	Envelope envelope.Envelope
	ReadBack []Check // what the kernel said about the sandbox
}

// ID names the lease; it is no secret.
func (l *Lease) ID() string { return l.id }

// Secret is the right to use the lease. Whoever has it and is the same user
// can do all that this handle can: keep it, do not log it.
func (l *Lease) Secret() string { return l.secret }

func (l *Lease) ref() *cordonv1.LeaseRef {
	return &cordonv1.LeaseRef{LeaseId: l.id, LeaseSecret: l.secret}
}

// Get returns the lease as it is now.
func (l *Lease) Get(ctx context.Context) (LeaseInfo, error) {
	resp, err := l.c.rpc.Get(ctx, &cordonv1.GetRequest{Ref: l.ref()})
	if err != nil {
		return LeaseInfo{}, answer(err)
	}
	return leaseInfo(resp.GetLease()), nil
}

// Renew moves the expiry to extend from now: never back, and never past
// MaxExpiresAt.
func (l *Lease) Renew(ctx context.Context, extend time.Duration) (LeaseInfo, error) {
	resp, err := l.c.rpc.Renew(ctx, &cordonv1.RenewRequest{Ref: l.ref(), Extend: wire.Duration(extend)})
	if err != nil {
		return LeaseInfo{}, answer(err)
	}
	return leaseInfo(resp.GetLease()), nil
}

// Release ends the lease, whatever still runs in it, and returns its record.
// Nothing of the run is left then, unless the record's State says otherwise.
func (l *Lease) Release(ctx context.Context) (Record, error) {
	resp, err := l.c.rpc.Release(ctx, &cordonv1.ReleaseRequest{Ref: l.ref()})
	if err != nil {
		return Record{}, answer(err)
	}
	return record(resp.GetRecord()), nil
}

// Watch yields the lease's events from sequence number from on, those of the
// past first, until the lease is closed, the loop is left, or ctx ends. An
// error is yielded last.
func (l *Lease) Watch(ctx context.Context, from uint64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // ends the stream when the loop is left
		stream, err := l.c.rpc.Watch(ctx, &cordonv1.WatchRequest{Ref: l.ref(), FromSequence: from})
		if err != nil {
			yield(Event{}, answer(err))
			return
		}
		for {
			ev, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(Event{}, answer(err))
				return
			}
			e := Event{Sequence: ev.GetSequence(), At: wire.TimeOf(ev.GetAt()), Kind: ev.GetKind(), Attributes: ev.GetAttributes()}
			if !yield(e, nil) {
				return
			}
		}
	}
}

// Leases lists the caller's own leases, newest first.
func (c *Client) Leases(ctx context.Context) ([]LeaseInfo, error) {
	resp, err := c.rpc.List(ctx, &cordonv1.ListRequest{})
	if err != nil {
		return nil, answer(err)
	}
	var out []LeaseInfo
	for _, l := range resp.GetLeases() {
		out = append(out, leaseInfo(l))
	}
	return out, nil
}

// Record returns the signed record of a lease that has ended.
func (c *Client) Record(ctx context.Context, leaseID string) (Record, error) {
	resp, err := c.rpc.GetRecord(ctx, &cordonv1.GetRecordRequest{LeaseId: leaseID})
	if err != nil {
		return Record{}, answer(err)
	}
	return record(resp.GetRecord()), nil
}
