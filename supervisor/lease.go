package supervisor

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"cordon/jail"
	"cordon/supervisor/envelope"
	"cordon/supervisor/evidence"
)

// Bounds of what a lease keeps in memory and in its record. A record that
// lists the most of everything, with the longest texts and every byte of them
// escaped, is still small enough to be verified.
const (
	mostListed   = 1024 // commands, exports or destinations that a record lists
	mostFinished = 16   // ended commands whose output can be attached to
)

// lease is one lease that is not closed. Its fields above mu do not change.
type lease struct {
	id    string
	owner uint32
	env   envelope.Envelope

	ctx    context.Context // ends when the end of the lease begins
	cancel context.CancelCauseFunc

	ready   chan struct{} // closed when Acquire has an outcome
	ended   chan struct{} // closed when the end has an outcome
	renewed chan struct{} // capacity 1: the expiry has moved
	events  *eventLog

	// Tokens are held while a port or the journal works; see token.
	renewing token
	frozen   token

	wallEnd time.Time    // when resources.wall_clock is used up
	output  atomic.Int64 // bytes of output read so far

	mu        sync.Mutex
	entry     entry // what the journal holds, or will hold next
	jail      Jail  // nil before it is made, and when recovered
	admitted  bool  // the egress filter was given an entry
	forgotten bool  // and the entry was removed
	attached  bool  // the store may hold inputs for it
	recovered bool  // made by an earlier daemon
	buildErr  error // why Acquire failed; set before ready is closed
	commands  map[string]*command
	finished  []*command // the newest last
	lastExec  int
	execs     []evidence.Exec
	unlisted  int64
	exports   []evidence.Export
	open      *os.File // the artifact being exported
	sealed    bool     // the record is made: nothing can be added
	denied    uint64   // network attempts that an event has told of
	attempts  int64    // at cleaning
	clean     bool     // an attempt found nothing left
	sealErr   error    // why there is no record yet
	cleanup   evidence.Cleanup
	outcome   outcome // what the record will say beyond cleanup
}

// outcome is what is known about a lease when it has been torn down, and
// only then.
type outcome struct {
	usage   Usage
	network evidence.Network
	gaps    []string
}

func newLease(e entry) *lease {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &lease{
		id: e.ID, owner: e.OwnerUID, env: e.Envelope,
		ctx: ctx, cancel: cancel,
		ready: make(chan struct{}), ended: make(chan struct{}),
		renewed:  make(chan struct{}, 1),
		events:   newEventLog(),
		renewing: newToken(), frozen: newToken(),
		wallEnd:  e.RequestedAt.Add(e.Envelope.Resources.WallClock),
		entry:    e,
		commands: make(map[string]*command),
		outcome:  outcome{network: networkOf(Flows{})},
	}
}

// move changes the state in memory. The caller journals what it needs to.
func (l *lease) move(next State) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moveLocked(next)
}

func (l *lease) moveLocked(next State) error {
	state, err := l.entry.State.to(next)
	if err != nil {
		return err
	}
	l.entry.State = state
	l.events.add(eventState, map[string]string{"state": next.String()})
	return nil
}

// snapshot is a copy of the entry; its slices are never written to.
func (l *lease) snapshot() entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.entry
}

func (l *lease) state() State { return l.snapshot().State }

func (l *lease) theJail() Jail {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.jail
}

// waitReady waits for Acquire's outcome and reports whether there was one
// before ctx ended.
func (l *lease) waitReady(ctx context.Context) bool {
	select {
	case <-l.ready:
		return true
	case <-ctx.Done():
		return false
	}
}

// bind is ctx, ending with the lease too. stop releases it.
func (l *lease) bind(ctx context.Context) (bound context.Context, stop func()) {
	bound, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })
	return bound, func() {
		unhook()
		cancel(nil)
	}
}

// deadline is when the lease ends by itself, and how.
func (l *lease) deadline() (time.Time, End) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.entry.ExpiresAt
	if !at.Before(l.wallEnd) {
		return l.wallEnd, End{Cause: CauseTimedOut, Detail: "resources.wall_clock is used up"}
	}
	return at, End{Cause: CauseLeaseExpired}
}

// takeOutput counts n bytes of output and returns how many of them the
// lease's limit lets through.
func (l *lease) takeOutput(n int) (allowed int, exceeded bool) {
	limit := l.env.Resources.OutputBytes
	before := l.output.Add(int64(n)) - int64(n)
	if before+int64(n) <= limit {
		return n, false
	}
	return int(max(limit-before, 0)), true
}

// outputTaken is the output that was let through.
func (l *lease) outputTaken() int64 {
	return min(l.output.Load(), l.env.Resources.OutputBytes)
}

// token is a right that one goroutine has at a time, while it waits for a
// port. It is no lock: waiting for it ends with a context.
type token chan struct{}

func newToken() token {
	t := make(token, 1)
	t <- struct{}{}
	return t
}

func (t token) take(ctx context.Context) error {
	select {
	case <-t:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (t token) give() { t <- struct{}{} }

// hashSecret is all that is kept of a lease secret.
func hashSecret(secret string) []byte {
	sum := sha256.Sum256([]byte("cordon lease secret v1\n" + secret))
	return sum[:]
}

// allows reports whether caller owns the lease and knows its secret. It
// takes the same time whichever of them is wrong.
func (e *entry) allows(caller Caller, secretHash []byte) bool {
	same := subtle.ConstantTimeCompare(e.SecretHash, secretHash) == 1
	return same && e.OwnerUID == caller.UID
}

// spec is what the jail is planned from.
func (e *entry) spec(image jail.Image, inputsDir string) jail.Spec {
	env := e.Envelope
	return jail.Spec{
		LeaseID:   e.ID,
		UID:       env.Identity.UID,
		IDBase:    e.IDBase,
		Image:     image,
		InputsDir: inputsDir,
		Volume: jail.Volume{
			Medium: env.Filesystem.Workspace.Medium,
			Bytes:  env.Resources.DiskBytes,
			Inodes: env.Filesystem.Workspace.Inodes,
		},
		Limits: jail.Limits{
			CPUMilli:    env.Resources.CPUMilli,
			MemoryBytes: env.Resources.MemoryBytes,
			Pids:        env.Resources.ProcessCount,
			OpenFiles:   env.Resources.OpenFiles,
		},
		Locale: env.Repeatability.Locale,
	}
}

// randomHex is n random bytes as lower-case hex digits.
func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails: crypto/rand ends the program instead
	return hex.EncodeToString(b)
}
