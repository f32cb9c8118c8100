package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"cordon/api/client"
	"cordon/internal/fault"
	"cordon/supervisor/envelope"
)

const (
	// releaseTime is somewhat more than what the daemon allows a release.
	releaseTime = 150 * time.Second
	// goneTime is how long a daemon that went away may take to come back.
	goneTime = 5 * time.Second
)

// summary is what run --json says.
type summary struct {
	LeaseID     string      `json:"lease_id"`
	Tenant      string      `json:"tenant"`
	RunID       string      `json:"run_id"`
	ImageDigest string      `json:"image_digest"`
	ExecID      string      `json:"exec_id"`
	ExitStatus  int         `json:"exit_status"`
	End         *client.End `json:"end"` // null: not known
	Artifacts   []exported  `json:"artifacts"`
	RecordHead  string      `json:"record_head"` // empty when the lease was kept
	RecordFile  string      `json:"record_file,omitempty"`
	Released    bool        `json:"released"`
	Failures    []failure   `json:"failures"`
}

// running is one run on its way. What goes wrong after the lease exists is
// gathered in errs, because the way goes on to the release.
type running struct {
	a         *app
	i         *interrupts
	c         *client.Client
	lease     *client.Lease // nil when there is nothing to release
	env       *envelope.Envelope
	command   string
	keep      bool
	record    *target
	artifacts []artifact
	rec       client.Record // when released
	out       summary
	errs      []error
}

func (a *app) run(ctx context.Context, f *runFlags, argv []string) error {
	r, e, in, err := a.prepareRun(f)
	if err != nil {
		return err
	}
	cmd, err := a.command(f.command, argv)
	if err != nil {
		return err
	}
	r.command = argv[0]
	r.i = newInterrupts(a.signals())
	defer r.i.close()
	if r.c, err = a.dial(ctx); err != nil {
		return err
	}
	defer r.c.Close() //nolint:errcheck // nothing is in flight any more

	if e, err = r.request(ctx, &f.request, e, in); err != nil {
		return err
	}
	if err := r.acquire(ctx, e); err != nil {
		return err
	}
	// Not only where the way ends: a panic must not leave a lease behind.
	defer r.release(ctx)
	if err := r.i.caught(); err != nil {
		return err
	}
	closed := r.execute(ctx, cmd, wiring{tty: f.command.tty, noStdin: f.command.noStdin})
	if !closed {
		r.export(ctx)
	}
	r.release(ctx)
	if closed {
		for _, err := range r.errs {
			a.report(err)
		}
		return exited(statusPipe)
	}
	return r.finish()
}

// prepareRun does all that needs no daemon.
func (a *app) prepareRun(f *runFlags) (r *running, e envelope.Envelope, in []inputFile, err error) {
	r = &running{a: a, keep: f.keep}
	if e, err = f.request.base(); err != nil {
		return nil, e, nil, err
	}
	if in, err = parseInputs(f.request.inputs); err != nil {
		return nil, e, nil, err
	}
	if r.artifacts, err = parseArtifacts(f.artifacts, f.force); err != nil {
		return nil, e, nil, err
	}
	for _, art := range r.artifacts {
		declare(&e, []string{art.path})
	}
	if f.record != "" {
		t, err := newTarget(f.record, "record.json", f.force)
		if err != nil {
			return nil, e, nil, err
		}
		r.record = &t
	}
	if f.keep && f.record != "" {
		return nil, e, nil, fault.New(fault.InvalidArgument, "--record", "a lease that is kept has no record yet",
			"leave out --keep, or use cordon lease release --record")
	}
	return r, e, in, nil
}

func (r *running) request(ctx context.Context, f *requestFlags, e envelope.Envelope, in []inputFile) (envelope.Envelope, error) {
	ctx, leave := r.i.enter(ctx, cancelling)
	defer leave()
	e, err := r.a.request(ctx, r.c, f, e, in)
	return e, because(ctx, err)
}

// acquire holds signals back: a lease whose answer nobody waited for would
// have to expire.
func (r *running) acquire(ctx context.Context, e envelope.Envelope) error {
	ctx, leave := r.i.enter(ctx, holding)
	defer leave()
	lease, err := r.c.Acquire(ctx, e, client.AcquireOptions{})
	if lease == nil {
		return because(ctx, err)
	}
	r.lease, r.env = lease, &lease.Envelope
	info := lease.Acquired
	r.out = summary{LeaseID: lease.ID(), Tenant: info.Tenant, RunID: info.RunID, ImageDigest: info.ImageDigest}
	if err != nil {
		r.release(ctx)
		return errors.Join(append([]error{err}, r.errs...)...)
	}
	// For the day this process is killed outright: whoever looks can release.
	if err := r.a.secrets().save(lease.ID(), lease.Secret()); err != nil && r.keep {
		r.errs = append(r.errs, err)
	}
	return nil
}

