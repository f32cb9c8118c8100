package supervisor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"cordon/internal/fault"
	"cordon/supervisor/evidence"
)

// mostListedLeases bounds List: each one costs reading a whole entry.
const mostListedLeases = 200

// Ref names a lease and proves the right to use it.
type Ref struct {
	ID     string
	Secret string
}

// LeaseInfo is what an owner may see of a lease.
type LeaseInfo struct {
	ID             string
	State          State
	OwnerUID       uint32
	Tenant         string
	RunID          string
	AttemptID      string
	ImageDigest    string
	EnvelopeDigest string
	PlanDigest     string
	AcquiredAt     time.Time
	ExpiresAt      time.Time
	MaxExpiresAt   time.Time
	Fencing        uint64
	Execs          []ExecInfo // not filled in by List
	End            End        // set when the end has begun
}

// ExecInfo is what an owner may see of a command.
type ExecInfo struct {
	ID      string
	Argv    []string // of an ended command, and of a long line, only the first
	Running bool
	End     End
}

// found is a lease that is alive, or the journal's entry of one that is not.
type found struct {
	live *lease
	past entry
}

// errNoLease is the one answer to an unknown lease, another owner's lease
// and a wrong secret, so that nobody can find out which it was.
func errNoLease() error {
	return fault.New(fault.NotFound, "lease", "there is no such lease for this caller", "check lease id and secret")
}

// find returns the lease that ref names, if caller owns it.
func (s *Supervisor) find(caller Caller, ref Ref) (found, error) {
	hash := hashSecret(ref.Secret)
	at, err := s.lookUp(ref.ID)
	if err != nil {
		return found{}, err
	}
	e := at.past
	if at.live != nil {
		e = at.live.snapshot()
	}
	// An unknown lease is the zero entry, whose hash nothing equals.
	if !e.allows(caller, hash) {
		return found{}, errNoLease()
	}
	return at, nil
}

// lookUp finds a lease by id alone; past is the zero entry when there is
// none.
func (s *Supervisor) lookUp(id string) (found, error) {
	s.mu.Lock()
	l := s.leases[id]
	s.mu.Unlock()
	if l != nil {
		return found{live: l}, nil
	}
	e, _, err := s.journal.byID(id)
	return found{past: e}, err
}

// active returns the lease that ref names if it is active.
func (s *Supervisor) active(caller Caller, ref Ref) (*lease, error) {
	at, err := s.find(caller, ref)
	if err != nil {
		return nil, err
	}
	if at.live == nil {
		return nil, errState(at.past.State)
	}
	if state := at.live.state(); state != Active {
		return nil, errState(state)
	}
	return at.live, nil
}

func errState(state State) error {
	return fault.New(fault.WrongState, "lease", "is "+state.String(), "acquire a new one")
}

// Get returns one lease.
func (s *Supervisor) Get(_ context.Context, caller Caller, ref Ref) (LeaseInfo, error) {
	at, err := s.find(caller, ref)
	if err != nil {
		return LeaseInfo{}, err
	}
	if at.live != nil {
		return at.live.info(), nil
	}
	info := infoOf(at.past)
	if at.past.Record == 0 {
		return info, nil
	}
	rec, err := s.openRecord(at.past)
	if err != nil {
		return LeaseInfo{}, err
	}
	info.Execs = pastExecs(rec.Execs)
	return info, nil
}

// List returns the caller's own leases, newest first, at most two hundred. It
// holds one entry of the journal at a time: an entry may be large, what List
// says of it is not.
func (s *Supervisor) List(ctx context.Context, caller Caller) ([]LeaseInfo, error) {
	owned, err := s.journal.ownedBy(caller.UID, mostListedLeases)
	if err != nil {
		return nil, err
	}
	out := make([]LeaseInfo, 0, len(owned))
	for _, fencing := range owned {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("list leases: %w", err)
		}
		e, err := s.journal.byFencing(fencing)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		l := s.leases[e.ID]
		s.mu.Unlock()
		if l != nil {
			e = l.snapshot()
		}
		out = append(out, infoOf(e))
	}
	return out, nil
}

