package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"cordon/internal/fault"
	"cordon/jail"
	"cordon/supervisor/envelope"
	"cordon/supervisor/hostpolicy"
)

// mostKey bounds an idempotency key.
const mostKey = 255

// Acquired is a lease that was just made, or the same one again.
type Acquired struct {
	Lease LeaseInfo
	// Secret is 32 hex digits, shown here and never again; empty on a replay.
	Secret   string
	Envelope envelope.Envelope // with every default written out
	ReadBack []jail.Check
	Replayed bool
}

// keyID is an idempotency key with whom it belongs to.
type keyID struct {
	owner  uint32
	tenant string
	key    string
}

// Acquire makes a sandbox and returns it running and read back. The same key
// with the same envelope is the same lease, for as long as the journal knows
// it; an attempt that failed leaves the key free. When Acquire returns an
// error, nothing of the attempt is left, or the lease is quarantined.
func (s *Supervisor) Acquire(ctx context.Context, caller Caller, env envelope.Envelope, key string) (Acquired, error) {
	if err := s.rate.take(caller.UID, time.Now()); err != nil {
		return Acquired{}, s.refused(ctx, caller, env, err)
	}
	env, digest, err := s.checkEnvelope(env)
	if err == nil {
		err = checkKey(key)
	}
	if err != nil {
		return Acquired{}, s.refused(ctx, caller, env, err)
	}
	secret := randomHex(16)
	l, mine, err := s.reserve(caller, env, entry{
		ID: "l-" + randomHex(8), Key: key, EnvelopeDigest: digest,
		SecretHash: hashSecret(secret),
	})
	if err != nil {
		return Acquired{}, s.refused(ctx, caller, env, err)
	}
	if !mine {
		return s.replay(ctx, l, digest)
	}
	if err := s.make(ctx, l); err != nil {
		return Acquired{}, s.refused(ctx, caller, env, err)
	}
	got := l.acquired()
	got.Secret = secret
	s.log.LogAttrs(ctx, slog.LevelInfo, "lease acquired",
		slog.String(keyLease, l.id), logText(keyTenant, env.Identity.Tenant),
		logText(keyRun, env.Identity.RunID), slog.Uint64(keyOwner, uint64(caller.UID)))
	return got, nil
}

// refused leaves the one line that every refusal leaves. Nothing of env may
// have been checked.
func (s *Supervisor) refused(ctx context.Context, caller Caller, env envelope.Envelope, err error) error {
	attrs := append([]slog.Attr{
		logText(keyTenant, env.Identity.Tenant), logText(keyRun, env.Identity.RunID),
		slog.Uint64(keyOwner, uint64(caller.UID)),
	}, logRefusal(err)...)
	s.log.LogAttrs(ctx, slog.LevelInfo, "lease refused", attrs...)
	return err
}

// checkEnvelope completes and checks what needs no state.
func (s *Supervisor) checkEnvelope(env envelope.Envelope) (envelope.Envelope, string, error) {
	env = envelope.Complete(env)
	if err := envelope.Validate(env); err != nil {
		return env, "", err
	}
	if pin := env.RuntimeRevision; pin != "" && pin != s.cfg.RuntimeRevision {
		return env, "", fault.New(fault.MissingFeature, "runtime_revision",
			fmt.Sprintf("this host runs %q, not %q", s.cfg.RuntimeRevision, pin), "use a host of that revision, or leave the field out")
	}
	digest, err := envelope.Digest(env)
	return env, digest, err
}

func checkKey(key string) error {
	printable := func(c rune) bool { return c > ' ' && c <= '~' }
	if key == "" || len(key) > mostKey || strings.ContainsFunc(key, func(c rune) bool { return !printable(c) }) {
		return fault.New(fault.InvalidArgument, "idempotency_key",
			"is not 1 to 255 printable ASCII characters without spaces", "use a random id for each run and attempt")
	}
	return nil
}

// reserve admits the envelope and puts a new lease in the tables, with an id
// range of its own, in one step: two callers cannot both have the last of
// something. It returns the lease that already holds the key, if there is
// one, with mine false.
func (s *Supervisor) reserve(caller Caller, env envelope.Envelope, e entry) (l *lease, mine bool, err error) {
	hostImage := s.cfg.HostImage()
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.phase {
	case phaseServing:
	case phaseOpened:
		return nil, false, errStarting
	default:
		return nil, false, errStopping
	}
	id := keyID{owner: caller.UID, tenant: env.Identity.Tenant, key: e.Key}
	if l := s.keys[id]; l != nil {
		return l, false, nil
	}
	use := s.inUseLocked()
	use.HostImage = hostImage
	if err := s.cfg.Admission.Admit(caller, env, use); err != nil {
		return nil, false, err
	}
	base, err := s.freeRangeLocked()
	if err != nil {
		return nil, false, err
	}
	now := time.Now()
	e.State, e.OwnerUID, e.Envelope = Requested, caller.UID, env
	e.PolicyDigest = s.cfg.Admission.Digest()
	e.IDBase, e.RequestedAt = base, now
	e.MaxExpiresAt = s.latestEnd(caller, env, now)
	e.ExpiresAt = earlier(now.Add(env.Cleanup.Lease), e.MaxExpiresAt)
	if !e.ExpiresAt.After(now) {
		return nil, false, fault.New(fault.InvalidEnvelope, "identity.authority_expiry", "has passed", "renew the authority first")
	}
	l = newLease(e)
	s.leases[l.id], s.keys[id], s.ranges[base] = l, l, l
	return l, true, nil
}

