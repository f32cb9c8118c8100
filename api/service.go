package api

import (
	"context"
	"io"
	"time"

	"cordon/supervisor"
	"cordon/supervisor/envelope"
)

// Service is what the API serves; FromSupervisor makes one of a
// *supervisor.Supervisor. What its methods promise is written there.
type Service interface {
	LeaseService
	RunService
}

// LeaseService keeps leases.
type LeaseService interface {
	Acquire(ctx context.Context, caller supervisor.Caller, env envelope.Envelope, key string) (supervisor.Acquired, error)
	Renew(ctx context.Context, caller supervisor.Caller, ref supervisor.Ref, extend time.Duration) (supervisor.LeaseInfo, error)
	Get(ctx context.Context, caller supervisor.Caller, ref supervisor.Ref) (supervisor.LeaseInfo, error)
	List(ctx context.Context, caller supervisor.Caller) ([]supervisor.LeaseInfo, error)
	Release(ctx context.Context, caller supervisor.Caller, ref supervisor.Ref) (supervisor.SignedRecord, error)
	Record(ctx context.Context, caller supervisor.Caller, leaseID string) (supervisor.SignedRecord, error)
}

// RunService uses leases. The context of Exec and Attach bounds the session.
type RunService interface {
	Exec(ctx context.Context, caller supervisor.Caller, ref supervisor.Ref, req supervisor.ExecRequest) (Session, error)
	Attach(ctx context.Context, caller supervisor.Caller, ref supervisor.Ref, execID string) (Session, error)
	Export(ctx context.Context, caller supervisor.Caller, ref supervisor.Ref, path string,
		begin func(size int64) (io.Writer, error)) (supervisor.Exported, error)
	Watch(ctx context.Context, caller supervisor.Caller, ref supervisor.Ref, from uint64) (Watcher, error)
}

// Session is a caller's connection to a command. Next is called by one
// goroutine, the rest by others at the same time.
type Session interface {
	Next(ctx context.Context) (supervisor.Output, error)
	Write(ctx context.Context, p []byte) error
	CloseStdin() error
	Signal(sig int) error
	Resize(rows, cols uint16) error
	Detach()
}

// Watcher reads the events of a lease, up to io.EOF.
type Watcher interface {
	Next(ctx context.Context) (supervisor.Event, error)
}

// FromSupervisor is s as a Service.
func FromSupervisor(s *supervisor.Supervisor) Service { return supervised{s} }

// supervised returns interfaces where the supervisor returns structs.
type supervised struct{ *supervisor.Supervisor }

func (s supervised) Exec(ctx context.Context, caller supervisor.Caller, ref supervisor.Ref, req supervisor.ExecRequest) (Session, error) {
	session, err := s.Supervisor.Exec(ctx, caller, ref, req)
	if err != nil {
		return nil, err // not a nil *Session in an interface that is not nil
	}
	return session, nil
}

func (s supervised) Attach(ctx context.Context, caller supervisor.Caller, ref supervisor.Ref, execID string) (Session, error) {
	session, err := s.Supervisor.Attach(ctx, caller, ref, execID)
	if err != nil {
		return nil, err
	}
	return session, nil
}

func (s supervised) Watch(ctx context.Context, caller supervisor.Caller, ref supervisor.Ref, from uint64) (Watcher, error) {
	watcher, err := s.Supervisor.Watch(ctx, caller, ref, from)
	if err != nil {
		return nil, err
	}
	return watcher, nil
}

// ImageService is the store of images and inputs.
type ImageService interface {
	// PutInput stores size bytes of r for the tenant. r returns io.EOF after
	// exactly that many, and an error when the caller sends fewer or more.
	// With a digest, other content is refused.
	PutInput(ctx context.Context, tenant string, r io.Reader, size int64, digest string) (string, error)
	// ImportImage unpacks a tar, which it reads to the end.
	ImportImage(ctx context.Context, name string, tar io.Reader) (Image, error)
	// SnapshotHost calls progress from one goroutine at a time, and not after
	// it has returned.
	SnapshotHost(ctx context.Context, progress func(string)) (Image, error)
	Images(ctx context.Context) ([]Image, error)
}

// Image is an image of the store.
type Image struct {
	Digest  string
	Name    string
	Bytes   int64
	Files   int64
	Created time.Time
}

// Info is what a daemon and its host are and can do.
type Info struct {
	Version         string
	RuntimeRevision string
	Kernel          string
	CgroupMode      string // v2 or hybrid
	Terms           []Term
	RecordKey       string // the public key of records, base64
	Leases          int
}

// Term is one of the eight terms of the guarantee.
type Term struct {
	Letter   string // K P F N I R T C
	Name     string
	Given    bool
	Proof    string // what gives it here
	LeftOver string // what is still trusted
}
