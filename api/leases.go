package api

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"

	cordonv1 "cordon/api/v1"
	"cordon/api/wire"
	"cordon/supervisor"
)

// maxIDLen bounds a lease id in the audit log; whether it is one, the
// supervisor knows.
const maxIDLen = 64

// callerOf is the caller of a call as the supervisor knows callers.
func callerOf(ctx context.Context) supervisor.Caller { return callOf(ctx).caller() }

// leaseRef converts a reference, and notes the lease for the audit.
func leaseRef(ctx context.Context, m *cordonv1.LeaseRef) supervisor.Ref {
	noteLease(ctx, m.GetLeaseId())
	return supervisor.Ref{ID: m.GetLeaseId(), Secret: m.GetLeaseSecret()}
}

func noteLease(ctx context.Context, id string) {
	callOf(ctx).lease = id[:min(len(id), maxIDLen)]
}

// Acquire makes a sandbox.
func (h *handlers) Acquire(ctx context.Context, req *cordonv1.AcquireRequest) (*cordonv1.AcquireResponse, error) {
	env, err := wire.EnvelopeOf(req.GetEnvelope())
	if err != nil {
		return nil, err
	}
	got, err := h.cfg.Supervisor.Acquire(ctx, callerOf(ctx), env, req.GetIdempotencyKey())
	if err != nil {
		return nil, err
	}
	noteLease(ctx, got.Lease.ID)
	resp := &cordonv1.AcquireResponse{
		Lease:       leaseInfo(got.Lease),
		LeaseSecret: got.Secret,
		Envelope:    wire.Envelope(got.Envelope),
		Replayed:    got.Replayed,
	}
	for _, c := range got.ReadBack {
		resp.ReadBack = append(resp.ReadBack, &cordonv1.Check{Name: c.Name, Want: c.Want, Got: c.Got, Ok: c.OK})
	}
	return resp, nil
}

// Renew moves a lease's expiry.
func (h *handlers) Renew(ctx context.Context, req *cordonv1.RenewRequest) (*cordonv1.RenewResponse, error) {
	extend, err := wire.DurationOf(req.GetExtend(), "extend")
	if err != nil {
		return nil, err
	}
	got, err := h.cfg.Supervisor.Renew(ctx, callerOf(ctx), leaseRef(ctx, req.GetRef()), extend)
	if err != nil {
		return nil, err
	}
	return &cordonv1.RenewResponse{Lease: leaseInfo(got)}, nil
}

// Get returns one lease.
func (h *handlers) Get(ctx context.Context, req *cordonv1.GetRequest) (*cordonv1.GetResponse, error) {
	got, err := h.cfg.Supervisor.Get(ctx, callerOf(ctx), leaseRef(ctx, req.GetRef()))
	if err != nil {
		return nil, err
	}
	return &cordonv1.GetResponse{Lease: leaseInfo(got)}, nil
}

// List returns the caller's leases.
func (h *handlers) List(ctx context.Context, _ *cordonv1.ListRequest) (*cordonv1.ListResponse, error) {
	done, err := h.lists.take(ctx, callerOf(ctx).UID)
	if err != nil {
		return nil, err
	}
	defer done()
	got, err := h.cfg.Supervisor.List(ctx, callerOf(ctx))
	if err != nil {
		return nil, err
	}
	resp := &cordonv1.ListResponse{}
	for _, l := range got {
		resp.Leases = append(resp.Leases, leaseInfo(l))
	}
	return resp, nil
}

// Release ends a lease.
func (h *handlers) Release(ctx context.Context, req *cordonv1.ReleaseRequest) (*cordonv1.ReleaseResponse, error) {
	got, err := h.cfg.Supervisor.Release(ctx, callerOf(ctx), leaseRef(ctx, req.GetRef()))
	if err != nil {
		return nil, err
	}
	return &cordonv1.ReleaseResponse{Record: signedRecord(got)}, nil
}

// GetRecord returns the record of a lease that has ended.
func (h *handlers) GetRecord(ctx context.Context, req *cordonv1.GetRecordRequest) (*cordonv1.GetRecordResponse, error) {
	noteLease(ctx, req.GetLeaseId())
	got, err := h.cfg.Supervisor.Record(ctx, callerOf(ctx), req.GetLeaseId())
	if err != nil {
		return nil, err
	}
	return &cordonv1.GetRecordResponse{Record: signedRecord(got)}, nil
}

// Watch streams a lease's events until the lease is closed.
func (h *handlers) Watch(req *cordonv1.WatchRequest, stream grpc.ServerStreamingServer[cordonv1.Event]) error {
	ctx := stream.Context()
	watcher, err := h.cfg.Supervisor.Watch(ctx, callerOf(ctx), leaseRef(ctx, req.GetRef()), req.GetFromSequence())
	if err != nil {
		return err
	}
	for {
		e, err := watcher.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		event := &cordonv1.Event{Sequence: e.Sequence, At: wire.Time(e.At), Kind: e.Kind, Attributes: validMap(e.Attributes)}
		if err := stream.Send(event); err != nil {
			return err
		}
	}
}

// Info says what this daemon and its host are.
func (h *handlers) Info(ctx context.Context, _ *cordonv1.InfoRequest) (*cordonv1.InfoResponse, error) {
	info, err := h.cfg.Info(ctx)
	if err != nil {
		return nil, err
	}
	resp := &cordonv1.InfoResponse{
		Version:         info.Version,
		RuntimeRevision: info.RuntimeRevision,
		Kernel:          info.Kernel,
		CgroupMode:      info.CgroupMode,
		RecordKey:       info.RecordKey,
		Leases:          uint32(info.Leases),
	}
	for _, t := range callOf(ctx).tenants {
		resp.Tenants = append(resp.Tenants, t.Name)
	}
	for _, t := range info.Terms {
		resp.Terms = append(resp.Terms, &cordonv1.Term{
			Letter: t.Letter, Name: t.Name, Given: t.Given,
			Proof: t.Proof, LeftOver: t.LeftOver,
		})
	}
	return resp, nil
}
