package supervisor

import (
	"context"
	"errors"
	"time"

	"cordon/internal/fault"
)

// Renew moves the expiry to extend from now: never back, never past what
// policy, wall clock and authority allow. Renewing past that is no error; the
// answer says what holds.
func (s *Supervisor) Renew(ctx context.Context, caller Caller, ref Ref, extend time.Duration) (LeaseInfo, error) {
	if extend <= 0 {
		return LeaseInfo{}, fault.New(fault.InvalidArgument, "extend", "is not positive", "give the time from now, as in 10m")
	}
	l, err := s.active(caller, ref)
	if err != nil {
		return LeaseInfo{}, err
	}
	ctx, stop := l.bind(ctx)
	defer stop()
	// One at a time: the later of two must not journal the earlier expiry. The
	// end of the lease takes the token for good before it forgets the egress
	// entry, so that no renewal brings it back.
	if err := l.renewing.take(ctx); err != nil {
		return LeaseInfo{}, err
	}
	defer l.renewing.give()
	if err := s.renew(l, time.Now().Add(extend)); err != nil {
		return LeaseInfo{}, err
	}
	return l.info(), nil
}

func (s *Supervisor) renew(l *lease, until time.Time) error {
	e := l.snapshot()
	if e.State != Active {
		return errState(e.State)
	}
	if until.After(e.MaxExpiresAt) {
		until = e.MaxExpiresAt
	}
	if !until.After(e.ExpiresAt) {
		return nil
	}
	set := func(at time.Time) error {
		return s.journal.change(e.Fencing, func(e *entry) { e.ExpiresAt = at.UTC() })
	}
	if err := set(until); err != nil {
		return err
	}
	if err := s.cfg.Egress.Admit(e.CgroupID, until); err != nil {
		return errors.Join(portFault("renew egress filter", l.id, err), set(e.ExpiresAt))
	}
	l.mu.Lock()
	l.entry.ExpiresAt = until
	l.events.add(eventRenewed, map[string]string{"expires_at": until.UTC().Format(time.RFC3339Nano)})
	l.mu.Unlock()
	select {
	case l.renewed <- struct{}{}:
	default: // the keeper has not read the last one yet
	}
	return nil
}
