package supervisor

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"
)

// flowsEvery is how often watchers learn of refused network attempts while
// commands run.
const flowsEvery = time.Second

// keeping is one Run: the goroutines that watch over a lease each.
type keeping struct {
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup
}

// Run watches over leases: it ends them when their time is up or their PID 1
// has died, tries again to clean quarantined ones, and writes down what
// commands do. It returns when ctx ends, Close begins, or a goroutine of the
// package panicked, and its goroutines are gone; leases live on.
func (s *Supervisor) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	k := &keeping{ctx: ctx, cancel: cancel}
	if err := s.startKeeping(k); err != nil {
		return err
	}
	err := s.tend(ctx)
	s.mu.Lock()
	s.keeping = nil // no keeper starts from here on
	s.mu.Unlock()
	cancel()
	k.tasks.Wait()
	return err
}

func (s *Supervisor) startKeeping(k *keeping) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.phase == phaseClosing:
		return errStopping
	case s.keeping != nil:
		return fmt.Errorf("run supervisor: runs already")
	}
	s.keeping = k
	for _, l := range s.leases {
		s.keepLocked(l)
	}
	return nil
}

func (s *Supervisor) stopKeeping() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keeping != nil {
		s.keeping.cancel()
	}
}

// watchOver gives a lease its keeper, now or when Run begins.
func (s *Supervisor) watchOver(l *lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keeping != nil {
		s.keepLocked(l)
	}
}

func (s *Supervisor) keepLocked(l *lease) {
	k := s.keeping
	k.tasks.Add(1)
	s.spawn(func() {
		defer k.tasks.Done()
		s.keep(k.ctx, l)
	})
}

// tend does what is done for all leases together.
func (s *Supervisor) tend(ctx context.Context) error {
	flush := time.NewTicker(s.cfg.FlushEvery)
	defer flush.Stop()
	flows := time.NewTicker(flowsEvery)
	defer flows.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.failed:
			return err
		case <-flush.C:
			if err := s.flush(); err != nil {
				s.log.Error("journal commands", logError(err))
			}
		case <-flows.C:
			s.noteAllFlows()
		}
	}
}

// keep watches over one lease until it is closed.
func (s *Supervisor) keep(ctx context.Context, l *lease) {
	if !l.waitReady(ctx) || !s.knows(l.id) {
		return
	}
	if !s.keepAlive(ctx, l) {
		return
	}
	for wait := s.cfg.RetryFirst; l.state() == Quarantined; wait = min(2*wait, s.cfg.RetryMost) {
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
			s.retry(ctx, l)
		}
	}
}

// keepAlive ends the lease when it is time. It returns true when the lease
// has ended, by whomever, and false when ctx has.
func (s *Supervisor) keepAlive(ctx context.Context, l *lease) bool {
	var dead <-chan struct{}
	if j := l.theJail(); j != nil {
		dead = j.Done()
	}
	for {
		at, why := l.deadline()
		timer := time.NewTimer(time.Until(at))
		select {
		case <-ctx.Done():
			timer.Stop()
			return false
		case <-l.ended:
			timer.Stop()
			return true
		case <-l.renewed:
			timer.Stop()
			continue
		case <-dead:
			timer.Stop()
			if l.state() != Active { // our own doing
				dead = nil
				continue
			}
			d := deathOf(l.theJail())
			why = End{Cause: d.cause, Detail: d.detail}
		case <-timer.C:
		}
		return s.end(ctx, l, why) == nil
	}
}

// deathOf is what the death of PID 1 means: the kernel ended it for memory,
// or something is broken. Its own word counts for nothing.
func deathOf(j Jail) act {
	u, err := j.Usage()
	switch {
	case err != nil:
		return act{cause: CauseInfrastructure, detail: "PID 1 of the sandbox died; its usage could not be read: " + err.Error()}
	case u.OOMKills > 0:
		return act{cause: CauseOOMKilled, detail: "PID 1 of the sandbox died after an OOM kill"}
	default:
		return act{cause: CauseInfrastructure, detail: "PID 1 of the sandbox died"}
	}
}

// retry tries again to get a quarantined lease closed.
func (s *Supervisor) retry(ctx context.Context, l *lease) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.CloseTimeout)
	defer cancel()
	l.mu.Lock()
	clean := l.clean
	l.mu.Unlock()
	if !clean { // else only the record is missing
		s.tearDown(ctx, l)
	}
	s.seal(l)
}

// noteAllFlows tells watchers what running commands were refused.
func (s *Supervisor) noteAllFlows() {
	s.mu.Lock()
	leases := make([]*lease, 0, len(s.leases))
	for _, l := range s.leases {
		leases = append(leases, l)
	}
	s.mu.Unlock()
	for _, l := range leases {
		if len(l.running()) != 0 {
			s.noteFlows(l)
		}
	}
}

// noteFlows adds an event when network attempts were refused since the last.
func (s *Supervisor) noteFlows(l *lease) {
	e := l.snapshot()
	if e.State != Active {
		return
	}
	flows, err := s.cfg.Egress.Flows(e.CgroupID)
	if err != nil {
		s.log.Warn("read network attempts", slog.String(keyLease, l.id), logError(err))
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if flows.Denied <= l.denied {
		return
	}
	l.events.add(eventDenied, map[string]string{
		"new":   strconv.FormatUint(flows.Denied-l.denied, 10),
		"total": strconv.FormatUint(flows.Denied, 10),
	})
	l.denied = flows.Denied
}
