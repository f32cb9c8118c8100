package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"cordon/internal/fault"
	"cordon/jail"
	"cordon/supervisor/evidence"
)

// errEnded is the cause of contexts that end with their lease.
var errEnded = fault.New(fault.WrongState, "lease", "has ended", "acquire a new one")

// end is the one way a lease ends: release, expiry, wall clock, death of
// PID 1, an Acquire that failed, the daemon's stop. The first caller does the
// work, whatever becomes of its ctx; others wait for the outcome.
func (s *Supervisor) end(ctx context.Context, l *lease, why End) error {
	if l.beginEnd(why) {
		s.finish(ctx, l)
		return nil
	}
	select {
	case <-l.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// beginEnd reports whether the caller is the one that ends the lease.
func (l *lease) beginEnd(why End) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.moveLocked(Draining); err != nil {
		return false
	}
	why.Detail = clipText(why.Detail)
	l.entry.End, l.entry.EndedAt = why, time.Now()
	l.cancel(errEnded)
	return true
}

// finish takes a draining lease to closed or quarantined.
func (s *Supervisor) finish(ctx context.Context, l *lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.CloseTimeout)
	defer cancel()
	defer close(l.ended)
	e := l.snapshot()
	// Recovery ends the lease with or without this line; it only keeps the
	// reason. So a full disk does not stop the end.
	err := s.journal.change(e.Fencing, func(j *entry) {
		j.State, j.End, j.EndedAt = Draining, e.End, e.EndedAt.UTC()
	})
	if err != nil {
		s.log.Error("journal end of lease", slog.String(keyLease, l.id), logError(err))
	}
	s.drain(ctx, l)
	if err := l.move(Closing); err != nil {
		s.log.Error("end lease", slog.String(keyLease, l.id), logError(err))
	}
	s.tearDown(ctx, l)
	l.waitCommands(ctx)
	s.seal(l)
}

// drain stops the lease's processes and ends its commands.
func (s *Supervisor) drain(ctx context.Context, l *lease) {
	j := l.theJail()
	if j == nil {
		return
	}
	l.closeOpen()
	// Frozen, nothing inside can react to what follows. The kill does not
	// need it, so that a failure, or a thaw by an export that is just ending,
	// costs nothing.
	if err := j.Freeze(ctx); err != nil {
		s.log.Warn("freeze lease", slog.String(keyLease, l.id), logError(err))
	}
	e := l.snapshot()
	commands := l.running()
	for _, x := range commands {
		_ = x.stop(actOf(e.End)) // the jail's Close kills it in any case
	}
	grace, cancel := context.WithTimeout(ctx, s.cfg.DrainGrace)
	defer cancel()
	for _, x := range commands {
		x.waitDone(grace)
	}
	for _, x := range commands {
		x.cutOff() // what the client did not take by now is dropped
	}
	s.readUsage(l, j)
}

// actOf is what the end of a lease means to its commands.
func actOf(end End) act {
	if end.Cause == CauseReleased {
		return act{cause: CauseCancelled, detail: "the lease was released"}
	}
	return act{cause: end.Cause, detail: end.Detail}
}

func (s *Supervisor) readUsage(l *lease, j Jail) {
	u, err := j.Usage()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.outcome.gaps = append(l.outcome.gaps, "usage could not be read: "+err.Error())
	}
	l.outcome.usage.Usage = u
}

// running are the commands that have not ended, started or about to.
func (l *lease) running() []*command {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]*command, 0, len(l.commands))
	for _, x := range l.commands {
		out = append(out, x)
	}
	return out
}

// waitCommands waits until all commands have an end, as they must have once
// the jail is gone.
func (l *lease) waitCommands(ctx context.Context) {
	for _, x := range l.running() {
		x.waitDone(ctx)
	}
}

func (l *lease) closeOpen() {
	l.mu.Lock()
	f := l.open
	l.open = nil
	l.mu.Unlock()
	if f != nil {
		_ = f.Close() // its copy fails; an artifact has no data to lose
	}
}

