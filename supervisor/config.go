package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"cordon/jail"
	"cordon/supervisor/envelope"
	"cordon/supervisor/hostpolicy"
)

// Admission decides what a peer may ask for; hostpolicy.Policy implements it.
// It is pure: Supervisor calls it under its lock.
type Admission interface {
	// Admit refuses what the peer may not have, given what is in use.
	Admit(peer hostpolicy.Peer, env envelope.Envelope, inUse hostpolicy.InUse) error
	// Speaks returns a tenant that peer may speak for.
	Speaks(peer hostpolicy.Peer, tenant string) (hostpolicy.Tenant, bool)
	// Digest names the policy in records.
	Digest() string
}

var _ Admission = hostpolicy.Policy{}

// Config is everything a Supervisor depends on. A new field needs a line in
// check or a default in withDefaults.
type Config struct {
	// StateDir holds the journal and the record key; required. It is a
	// directory of root's with mode 0700.
	StateDir string
	// The ports; all required.
	Jailer    Jailer
	Egress    Egress
	Store     Store
	Admission Admission
	// CopyArtifact copies no more than most bytes of an opened artifact to w and
	// returns the bytes copied and their digest; required.
	CopyArtifact func(ctx context.Context, f *os.File, most int64, w io.Writer) (int64, string, error)
	// HostImage is the digest of this host's own snapshot, or empty; default
	// none.
	HostImage func() string

	// Version and RuntimeRevision of the daemon, for records; required. An
	// envelope that pins a runtime revision must name this one.
	Version         string
	RuntimeRevision string

	// IDBase is the first host id of the first lease's range and a multiple
	// of jail.IDRangeSize; required. IDRanges is how many ranges there are;
	// required.
	IDBase   uint32
	IDRanges int

	// MaxExecs bounds the commands that run in a lease at once; default 64,
	// which is what a jail has room for.
	MaxExecs int
	// CloseTimeout bounds the end of one lease; default 30 s.
	CloseTimeout time.Duration
	// DrainGrace is how long the end of a lease waits for a client to take
	// the output of commands that were ended; default 100 ms.
	DrainGrace time.Duration
	// RetryFirst and RetryMost bound the wait between attempts to clean a
	// quarantined lease; defaults 1 s and 5 min.
	RetryFirst time.Duration
	RetryMost  time.Duration
	// FlushEvery is how often commands are written to the journal while
	// their lease is alive; default 200 ms. A daemon that dies forgets at
	// most that much of them.
	FlushEvery time.Duration
	// MaxJournalBytes is how big the journal grows before new leases are
	// refused; default 1 GiB. Those that are there may pass it, each by no
	// more than its record, so that they can end.
	MaxJournalBytes int64
	// AcquireRate is how many leases an owner may ask for in a second, and
	// AcquireBurst how many at once after a rest; defaults 20 and 200.
	AcquireRate  int
	AcquireBurst int

	// Log takes what an operator should see; default nowhere.
	Log *slog.Logger
}

func (c Config) withDefaults() Config {
	for _, n := range []struct {
		field *int
		value int
	}{{&c.MaxExecs, 64}, {&c.AcquireRate, 20}, {&c.AcquireBurst, 200}} {
		if *n.field == 0 {
			*n.field = n.value
		}
	}
	if c.MaxJournalBytes == 0 {
		c.MaxJournalBytes = 1 << 30
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&c.CloseTimeout, 30 * time.Second},
		{&c.DrainGrace, 100 * time.Millisecond},
		{&c.RetryFirst, time.Second},
		{&c.RetryMost, 5 * time.Minute},
		{&c.FlushEvery, 200 * time.Millisecond},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
	}
	if c.HostImage == nil {
		c.HostImage = func() string { return "" }
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// check returns every reason why c cannot be used.
func (c Config) check() error {
	const lastID = 1<<32 - 1
	ranges := int64(c.IDBase) + int64(c.IDRanges)*jail.IDRangeSize
	var errs []error
	for _, rule := range []struct {
		ok  bool
		why string
	}{
		{c.StateDir != "", "StateDir is missing"},
		{c.Jailer != nil, "Jailer is missing"},
		{c.Egress != nil, "Egress is missing"},
		{c.Store != nil, "Store is missing"},
		{c.Admission != nil, "Admission is missing"},
		{c.CopyArtifact != nil, "CopyArtifact is missing"},
		{c.Version != "", "Version is missing"},
		{c.RuntimeRevision != "", "RuntimeRevision is missing"},
		{c.IDBase >= jail.IDRangeSize, "IDBase overlaps the host's own ids"},
		{c.IDBase%jail.IDRangeSize == 0, "IDBase is no multiple of the range size"},
		{c.IDRanges > 0, "IDRanges is missing"},
		{ranges <= lastID, "IDRanges reach past the last host id"},
		{c.MaxExecs > 0, "MaxExecs is negative"},
		{c.CloseTimeout > 0 && c.DrainGrace > 0, "CloseTimeout or DrainGrace is negative"},
		{c.RetryFirst > 0 && c.RetryMost >= c.RetryFirst, "RetryFirst and RetryMost are no bounds"},
		{c.FlushEvery > 0, "FlushEvery is negative"},
		{c.MaxJournalBytes > 0, "MaxJournalBytes is negative"},
		{c.AcquireRate > 0 && c.AcquireBurst > 0, "AcquireRate or AcquireBurst is negative"},
	} {
		if !rule.ok {
			errs = append(errs, errors.New(rule.why))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("configure supervisor: %w", err)
	}
	return nil
}

// Keys of log attributes.
const (
	keyLease    = "lease"
	keyTenant   = "tenant"
	keyRun      = "run"
	keyOwner    = "owner_uid"
	keyExec     = "exec"
	keyState    = "state"
	keyCause    = "cause"
	keyDetail   = "detail"
	keyCode     = "code"
	keyField    = "field"
	keyFindings = "findings"
	keyPath     = "path"
	keyAttempt  = "attempt"
	keyLeft     = "leftovers"
	keyError    = "error"
)