// inUseLocked is what all leases that are not closed take.
func (s *Supervisor) inUseLocked() hostpolicy.InUse {
	use := hostpolicy.InUse{Tenants: make(map[string]hostpolicy.Amounts)}
	for _, l := range s.leases {
		charge, tenant := hostpolicy.Charge(l.env), l.env.Identity.Tenant
		use.Host = use.Host.Add(charge)
		use.Tenants[tenant] = use.Tenants[tenant].Add(charge)
	}
	return use
}

// freeRangeLocked is the lowest id range that no lease holds, by its base.
func (s *Supervisor) freeRangeLocked() (uint32, error) {
	for i := range s.cfg.IDRanges {
		base := s.cfg.IDBase + uint32(i)*jail.IDRangeSize
		if s.ranges[base] == nil {
			return base, nil
		}
	}
	return 0, fault.New(fault.HostFull, "id ranges", fmt.Sprintf("all %d are in use", s.cfg.IDRanges), "release a lease, or give the host more ranges")
}

// latestEnd is when the lease ends whatever is renewed.
func (s *Supervisor) latestEnd(caller Caller, env envelope.Envelope, now time.Time) time.Time {
	// Without a tenant there is no time at all.
	tenant, _ := s.cfg.Admission.Speaks(caller, env.Identity.Tenant)
	end := earlier(now.Add(env.Resources.WallClock), now.Add(tenant.Max.Lease))
	if until, err := env.Identity.AuthorityEnd(); err == nil && !until.IsZero() {
		end = earlier(end, until)
	}
	return end
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// remove takes a lease out of the tables: its range and key are free.
func (s *Supervisor) remove(l *lease) {
	e := l.snapshot()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.leases, e.ID)
	if s.ranges[e.IDBase] == l {
		delete(s.ranges, e.IDBase)
	}
	id := keyID{owner: e.OwnerUID, tenant: e.Envelope.Identity.Tenant, key: e.Key}
	if s.keys[id] == l {
		delete(s.keys, id)
	}
}

// replay answers a key that is taken.
func (s *Supervisor) replay(ctx context.Context, l *lease, digest string) (Acquired, error) {
	if err := sameEnvelope(l.snapshot(), digest); err != nil {
		return Acquired{}, err
	}
	if !l.waitReady(ctx) {
		return Acquired{}, context.Cause(ctx)
	}
	l.mu.Lock()
	err, state := l.buildErr, l.entry.State
	l.mu.Unlock()
	switch {
	case givenUp(err):
		return Acquired{}, fault.New(fault.WrongState, "idempotency_key",
			"was in use by an attempt whose caller went away", "try again")
	case err != nil: // the first caller's attempt is this one's too
		return Acquired{}, err
	case state != Active:
		return Acquired{}, errState(state)
	}
	got := l.acquired()
	got.Replayed = true
	return got, nil
}

// givenUp reports that an attempt failed because its caller went away.
func givenUp(err error) bool {
	return fault.CodeOf(err) == "" && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}

// sameEnvelope refuses a key that was used for something else.
func sameEnvelope(e entry, digest string) error {
	if e.EnvelopeDigest == digest {
		return nil
	}
	return fault.New(fault.Conflict, "idempotency_key", "was used with another envelope", "use a new key for a new request")
}

func (l *lease) acquired() Acquired {
	info := l.info()
	l.mu.Lock()
	defer l.mu.Unlock()
	return Acquired{Lease: info, Envelope: envelope.Complete(l.env), ReadBack: l.entry.ReadBack}
}

// make journals the lease and builds it. On error it is undone and gone.
func (s *Supervisor) make(ctx context.Context, l *lease) error {
	defer close(l.ready)
	image, err := s.sources(l)
	if err == nil {
		err = s.request(l)
	}
	if err != nil {
		l.fail(err)
		s.remove(l) // nothing was journalled and nothing done
		return err
	}
	bound, stop := l.bind(ctx)
	defer stop()
	err = s.build(bound, l, image)
	if err == nil {
		s.watchOver(l)
		return nil
	}
	err = because(bound, err)
	l.fail(err)
	// The caller may be gone; undoing is ours to finish.
	err = errors.Join(err, s.end(context.WithoutCancel(ctx), l, failureEnd(err)))
	if l.state() == Quarantined {
		s.watchOver(l)
	}
	return err
}

func (l *lease) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buildErr = err
}

// failureEnd is how a lease ends that was never handed out.
func failureEnd(err error) End {
	switch {
	case errors.Is(err, errStopping):
		return End{Cause: CauseInfrastructure, Detail: "daemon stopped"}
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return End{Cause: CauseCancelled, Detail: "the caller went away before the lease was made"}
	}
	detail := err.Error()
	if code := fault.CodeOf(err); code != "" {
		detail = string(code) + ": " + detail
	}
	return End{Cause: CauseInfrastructure, Detail: detail}
}

// request journals the intent, before any effect.
func (s *Supervisor) request(l *lease) error {
	e := l.snapshot()
	err := s.journal.request(&e)
	if taken, ok := errors.AsType[*keyTakenError](err); ok {
		if err := sameEnvelope(taken.entry, e.EnvelopeDigest); err != nil {
			return err
		}
		return errState(taken.entry.State)
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entry.Fencing = e.Fencing
	l.events.add(eventState, map[string]string{"state": Requested.String()})
	return nil
}