// execute runs the command; closed means that nobody reads our output any
// more.
func (r *running) execute(ctx context.Context, cmd client.Command, w wiring) (closed bool) {
	cmd.Started = func(id string) { r.out.ExecID = id }
	end, err := r.a.wired(ctx, r.i, w, func(ctx context.Context, s client.Streams, size client.Size) (client.End, error) {
		cmd.Stdin, cmd.Stdout, cmd.Stderr = s.Stdin, s.Stdout, s.Stderr
		cmd.Resize, cmd.Signals, cmd.Size = s.Resize, s.Signals, size
		return r.lease.Run(ctx, cmd)
	})
	switch {
	case isClosedPipe(err):
		return true
	case client.CodeOf(err) == client.Unavailable:
		r.errs = append(r.errs, goneAway(err))
	case err != nil:
		r.errs = append(r.errs, err)
	default:
		r.out.End = &end
	}
	return false
}

// export takes the artifacts out, each on its own: of a run that failed, the
// log is what one wants most.
func (r *running) export(ctx context.Context) {
	if r.out.End == nil {
		return
	}
	ctx, leave := r.i.enter(ctx, cancelling)
	defer leave()
	for _, art := range r.artifacts {
		got, err := exportTo(ctx, r.lease, art.path, art.to)
		if err != nil {
			r.errs = append(r.errs, because(ctx, err))
			continue
		}
		r.out.Artifacts = append(r.out.Artifacts, got)
	}
}

// release gives the lease back, once. It outlives the caller's context, which
// may be what ended the run.
func (r *running) release(ctx context.Context) {
	if r.lease == nil || r.keep {
		return
	}
	lease := r.lease
	r.lease = nil
	limit := releaseTime
	for _, err := range r.errs {
		if fault.CodeOf(err) == unavailable {
			limit = goneTime
		}
	}
	ctx, leave := r.i.enter(context.WithoutCancel(ctx), holding)
	defer leave()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	rec, err := lease.Release(ctx)
	if err != nil {
		r.errs = append(r.errs, notReleased(lease, because(ctx, err)))
		return
	}
	r.a.secrets().drop(lease.ID())
	r.rec = rec
	r.out.Released, r.out.RecordHead = true, rec.Head
	if err := notClean(lease.ID(), rec); err != nil {
		r.errs = append(r.errs, err)
	}
	if r.record != nil {
		r.writeRecord(rec)
	}
}

func (r *running) writeRecord(rec client.Record) {
	if err := r.record.write(recordLine(rec)); err != nil {
		r.errs = append(r.errs, err)
		return
	}
	r.out.RecordFile = r.record.path
}

// unavailable is the code of a daemon that is not there.
const unavailable = fault.Code(client.Unavailable)

// goneAway is a daemon that went away while a command ran: how that ended
// nobody knows.
func goneAway(err error) error {
	return fault.New(unavailable, "cordond", "went away while the command ran: "+failures(err)[0].Cause,
		"see whether it still runs (systemctl status cordond); it ends the command when it is back")
}

// notReleased says what becomes of a lease that could not be given back.
func notReleased(lease *client.Lease, err error) error {
	f := failures(err)[0]
	return fault.New(fault.Code(f.Code), "lease "+lease.ID(), "not released: "+f.Cause,
		"cordon lease release "+lease.ID()+"; by itself it ends at "+lease.Acquired.ExpiresAt.UTC().Format(time.RFC3339))
}

// notClean is an error when the record says that something of the lease is
// left. Whether the record is genuine is not the question here: who answered
// is the daemon.
func notClean(leaseID string, rec client.Record) error {
	var doc struct {
		Record struct {
			State string `json:"state"`
		} `json:"record"`
	}
	if err := json.Unmarshal(rec.JSON, &doc); err != nil {
		return fmt.Errorf("record of lease %s: %w", leaseID, err)
	}
	if doc.Record.State == "closed" {
		return nil
	}
	return fault.New(fault.WrongState, "lease "+leaseID, "is "+doc.Record.State+": something of it may be left on the host",
		"see cordon evidence show "+leaseID)
}

// finish says how the run ended and returns its exit status.
func (r *running) finish() error {
	status := statusFailed
	if r.out.End != nil {
		status = statusOf(*r.out.End)
	}
	var by interrupted
	switch err := errors.Join(r.errs...); {
	case err == nil:
	case r.out.End == nil && errors.As(err, &by):
		status = statusSignal + int(by.sig)
	case status == 0:
		status = statusFailed
	}
	r.out.ExitStatus = status
	r.say()
	if status == 0 {
		return nil
	}
	return exited(status)
}

func (r *running) say() {
	a := r.a
	if a.json {
		r.out.Artifacts = list(r.out.Artifacts)
		r.out.Failures = []failure{}
		for _, err := range r.errs {
			r.out.Failures = append(r.out.Failures, failures(err)...)
		}
		_ = encodeLine(a.stderr, r.out) // there is no place left to complain
		return
	}
	if r.out.End != nil {
		if cause := causeOf(*r.out.End, r.command, r.env); cause != "" {
			fmt.Fprintf(a.stderr, "cordon: %s\n", cause)
		}
	}
	for _, err := range r.errs {
		a.report(err)
	}
	if r.keep {
		fmt.Fprintf(a.stderr, "cordon: lease %s kept until %s [cordon lease release %s]\n",
			r.lease.ID(), r.lease.Acquired.ExpiresAt.UTC().Format(time.RFC3339), r.lease.ID())
	}
}