// tearDown removes everything of the lease, goes on after errors, lists again
// and keeps what it found as the lease's cleanup.
func (s *Supervisor) tearDown(ctx context.Context, l *lease) {
	l.mu.Lock()
	l.attempts++
	attempt := l.attempts
	l.mu.Unlock()
	items, err := s.removeJail(ctx, l, attempt)
	egressItem, egressErr := s.forgetEgress(ctx, l)
	inputs, inputsErr := s.detach(l)
	traces, tracesErr := s.listTraces(l)
	items = append(items, append(append(egressItem, inputs...), traces...)...)
	err = errors.Join(err, egressErr, inputsErr, tracesErr)

	c := evidence.Cleanup{Attempts: attempt, Items: plainItems(items), Errors: errorTexts(err)}
	c.Clean = err == nil && jail.CleanupReport{Items: items}.Clean()
	l.mu.Lock()
	l.cleanup, l.clean = c, c.Clean
	l.mu.Unlock()
	if !c.Clean {
		s.log.Error("lease is not clean", slog.String(keyLease, l.id), slog.Int64(keyAttempt, attempt),
			logText(keyLeft, leftovers(items)), logError(err))
	}
}

// removeJail closes the jail. What an earlier daemon or a failed Make may
// have left, and what Close could not remove, is swept by name.
func (s *Supervisor) removeJail(ctx context.Context, l *lease, attempt int64) ([]jail.CleanupItem, error) {
	l.mu.Lock()
	j, asked := l.jail, l.entry.PlanDigest != "" || l.recovered
	l.mu.Unlock()
	if j == nil && !asked {
		return nil, nil
	}
	if j != nil {
		report, err := j.Close(ctx)
		if err != nil {
			err = fmt.Errorf("close jail: %w", err)
		}
		if attempt == 1 || (err == nil && report.Clean()) {
			return report.Items, err
		}
	}
	report, err := s.cfg.Jailer.Sweep(ctx, l.id)
	if err != nil {
		err = fmt.Errorf("sweep lease: %w", err)
	}
	return report.Items, err
}

// forgetEgress removes the filter's entry and keeps its last count.
func (s *Supervisor) forgetEgress(ctx context.Context, l *lease) ([]jail.CleanupItem, error) {
	l.mu.Lock()
	group, admitted, forgotten, j := l.entry.CgroupID, l.admitted, l.forgotten, l.jail
	l.mu.Unlock()
	if !admitted {
		return nil, nil
	}
	if j != nil {
		group = j.CgroupID()
	}
	item := jail.CleanupItem{Kind: "egress_entry", Looked: fmt.Sprintf("filter entry of cgroup %d", group)}
	if forgotten {
		return []jail.CleanupItem{item}, nil
	}
	// Not given back, so that no renewal brings the entry back.
	if err := l.renewing.take(ctx); err != nil {
		return leftover(item), fmt.Errorf("forget egress: %w", err)
	}
	flows, err := s.cfg.Egress.Forget(group)
	if err != nil {
		l.renewing.give() // for the next attempt
		return leftover(item), fmt.Errorf("forget egress: %w", err)
	}
	l.mu.Lock()
	l.forgotten, l.outcome.network = true, networkOf(flows)
	l.mu.Unlock()
	return []jail.CleanupItem{item}, nil
}

func leftover(item jail.CleanupItem) []jail.CleanupItem {
	item.Leftovers = []string{item.Looked}
	return []jail.CleanupItem{item}
}

// detach removes the lease's inputs and lists what is attached.
func (s *Supervisor) detach(l *lease) ([]jail.CleanupItem, error) {
	l.mu.Lock()
	attached := l.attached
	l.mu.Unlock()
	if !attached {
		return nil, nil
	}
	err := s.cfg.Store.Detach(l.id)
	if err != nil {
		err = fmt.Errorf("detach inputs: %w", err)
	}
	ids, listErr := s.cfg.Store.Attached()
	if listErr != nil {
		err = errors.Join(err, fmt.Errorf("list attached inputs: %w", listErr))
	}
	return listed("inputs", "attached inputs of the store", l.id, ids), err
}

// listTraces asks for the lease by name once more, after everything else.
func (s *Supervisor) listTraces(l *lease) ([]jail.CleanupItem, error) {
	ids, err := s.cfg.Jailer.Strays()
	if err != nil {
		err = fmt.Errorf("list traces: %w", err)
	}
	return listed("traces", "anything on the host that bears the lease's id", l.id, ids), err
}

func listed(kind, looked, id string, ids []string) []jail.CleanupItem {
	item := jail.CleanupItem{Kind: kind, Looked: looked}
	if slices.Contains(ids, id) {
		item.Leftovers = []string{id}
	}
	return []jail.CleanupItem{item}
}

func leftovers(items []jail.CleanupItem) string {
	var out []string
	for _, it := range items {
		for _, left := range it.Leftovers {
			out = append(out, it.Kind+": "+left)
		}
	}
	return strings.Join(out, ", ")
}
