package supervisor

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"cordon/supervisor/evidence"
)

// byID is a lease of the journal by id.
func (j *journal) byID(id string) (e entry, found bool, err error) {
	err = j.view("look up lease", func(tx *bolt.Tx) error {
		fencing := tx.Bucket([]byte(bucketIDs)).Get([]byte(id))
		if fencing == nil {
			return nil
		}
		found = true
		e, err = getEntry(tx, fencing)
		return err
	})
	return e, found, err
}

// byFencing is a lease of the journal by its number.
func (j *journal) byFencing(fencing uint64) (e entry, err error) {
	err = j.view("read lease", func(tx *bolt.Tx) error {
		e, err = getEntry(tx, be64(fencing))
		return err
	})
	return e, err
}

// ownedBy is the numbers of at most limit of an owner's leases, newest first.
func (j *journal) ownedBy(uid uint32, limit int) (out []uint64, err error) {
	err = j.view("list leases", func(tx *bolt.Tx) error {
		prefix := ownerKey(uid, 0)[:4]
		c := tx.Bucket([]byte(bucketOwners)).Cursor()
		// Start behind the owner's last lease.
		k, _ := c.Seek(ownerKey(uid, 1<<64-1))
		if k == nil {
			k, _ = c.Last()
		} else if !hasPrefix(k, prefix) {
			k, _ = c.Prev()
		}
		for ; hasPrefix(k, prefix) && len(out) < limit; k, _ = c.Prev() {
			if len(k) != len(prefix)+8 {
				return fmt.Errorf("owner key %x has a wrong length", k)
			}
			out = append(out, binary.BigEndian.Uint64(k[len(prefix):]))
		}
		return nil
	})
	return out, err
}

// open is every lease that is not closed, oldest first, with its progress.
func (j *journal) open() (out []openLease, err error) {
	err = j.view("read open leases", func(tx *bolt.Tx) error {
		return tx.Bucket([]byte(bucketOpen)).ForEach(func(k, _ []byte) error {
			e, err := getEntry(tx, k)
			if err != nil {
				return err
			}
			o := openLease{entry: e}
			if err := o.readProgress(tx, k); err != nil {
				return err
			}
			out = append(out, o)
			return nil
		})
	})
	return out, err
}

// openLease is what an earlier daemon left in the journal.
type openLease struct {
	entry   entry
	execs   []evidence.Exec
	exports []evidence.Export
}

func (o *openLease) readProgress(tx *bolt.Tx, prefix []byte) error {
	c := tx.Bucket([]byte(bucketProgress)).Cursor()
	for k, v := c.Seek(prefix); hasPrefix(k, prefix); k, v = c.Next() {
		var err error
		switch progressKind(k[len(prefix)]) {
		case progressExec:
			o.execs, err = appendJSON(o.execs, v)
		case progressExport:
			o.exports, err = appendJSON(o.exports, v)
		default:
			err = fmt.Errorf("kind %q", k[len(prefix)])
		}
		if err != nil {
			return fmt.Errorf("progress of lease %d: %w", o.entry.Fencing, err)
		}
	}
	return nil
}

func appendJSON[T any](list []T, raw []byte) ([]T, error) {
	var v T
	if err := json.Unmarshal(raw, &v); err != nil {
		return list, err
	}
	return append(list, v), nil
}

// record is a signed entry of the chain by its sequence number.
func (j *journal) record(sequence int64) (raw []byte, err error) {
	err = j.view("read record", func(tx *bolt.Tx) error {
		v := tx.Bucket([]byte(bucketRecords)).Get(be64(uint64(sequence)))
		if v == nil {
			return fmt.Errorf("record %d is missing", sequence)
		}
		raw = append(raw, v...) // v is the transaction's
		return nil
	})
	return raw, err
}
