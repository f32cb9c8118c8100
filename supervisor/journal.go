package supervisor

import (
	"crypto/ed25519"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	"cordon/internal/fault"
	"cordon/jail"
	"cordon/supervisor/envelope"
	"cordon/supervisor/evidence"
)

// journal is the one durable store: which leases there are, what state they
// are in, and the signed records of those that have ended. Every method is
// one transaction; a commit is fsynced before it returns. It is safe for
// concurrent use.
//
//	meta      format, version, host_id, public_key, chain -> its end
//	leases    fencing -> entry
//	open      fencing -> 1 (leases that are not closed)
//	ids       lease id -> fencing
//	keys      owner uid, tenant, idempotency key -> fencing
//	owners    owner uid, fencing -> 1
//	progress  fencing, kind, index -> a command or export of an open lease
//	records   chain sequence -> signed entry
type journal struct {
	db     *bolt.DB
	commit func(func(*bolt.Tx) error) error // db.Update; a full disk in tests
	key    ed25519.PrivateKey
	hostID string
	most   int64 // bytes, before new leases are refused; 0: no bound
}

// The buckets. Numbers in keys are big-endian, so that order is age.
const (
	bucketMeta     = "meta"
	bucketLeases   = "leases"
	bucketOpen     = "open"
	bucketIDs      = "ids"
	bucketKeys     = "keys"
	bucketOwners   = "owners"
	bucketProgress = "progress"
	bucketRecords  = "records"
)

// present is the value of keys that only have to be there. It is not empty,
// because bbolt's Get answers nil for nothing and may for an empty value.
var present = []byte{1}

// entry is what the journal knows about a lease.
type entry struct {
	ID             string            `json:"id"`
	Fencing        uint64            `json:"fencing"`
	State          State             `json:"state"`
	OwnerUID       uint32            `json:"owner_uid"`
	Key            string            `json:"idempotency_key"`
	Envelope       envelope.Envelope `json:"envelope"`
	EnvelopeDigest string            `json:"envelope_digest"`
	PolicyDigest   string            `json:"policy_digest"`
	IDBase         uint32            `json:"id_base"`
	SecretHash     []byte            `json:"secret_hash"`
	RequestedAt    time.Time         `json:"requested_at"`
	ExpiresAt      time.Time         `json:"expires_at"`
	MaxExpiresAt   time.Time         `json:"max_expires_at"`

	// Since preparing.
	PlanDigest string `json:"plan_digest"`

	// Since active.
	ActiveAt time.Time    `json:"active_at,omitzero"`
	CgroupID uint64       `json:"cgroup_id"`
	ReadBack []jail.Check `json:"read_back,omitempty"` // dropped when closed

	// Since draining.
	EndedAt time.Time `json:"ended_at,omitzero"`
	End     End       `json:"end"`

	// Since the first record.
	Record    int64  `json:"record"` // chain sequence of the last record
	Head      string `json:"head"`
	LastEvent uint64 `json:"last_event"` // its sequence number
}

// progress is a command or an export of an open lease.
type progress struct {
	fencing uint64
	kind    progressKind
	index   uint32
	value   any // evidence.Exec or evidence.Export
}

type progressKind byte

const (
	progressExec   progressKind = 'x'
	progressExport progressKind = 'a'
)

// keyTakenError is request's answer to a key that an ended lease used.
type keyTakenError struct{ entry entry }

func (e *keyTakenError) Error() string {
	return "journal lease: idempotency key belongs to lease " + e.entry.ID
}

// request journals the intent to make a lease and fills in its fencing
// number.
func (j *journal) request(e *entry) error {
	return j.update("journal lease "+e.ID, func(tx *bolt.Tx) error {
		key := keyOf(e)
		if taken := tx.Bucket([]byte(bucketKeys)).Get(key); taken != nil {
			old, err := getEntry(tx, taken)
			if err != nil {
				return err
			}
			return &keyTakenError{entry: old}
		}
		if err := j.checkRoom(tx); err != nil {
			return err
		}
		leases := tx.Bucket([]byte(bucketLeases))
		n, err := leases.NextSequence()
		if err != nil {
			return err
		}
		e.Fencing = n
		return errors.Join(
			putEntry(tx, *e),
			tx.Bucket([]byte(bucketOpen)).Put(be64(n), present),
			tx.Bucket([]byte(bucketIDs)).Put([]byte(e.ID), be64(n)),
			tx.Bucket([]byte(bucketKeys)).Put(key, be64(n)),
			tx.Bucket([]byte(bucketOwners)).Put(ownerKey(e.OwnerUID, n), present),
		)
	})
}

// checkRoom refuses another lease when the journal is as big as it may grow.
// Only leases are refused: those that are there must be able to end.
func (j *journal) checkRoom(tx *bolt.Tx) error {
	stats := j.db.Stats()
	free := int64(stats.FreePageN+stats.PendingPageN) * int64(j.db.Info().PageSize)
	if used := tx.Size() - free; j.most > 0 && used >= j.most {
		return fault.New(fault.DiskFull, "journal", fmt.Sprintf("has %d bytes, new leases are refused from %d on", used, j.most),
			"move the journal away to start a new chain, once no lease is left")
	}
	return nil
}

// change journals a change of an open lease.
func (j *journal) change(fencing uint64, edit func(*entry)) error {
	return j.update("journal change", func(tx *bolt.Tx) error {
		e, err := getOpen(tx, fencing)
		if err != nil {
			return err
		}
		edit(&e)
		return putEntry(tx, e)
	})
}

