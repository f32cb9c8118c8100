// Package apitest serves the real API over a fake supervisor, for tests of
// the server, of the client and of programs that use it.
//
// It needs no privilege and makes no sandbox: commands are Go functions. Both
// fakes are safe for concurrent use. It is for tests only; what a lease
// really is belongs to supervisor.
package apitest

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"cordon/api"
	"cordon/internal/fault"
	"cordon/jail"
	"cordon/supervisor"
	"cordon/supervisor/envelope"
)

// Program is a fake command. It ends when it returns; when Process.Killed is
// closed it should.
type Program func(p *Process) supervisor.End

// Supervisor is a fake api.Service that keeps leases in memory. Its exported
// fields are set before it is used.
type Supervisor struct {
	// Programs are the commands there are, by Argv[0].
	Programs map[string]Program
	// Files are the artifacts of every workspace, by path.
	Files map[string][]byte
	// Before, if not nil, is called by every method with its name; it may
	// return an error for the method to return, block, or panic.
	Before func(method string) error

	mu      sync.Mutex
	leases  map[string]*lease
	changed chan struct{} // closed and replaced when something has happened
}

type lease struct {
	owner  uint32
	secret string
	key    string
	info   supervisor.LeaseInfo
	env    envelope.Envelope
	events []supervisor.Event
	procs  map[string]*process
}

var _ api.Service = (*Supervisor)(nil)

// NewSupervisor returns a fake without programs.
func NewSupervisor() *Supervisor {
	return &Supervisor{
		Programs: make(map[string]Program), Files: make(map[string][]byte),
		leases: make(map[string]*lease), changed: make(chan struct{}),
	}
}

func (s *Supervisor) before(method string) error {
	if s.Before == nil {
		return nil
	}
	return s.Before(method)
}

func (s *Supervisor) eventLocked(l *lease, kind string, attributes map[string]string) {
	l.events = append(l.events, supervisor.Event{
		Sequence: uint64(len(l.events) + 1), At: time.Now(), Kind: kind, Attributes: attributes,
	})
	close(s.changed)
	s.changed = make(chan struct{})
}

// findLocked returns the caller's lease.
func (s *Supervisor) findLocked(caller supervisor.Caller, ref supervisor.Ref) (*lease, error) {
	l := s.leases[ref.ID]
	if l == nil || l.owner != caller.UID || l.secret != ref.Secret {
		return nil, fault.New(fault.NotFound, "lease", "there is no such lease for this caller", "check lease id and secret")
	}
	return l, nil
}

