package supervisor

import (
	"log/slog"
	"time"
)

// seal makes the lease's record, journals it together with the lease's new
// state, and puts the lease where it belongs. Without room for the record the
// lease stays quarantined in memory, and sealing is tried again.
func (s *Supervisor) seal(l *lease) {
	l.mu.Lock()
	next := Quarantined
	if l.clean {
		next = Closed
	}
	if l.entry.State == Quarantined && next == Quarantined && l.entry.Record != 0 {
		l.mu.Unlock()
		return // the last record still says what is left
	}
	l.sealed = true
	now := time.Now()
	rec := s.recordLocked(l, next, now)
	e := l.entry
	e.State = next
	e.LastEvent = l.events.lastSequence() + 1
	l.mu.Unlock()

	sealed, err := s.journal.seal(e, rec)
	if err != nil {
		s.unsealed(l, err)
		return
	}
	l.mu.Lock()
	l.entry.Record, l.entry.Head, l.sealErr = sealed.Record, sealed.Head, nil
	if l.entry.State != next {
		err = l.moveLocked(next)
	}
	l.mu.Unlock()
	s.log.Info("lease ended", slog.String(keyLease, l.id), slog.String(keyState, next.String()),
		slog.String(keyCause, e.End.Cause.String()), logText(keyDetail, e.End.Detail))
	if err != nil {
		s.log.Error("end lease", slog.String(keyLease, l.id), logError(err))
	}
	if next == Closed {
		l.events.close()
		s.remove(l)
	}
}

// unsealed keeps a lease whose record could not be stored.
func (s *Supervisor) unsealed(l *lease, err error) {
	s.log.Error("journal record of lease", slog.String(keyLease, l.id), logError(err))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sealErr = err
	if l.entry.State == Quarantined {
		return
	}
	if err := l.moveLocked(Quarantined); err != nil {
		l.sealErr = err
	}
}
