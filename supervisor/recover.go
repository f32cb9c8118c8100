package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// sweepsAtOnce bounds how many leases Recover sweeps at a time.
const sweepsAtOnce = 4

// restarted is how a lease ends that an earlier daemon served.
const restarted = "daemon restarted"

// Recover ends what an earlier daemon left: every lease of the journal that
// is not closed, and then whatever else on the host bears a lease's id. It
// comes before Run and before any call; Acquire is refused until it is done.
// What cannot be cleaned is quarantined, which is no error here.
func (s *Supervisor) Recover(ctx context.Context) error {
	s.mu.Lock()
	first := s.phase == phaseOpened
	s.mu.Unlock()
	if !first {
		return errors.New("recover leases: done already")
	}
	left, err := s.journal.open()
	if err != nil {
		return err
	}
	slots := make(chan struct{}, sweepsAtOnce)
	var sweeps sync.WaitGroup
	for _, o := range left {
		l := s.adopt(o)
		slots <- struct{}{}
		sweeps.Add(1)
		s.spawn(func() {
			defer func() { <-slots; sweeps.Done() }()
			s.finishAdopted(ctx, l)
		})
	}
	sweeps.Wait()
	if err := s.sweepStrays(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase == phaseClosing {
		return errStopping
	}
	s.phase = phaseServing
	return nil
}

// adopt makes a lease of what the journal knows, with its end begun. A lease
// that was ending already keeps its reason.
func (s *Supervisor) adopt(o openLease) *lease {
	l := newLease(o.entry)
	close(l.ready)
	l.cancel(errEnded)
	l.recovered, l.attached, l.admitted = true, true, o.entry.CgroupID != 0
	l.execs, l.exports = o.execs, o.exports
	end := &l.entry.End
	switch l.entry.State {
	case Quarantined: // its record says why
	case Draining:
		end.Detail = joinDetail(end.Detail, restarted+" while the lease was ending")
	default:
		*end, l.entry.EndedAt = End{Cause: CauseInfrastructure, Detail: restarted}, time.Now()
		l.entry.State = Draining
	}
	for i := range l.execs {
		if l.execs[i].End.Cause == "" {
			l.execs[i].End = recordEnd(End{Cause: CauseInfrastructure, Detail: restarted})
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := keyID{owner: l.owner, tenant: l.env.Identity.Tenant, key: l.entry.Key}
	s.leases[l.id], s.keys[id], s.ranges[l.entry.IDBase] = l, l, l
	return l
}

func (s *Supervisor) finishAdopted(ctx context.Context, l *lease) {
	s.log.Warn("sweep lease of an earlier daemon", slog.String(keyLease, l.id), slog.String(keyState, l.state().String()))
	if l.state() == Quarantined {
		close(l.ended)
		s.retry(ctx, l)
		return
	}
	s.finish(ctx, l)
}

// sweepStrays removes what bears the id of a lease that is not in the tables:
// one that the journal calls closed, or never heard of.
func (s *Supervisor) sweepStrays(ctx context.Context) error {
	strays, err := s.cfg.Jailer.Strays()
	if err != nil {
		return fmt.Errorf("recover leases: list strays: %w", err)
	}
	attached, err := s.cfg.Store.Attached()
	if err != nil {
		return fmt.Errorf("recover leases: list attached inputs: %w", err)
	}
	for _, id := range strays {
		if s.knows(id) {
			continue // quarantined: its keeper tries again
		}
		report, err := s.cfg.Jailer.Sweep(ctx, id)
		s.log.Error("sweep stray", slog.String(keyLease, id), logText(keyLeft, leftovers(report.Items)), logError(err))
	}
	for _, id := range attached {
		if s.knows(id) {
			continue
		}
		err := s.cfg.Store.Detach(id)
		s.log.Error("detach stray inputs", slog.String(keyLease, id), slog.Bool("traces", slices.Contains(strays, id)), logError(err))
	}
	return nil
}

func (s *Supervisor) knows(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases[id] != nil
}
