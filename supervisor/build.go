package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cordon/internal/fault"
	"cordon/jail"
	"cordon/supervisor/evidence"
)

// build makes the sandbox of a journalled lease, step by step. What a step
// leaves behind when a later one fails is noted on the lease first, and
// undone by the end that every lease goes through.
func (s *Supervisor) build(ctx context.Context, l *lease, image jail.Image) error {
	plan, err := s.plan(ctx, l, image)
	if err != nil {
		return err
	}
	if err := s.prepare(l, plan); err != nil {
		return err
	}
	j, err := s.cfg.Jailer.Make(ctx, plan)
	if err != nil {
		return portFault("make jail", l.id, err)
	}
	l.mu.Lock()
	l.jail, l.admitted = j, true
	expires := l.entry.ExpiresAt
	l.mu.Unlock()
	// Before the first command: an entry that is missing denies as well, but
	// does not count by lease.
	if err := s.cfg.Egress.Admit(j.CgroupID(), expires); err != nil {
		return portFault("admit egress", l.id, err)
	}
	readBack := j.ReadBack()
	l.mu.Lock()
	l.entry.ReadBack = readBack.Checks // the record shows it either way
	l.mu.Unlock()
	if err := checkReadBack(readBack); err != nil {
		return err
	}
	// A caller that is gone by now would never learn the secret.
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	return s.activate(l, j.CgroupID(), readBack.Checks)
}

// sources opens the image and looks for the inputs, which has no effect on
// the host. It comes before the intent is journalled: asking for what is not
// there must not make the journal grow.
func (s *Supervisor) sources(l *lease) (jail.Image, error) {
	image, err := s.cfg.Store.OpenImage(l.env.ImageDigest)
	if err != nil {
		return jail.Image{}, portFault("open image", l.id, err)
	}
	if image.Digest != l.env.ImageDigest {
		return jail.Image{}, fault.New(fault.DigestMismatch, "image_digest",
			fmt.Sprintf("the store opened %s for %s", image.Digest, l.env.ImageDigest), "import the image again")
	}
	inputs := l.env.Filesystem.Inputs
	if store, ok := s.cfg.Store.(InputChecker); ok && len(inputs) > 0 {
		err = store.CheckInputs(l.env.Identity.Tenant, inputs)
	}
	return image, portFault("look for inputs", l.id, err)
}

// plan attaches the inputs and plans the jail.
func (s *Supervisor) plan(ctx context.Context, l *lease, image jail.Image) (*jail.Plan, error) {
	l.mu.Lock()
	l.attached = true
	l.mu.Unlock()
	dir, err := s.cfg.Store.Attach(ctx, l.id, l.env.Identity.Tenant, l.env.Filesystem.Inputs)
	if err != nil {
		return nil, portFault("attach inputs", l.id, err)
	}
	e := l.snapshot()
	plan, err := jail.NewPlan(e.spec(image, dir), s.features)
	if err != nil {
		return nil, portFault("plan jail", l.id, err)
	}
	return plan, nil
}

// prepare journals that the plan is about to be carried out.
func (s *Supervisor) prepare(l *lease, plan *jail.Plan) error {
	digest := plan.Digest()
	l.mu.Lock()
	l.entry.PlanDigest = digest
	fencing := l.entry.Fencing
	err := l.moveLocked(Preparing)
	l.mu.Unlock()
	if err != nil {
		return err
	}
	return s.journal.change(fencing, func(e *entry) {
		e.State, e.PlanDigest = Preparing, digest
	})
}

// activate journals the lease as usable. Only then does it become so.
func (s *Supervisor) activate(l *lease, group uint64, checks []jail.Check) error {
	now := time.Now()
	l.mu.Lock()
	l.entry.CgroupID, l.entry.ActiveAt = group, now
	fencing := l.entry.Fencing
	l.mu.Unlock()
	err := s.journal.change(fencing, func(e *entry) {
		e.State, e.CgroupID, e.ReadBack, e.ActiveAt = Active, group, checks, now.UTC()
	})
	if err != nil {
		l.mu.Lock()
		l.entry.ActiveAt = time.Time{} // it never was
		l.mu.Unlock()
		return err
	}
	return l.move(Active)
}

// checkReadBack refuses a jail that differs from its plan, and one that
// nothing was read back of.
func checkReadBack(r jail.ReadBack) error {
	const remedy = "run cordon doctor; the host did not enforce what it was asked to"
	if len(r.Checks) == 0 {
		return fault.New(fault.ReadBackMismatch, "read_back", "is empty", remedy)
	}
	bad := r.Failed()
	if len(bad) == 0 {
		return nil
	}
	cause := fmt.Sprintf("wanted %q, the kernel says %q", bad[0].Want, bad[0].Got)
	if more := len(bad) - 1; more > 0 {
		cause += fmt.Sprintf(", and %d more differ", more)
	}
	return fault.New(fault.ReadBackMismatch, bad[0].Name, cause, remedy)
}

// portFault names what a port was doing, and makes a full disk what it is.
func portFault(what, leaseID string, err error) error {
	switch {
	case err == nil:
		return nil
	case fault.CodeOf(err) == "" && isDiskFull(err):
		return fault.Wrap(err, fault.DiskFull, "host", what+": no space left", "free space on the host")
	default:
		return fmt.Errorf("%s of lease %s: %w", what, leaseID, err)
	}
}

// because puts the reason why a context ended before the error of a port that
// gave up with it.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return errors.Join(cause, err)
	}
	return err
}

// mostUnflushed bounds what waits for a flush.
const mostUnflushed = 8192

// later queues progress for the next flush.
func (s *Supervisor) later(p progress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.unflushed) >= mostUnflushed {
		return // nobody flushes; the record is made from memory anyway
	}
	s.unflushed = append(s.unflushed, p)
}

// flush writes queued progress; what cannot be written is dropped, because a
// full disk must not fill the memory too. The record is made from memory.
func (s *Supervisor) flush() error {
	s.mu.Lock()
	items := s.unflushed
	s.unflushed = nil
	s.mu.Unlock()
	return s.journal.note(items...)
}

// noteNow journals an export before more of it happens.
func (s *Supervisor) noteNow(l *lease, index int, x evidence.Export) error {
	return s.journal.note(progress{
		fencing: l.snapshot().Fencing, kind: progressExport, index: uint32(index), value: x,
	})
}