// Acquire makes a lease.
func (s *Supervisor) Acquire(_ context.Context, caller supervisor.Caller, env envelope.Envelope, key string) (supervisor.Acquired, error) {
	if err := s.before("Acquire"); err != nil {
		return supervisor.Acquired{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.leases {
		if l.owner == caller.UID && l.key == key {
			return supervisor.Acquired{Lease: l.info, Envelope: l.env, Replayed: true}, nil
		}
	}
	env = envelope.Complete(env)
	now := time.Now().UTC()
	n := len(s.leases) + 1
	l := &lease{
		owner: caller.UID, key: key, env: env,
		secret: fmt.Sprintf("%032x", n),
		info: supervisor.LeaseInfo{
			ID: fmt.Sprintf("l-%d", n), State: supervisor.Active, OwnerUID: caller.UID,
			Tenant: env.Identity.Tenant, RunID: env.Identity.RunID, AttemptID: env.Identity.AttemptID,
			ImageDigest: env.ImageDigest, AcquiredAt: now,
			ExpiresAt: now.Add(env.Cleanup.Lease), MaxExpiresAt: now.Add(24 * time.Hour), Fencing: uint64(n),
		},
		procs: make(map[string]*process),
	}
	s.leases[l.info.ID] = l
	s.eventLocked(l, "state", map[string]string{"state": "active"})
	return supervisor.Acquired{
		Lease: l.info, Secret: l.secret, Envelope: env,
		ReadBack: []jail.Check{{Name: "pids.max", Want: "128", Got: "128", OK: true}},
	}, nil
}

// Renew moves the expiry.
func (s *Supervisor) Renew(_ context.Context, caller supervisor.Caller, ref supervisor.Ref, extend time.Duration) (supervisor.LeaseInfo, error) {
	return s.withLease("Renew", caller, ref, func(l *lease) {
		l.info.ExpiresAt = time.Now().UTC().Add(extend)
		s.eventLocked(l, "renewed", nil)
	})
}

// Get returns a lease.
func (s *Supervisor) Get(_ context.Context, caller supervisor.Caller, ref supervisor.Ref) (supervisor.LeaseInfo, error) {
	return s.withLease("Get", caller, ref, func(*lease) {})
}

func (s *Supervisor) withLease(method string, caller supervisor.Caller, ref supervisor.Ref, fn func(*lease)) (supervisor.LeaseInfo, error) {
	if err := s.before(method); err != nil {
		return supervisor.LeaseInfo{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l, err := s.findLocked(caller, ref)
	if err != nil {
		return supervisor.LeaseInfo{}, err
	}
	fn(l)
	info := l.info
	for _, id := range slices.Sorted(maps.Keys(l.procs)) {
		info.Execs = append(info.Execs, l.procs[id].info())
	}
	return info, nil
}

// List returns the caller's leases, newest first.
func (s *Supervisor) List(_ context.Context, caller supervisor.Caller) ([]supervisor.LeaseInfo, error) {
	if err := s.before("List"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []supervisor.LeaseInfo
	for _, l := range s.leases {
		if l.owner == caller.UID {
			out = append(out, l.info)
		}
	}
	slices.SortFunc(out, func(a, b supervisor.LeaseInfo) int { return cmp.Compare(b.Fencing, a.Fencing) })
	return out, nil
}

// Release closes a lease and kills what runs in it.
func (s *Supervisor) Release(_ context.Context, caller supervisor.Caller, ref supervisor.Ref) (supervisor.SignedRecord, error) {
	var procs []*process
	info, err := s.withLease("Release", caller, ref, func(l *lease) {
		procs = slices.Collect(maps.Values(l.procs))
		if l.info.State == supervisor.Closed {
			return
		}
		l.info.State = supervisor.Closed
		l.info.End = supervisor.End{Cause: supervisor.CauseReleased}
		s.eventLocked(l, "state", map[string]string{"state": "closed"})
	})
	if err != nil {
		return supervisor.SignedRecord{}, err
	}
	for _, p := range procs {
		p.kill()
	}
	return fakeRecord(info), nil
}

// Record returns the record of a closed lease.
func (s *Supervisor) Record(_ context.Context, caller supervisor.Caller, leaseID string) (supervisor.SignedRecord, error) {
	if err := s.before("Record"); err != nil {
		return supervisor.SignedRecord{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.leases[leaseID]
	if l == nil || l.owner != caller.UID || l.info.State != supervisor.Closed {
		return supervisor.SignedRecord{}, fault.New(fault.NotFound, "lease", "there is no such lease for this caller", "check lease id and secret")
	}
	return fakeRecord(l.info), nil
}

func fakeRecord(info supervisor.LeaseInfo) supervisor.SignedRecord {
	return supervisor.SignedRecord{
		JSON: fmt.Appendf(nil, `{"lease":{"id":%q}}`, info.ID), Head: "sha256:" + fmt.Sprintf("%064x", info.Fencing),
		State: supervisor.Closed,
	}
}

// Export sends one of Files.
func (s *Supervisor) Export(_ context.Context, caller supervisor.Caller, ref supervisor.Ref, path string,
	begin func(int64) (io.Writer, error),
) (supervisor.Exported, error) {
	if _, err := s.withLease("Export", caller, ref, func(*lease) {}); err != nil {
		return supervisor.Exported{}, err
	}
	data, ok := s.Files[path]
	if !ok {
		return supervisor.Exported{}, fault.New(fault.NotDeclared, "path", "is not in artifacts.allow", "declare it in the envelope")
	}
	w, err := begin(int64(len(data)))
	if err == nil {
		_, err = w.Write(data)
	}
	if err != nil {
		return supervisor.Exported{}, fmt.Errorf("export %s: %w", path, err)
	}
	return supervisor.Exported{Path: path, Size: int64(len(data)), Digest: digest(data)}, nil
}

// Watch returns the events of a lease.
func (s *Supervisor) Watch(_ context.Context, caller supervisor.Caller, ref supervisor.Ref, from uint64) (api.Watcher, error) {
	if _, err := s.withLease("Watch", caller, ref, func(*lease) {}); err != nil {
		return nil, err
	}
	return &watcher{s: s, id: ref.ID, next: max(from, 1)}, nil
}

type watcher struct {
	s    *Supervisor
	id   string
	next uint64
}

// Next waits for the next event.
func (w *watcher) Next(ctx context.Context) (supervisor.Event, error) {
	for {
		w.s.mu.Lock()
		l, changed := w.s.leases[w.id], w.s.changed
		events, closed := l.events, l.info.State == supervisor.Closed
		w.s.mu.Unlock()
		switch {
		case w.next <= uint64(len(events)):
			w.next++
			return events[w.next-2], nil
		case closed:
			return supervisor.Event{}, io.EOF
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return supervisor.Event{}, context.Cause(ctx)
		}
	}
}