// seal signs the record of an open lease as the chain's next entry and
// journals both with the lease's new state, in one transaction.
func (j *journal) seal(e entry, rec evidence.Record) (entry, error) {
	ready, err := evidence.Prepare(rec) // before the journal is held
	if err != nil {
		return e, err
	}
	err = j.update("journal record of "+e.ID, func(tx *bolt.Tx) error {
		if _, err := getOpen(tx, e.Fencing); err != nil {
			return err
		}
		at, err := chainEnd(tx)
		if err != nil {
			return err
		}
		out, next, err := ready.Sign(at, j.key)
		if err != nil {
			return err
		}
		e.Record, e.Head = next.Sequence, next.Head
		if e.State == Closed {
			e.ReadBack = nil
			if err := forget(tx, e); err != nil {
				return err
			}
		}
		return errors.Join(
			putEntry(tx, e),
			tx.Bucket([]byte(bucketRecords)).Put(be64(uint64(next.Sequence)), out),
			putJSON(tx.Bucket([]byte(bucketMeta)), metaChain, next),
		)
	})
	return e, err
}

// forget removes what only an open lease needs. A lease that never became
// active gives its idempotency key back: its attempt left nothing, so that
// another attempt repeats nothing.
func forget(tx *bolt.Tx, e entry) error {
	err := tx.Bucket([]byte(bucketOpen)).Delete(be64(e.Fencing))
	if e.ActiveAt.IsZero() {
		err = errors.Join(err, tx.Bucket([]byte(bucketKeys)).Delete(keyOf(&e)))
	}
	// Seek anew each time: a deletion moves what Next would find.
	c := tx.Bucket([]byte(bucketProgress)).Cursor()
	prefix := be64(e.Fencing)
	for k, _ := c.Seek(prefix); hasPrefix(k, prefix); k, _ = c.Seek(prefix) {
		if derr := c.Delete(); derr != nil {
			return errors.Join(err, derr)
		}
	}
	return err
}

// note journals progress of leases that are open; of others it is dropped.
func (j *journal) note(items ...progress) error {
	if len(items) == 0 {
		return nil
	}
	return j.update("journal progress", func(tx *bolt.Tx) error {
		for _, p := range items {
			if tx.Bucket([]byte(bucketOpen)).Get(be64(p.fencing)) == nil {
				continue
			}
			key := string(be64(p.fencing)) + string(byte(p.kind)) + string(binary.BigEndian.AppendUint32(nil, p.index))
			if err := putJSON(tx.Bucket([]byte(bucketProgress)), key, p.value); err != nil {
				return err
			}
		}
		return nil
	})
}

// update runs one writing transaction. bbolt takes a full disk as any other
// error and rolls back.
func (j *journal) update(what string, fn func(*bolt.Tx) error) error {
	err := guard(func() error { return j.commit(fn) })
	var (
		taken *keyTakenError
		known *fault.Fault
	)
	switch {
	case err == nil, errors.As(err, &taken), errors.As(err, &known):
		return err
	case isDiskFull(err):
		return fault.Wrap(err, fault.DiskFull, "state directory", what+": no space left", "free space on its file system")
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
}

func (j *journal) view(what string, fn func(*bolt.Tx) error) error {
	if err := guard(func() error { return j.db.View(fn) }); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func (j *journal) close() error {
	if err := j.db.Close(); err != nil {
		return fmt.Errorf("close journal: %w", err)
	}
	return nil
}

func getEntry(tx *bolt.Tx, fencing []byte) (entry, error) {
	var e entry
	raw := tx.Bucket([]byte(bucketLeases)).Get(fencing)
	if raw == nil {
		return e, fmt.Errorf("lease %x is missing", fencing)
	}
	if err := json.Unmarshal(raw, &e); err != nil {
		return e, fmt.Errorf("lease %x: %w", fencing, err)
	}
	return e, nil
}

func getOpen(tx *bolt.Tx, fencing uint64) (entry, error) {
	if tx.Bucket([]byte(bucketOpen)).Get(be64(fencing)) == nil {
		return entry{}, fmt.Errorf("lease %d is closed", fencing)
	}
	return getEntry(tx, be64(fencing))
}

func putEntry(tx *bolt.Tx, e entry) error {
	return putJSON(tx.Bucket([]byte(bucketLeases)), string(be64(e.Fencing)), e)
}

func putJSON(b *bolt.Bucket, key string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	return b.Put([]byte(key), raw)
}

func chainEnd(tx *bolt.Tx) (evidence.Position, error) {
	var at evidence.Position
	raw := tx.Bucket([]byte(bucketMeta)).Get([]byte(metaChain))
	if err := json.Unmarshal(raw, &at); err != nil {
		return at, fmt.Errorf("end of the chain: %w", err)
	}
	return at, nil
}

func be64(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

func ownerKey(uid uint32, fencing uint64) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uid), be64(fencing)...)
}

// keyOf puts the tenant's length first, so that no tenant and key run into
// another tenant's.
func keyOf(e *entry) []byte {
	tenant := e.Envelope.Identity.Tenant
	k := binary.BigEndian.AppendUint32(nil, e.OwnerUID)
	k = binary.BigEndian.AppendUint32(k, uint32(len(tenant)))
	return append(append(k, tenant...), e.Key...)
}

func hasPrefix(k, prefix []byte) bool {
	return len(k) >= len(prefix) && string(k[:len(prefix)]) == string(prefix)
}