// openRecord reads and checks the record of an entry that has one.
func (s *Supervisor) openRecord(e entry) (evidence.Record, error) {
	raw, err := s.journal.record(e.Record)
	if err != nil {
		return evidence.Record{}, err
	}
	report, err := evidence.Verify(raw, s.PublicKey())
	return report.Record, err
}

func infoOf(e entry) LeaseInfo {
	id := e.Envelope.Identity
	return LeaseInfo{
		ID: e.ID, State: e.State, OwnerUID: e.OwnerUID,
		Tenant: id.Tenant, RunID: id.RunID, AttemptID: id.AttemptID,
		ImageDigest: e.Envelope.ImageDigest, EnvelopeDigest: e.EnvelopeDigest, PlanDigest: e.PlanDigest,
		AcquiredAt: e.RequestedAt, ExpiresAt: e.ExpiresAt, MaxExpiresAt: e.MaxExpiresAt,
		Fencing: e.Fencing, End: e.End,
	}
}

func (l *lease) info() LeaseInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	info := infoOf(l.entry)
	info.Execs = pastExecs(l.execs)
	for i := range info.Execs {
		if x := l.commands[info.Execs[i].ID]; x != nil {
			info.Execs[i].Argv = slices.Clone(x.argv)
		}
	}
	return info
}

// pastExecs are a record's commands as their owner sees them.
func pastExecs(list []evidence.Exec) []ExecInfo {
	out := make([]ExecInfo, 0, len(list))
	for _, x := range list {
		out = append(out, ExecInfo{
			ID: x.ID, Argv: []string{x.Argv0},
			Running: x.End.Cause == "",
			End:     endOfRecord(x.End, x.Usage),
		})
	}
	return out
}

// SignedRecord is a sealed record and the chain's head after it.
type SignedRecord struct {
	JSON  []byte
	Head  string
	State State // Closed, or Quarantined when something was left
}

// Record returns the last record of a lease that has ended, to its owner and
// to root.
func (s *Supervisor) Record(_ context.Context, caller Caller, leaseID string) (SignedRecord, error) {
	at, err := s.lookUp(leaseID)
	if err != nil {
		return SignedRecord{}, err
	}
	e := at.past
	if at.live != nil {
		e = at.live.snapshot()
	}
	if e.ID == "" || (caller.UID != 0 && caller.UID != e.OwnerUID) {
		return SignedRecord{}, errNoLease()
	}
	return s.signedRecord(e)
}

func (s *Supervisor) signedRecord(e entry) (SignedRecord, error) {
	if e.Record == 0 {
		return SignedRecord{}, fault.New(fault.WrongState, "lease", "is "+e.State.String()+" and has no record yet", "release it first")
	}
	raw, err := s.journal.record(e.Record)
	if err != nil {
		return SignedRecord{}, err
	}
	return SignedRecord{JSON: raw, Head: e.Head, State: e.State}, nil
}

// Release ends a lease and returns its record. Releasing again returns the
// record again; of a lease that is quarantined, the last one there is.
func (s *Supervisor) Release(ctx context.Context, caller Caller, ref Ref) (SignedRecord, error) {
	at, err := s.find(caller, ref)
	if err != nil {
		return SignedRecord{}, err
	}
	if at.live == nil {
		return s.signedRecord(at.past)
	}
	l := at.live
	if err := s.end(ctx, l, End{Cause: CauseReleased}); err != nil {
		return SignedRecord{}, err
	}
	l.mu.Lock()
	e, sealErr := l.entry, l.sealErr
	l.mu.Unlock()
	if e.Record == 0 && sealErr != nil {
		return SignedRecord{}, sealErr
	}
	return s.signedRecord(e)
}
