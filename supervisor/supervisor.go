// Package supervisor keeps leases: it admits them, makes them through the
// ports, watches over them, ends them, and seals a record of each.
//
// It makes no system call, opens no socket, knows no gRPC, and builds and
// tests without root on any OS; what touches the host comes in through the
// interfaces of ports.go. It owns the state directory: the journal (one bbolt
// file, fsynced before each effect) and the key that signs records.
//
// All exported methods of Supervisor, Session and Watcher are safe for
// concurrent use, except Session.Next and Watcher.Next, which belong to one
// goroutine each.
//
// Lock order: Supervisor.mu, lease.mu, command.mu, eventLog.mu; a lock is
// never taken while a later one is held. No lock is held across a port, the
// journal or a channel. Who may change a lease's state: until it is active,
// the Acquire that made it; from draining on, the one goroutine that began
// the end.
//
// What does not belong here: reading an envelope (envelope), what a peer may
// ask for (hostpolicy), what a sandbox is made of (jail), wire formats and
// peer identity (api).
package supervisor

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime/debug"
	"sync"

	"cordon/internal/fault"
	"cordon/jail"
	"cordon/supervisor/evidence"
	"cordon/supervisor/hostpolicy"
)

// journalFile is the journal's name in the state directory.
const journalFile = "journal.db"

// Caller is the peer of a call, as the kernel named it.
type Caller = hostpolicy.Peer

// Supervisor keeps the leases of one host.
type Supervisor struct {
	cfg      Config
	log      *slog.Logger
	key      ed25519.PrivateKey
	features jail.Features
	journal  *journal
	rate     *acquireRate

	// tasks are all goroutines of the package; panics end Run.
	tasks  sync.WaitGroup
	failed chan error // capacity 1

	mu        sync.Mutex
	phase     phase
	leases    map[string]*lease // by id; all that are not closed
	keys      map[keyID]*lease  // by idempotency key; the same leases
	ranges    map[uint32]*lease // by first host id; the same leases
	keeping   *keeping          // nil unless Run watches over leases
	unflushed []progress        // what the journal does not know yet
}

// phase is how far the supervisor is in its life.
type phase int

const (
	phaseOpened  phase = iota // journal open, earlier leases not swept yet
	phaseServing              // Acquire is possible
	phaseClosing              // Close has begun
)

// New opens the state directory. Recover comes next, then Run and calls.
func New(cfg Config) (*Supervisor, error) {
	cfg = cfg.withDefaults()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	key, err := evidence.LoadOrCreateKey(cfg.StateDir)
	if err != nil {
		return nil, fmt.Errorf("open state directory: %w", err)
	}
	j, err := openJournal(filepath.Join(cfg.StateDir, journalFile), key, cfg.MaxJournalBytes)
	if err != nil {
		return nil, err
	}
	return &Supervisor{
		cfg:      cfg,
		log:      cfg.Log,
		key:      key,
		features: cfg.Jailer.Features(),
		journal:  j,
		rate:     newAcquireRate(cfg.AcquireRate, cfg.AcquireBurst),
		failed:   make(chan error, 1),
		leases:   make(map[string]*lease),
		keys:     make(map[keyID]*lease),
		ranges:   make(map[uint32]*lease),
	}, nil
}

// PublicKey verifies the records of this host.
func (s *Supervisor) PublicKey() ed25519.PublicKey {
	return s.key.Public().(ed25519.PublicKey) //nolint:forcetypeassert // documented result of ed25519
}

// HostID names this host in records.
func (s *Supervisor) HostID() string { return s.journal.hostID }

// Count is the number of leases that are not closed.
func (s *Supervisor) Count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.leases)
}

// Close ends every lease and closes the journal. Leases that ctx leaves no
// time for stay in the journal and are swept by the next daemon's Recover.
// It is idempotent and nil-safe.
func (s *Supervisor) Close(ctx context.Context) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	first := s.phase != phaseClosing
	s.phase = phaseClosing
	leases := make([]*lease, 0, len(s.leases))
	for _, l := range s.leases {
		leases = append(leases, l)
	}
	s.mu.Unlock()
	if !first {
		return nil
	}
	s.stopKeeping()
	stop := End{Cause: CauseInfrastructure, Detail: "daemon stopped"}
	for _, l := range leases {
		s.spawn(func() {
			// An Acquire under way unwinds by itself when its lease's context
			// ends.
			l.cancel(errStopping)
			if l.waitReady(ctx) && s.knows(l.id) {
				_ = s.end(ctx, l, stop) // only ctx's own, which waitTasks returns
			}
		})
	}
	err := s.waitTasks(ctx)
	return errors.Join(err, s.flush(), s.journal.close())
}

// waitTasks waits until every goroutine of the package is gone.
func (s *Supervisor) waitTasks(ctx context.Context) error {
	gone := make(chan struct{})
	go func() { // ends with the tasks, which the journal's close waits out
		s.tasks.Wait()
		close(gone)
	}()
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close leases: %w", context.Cause(ctx))
	}
}

// spawn starts a goroutine that Close waits for. A panic in one of them ends
// Run with an error: the next daemon sweeps what this one can no longer
// answer for.
func (s *Supervisor) spawn(fn func()) {
	s.tasks.Go(func() {
		defer func() {
			if v := recover(); v != nil {
				s.fail(fmt.Errorf("supervisor: panic: %v\n%s", v, debug.Stack()))
			}
		}()
		fn()
	})
}

func (s *Supervisor) fail(err error) {
	select {
	case s.failed <- err:
	default: // one reason is enough to stop
	}
}

// errStarting is the answer to an Acquire before Recover.
var errStarting = fault.New(fault.WrongState, "daemon", "is starting", "try again in a moment")

// errStopping is the cause of contexts that Close ends.
var errStopping = fault.New(fault.WrongState, "daemon", "is stopping", "try again when it is back")
