package supervisor

import (
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"cordon/internal/fault"
	"cordon/supervisor/evidence"
)

// The keys of the meta bucket.
const (
	metaFormat  = "format"
	metaHost    = "host_id"
	metaKey     = "public_key"
	metaChain   = "chain"
	formatValue = "cordon journal 1"
)

// openJournal opens or makes the journal file. The file's lock, which lasts
// as long as the file is open, is what keeps a second daemon out.
func openJournal(path string, key ed25519.PrivateKey, most int64) (*journal, error) {
	j := &journal{key: key, most: most}
	err := guard(func() error {
		db, err := bolt.Open(path, 0o600, &bolt.Options{
			Timeout:      time.Nanosecond, // one attempt at the lock
			FreelistType: bolt.FreelistMapType,
		})
		j.db = db
		return err
	})
	if err == nil {
		j.commit = j.db.Update
		err = guard(j.prepare)
	}
	if err == nil {
		return j, nil
	}
	if j.db != nil {
		err = errors.Join(err, j.db.Close())
	}
	return nil, openFault(path, err)
}

// openFault says what an operator can do about a journal that will not open.
func openFault(path string, err error) error {
	var (
		known   *fault.Fault
		pathErr *fs.PathError
	)
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, berrors.ErrTimeout):
		return fault.Wrap(err, fault.DaemonRunning, path, "is in use by another daemon", "stop that one, or use another state directory")
	case isDiskFull(err):
		return fault.Wrap(err, fault.DiskFull, path, "no space left to open the journal", "free space on its file system")
	case errors.As(err, &pathErr):
		return fmt.Errorf("open journal: %w", err)
	default:
		return fault.Wrap(err, fault.WrongState, path, "is damaged, or is not a journal",
			"restore it from a copy, or move it away to start anew; leases it knew are then swept as strays")
	}
}

// prepare makes the buckets of a new file, and checks an existing one.
func (j *journal) prepare() error {
	fresh, err := j.isFresh()
	if err != nil {
		return err
	}
	if fresh {
		if err := j.db.Update(j.create); err != nil {
			return err
		}
	}
	return j.db.View(j.inspect)
}

// isFresh reports whether the file has no bucket at all, and refuses a file
// that ends before its pages do: reading those would end the process.
func (j *journal) isFresh() (bool, error) {
	fresh := true
	err := j.db.View(func(tx *bolt.Tx) error {
		info, err := os.Stat(j.db.Path())
		if err != nil {
			return err
		}
		if info.Size() < tx.Size() {
			return fmt.Errorf("file has %d bytes, its pages need %d", info.Size(), tx.Size())
		}
		return tx.ForEach(func([]byte, *bolt.Bucket) error {
			fresh = false
			return nil
		})
	})
	return fresh, err
}

func (j *journal) create(tx *bolt.Tx) error {
	for _, name := range buckets() {
		if _, err := tx.CreateBucket([]byte(name)); err != nil {
			return err
		}
	}
	hostID := "h-" + randomHex(8)
	meta := tx.Bucket([]byte(bucketMeta))
	return errors.Join(
		meta.Put([]byte(metaFormat), []byte(formatValue)),
		meta.Put([]byte(metaHost), []byte(hostID)),
		meta.Put([]byte(metaKey), j.public()),
		putJSON(meta, metaChain, evidence.Position{HostID: hostID}),
	)
}

func buckets() []string {
	return []string{
		bucketMeta, bucketLeases, bucketOpen, bucketIDs, bucketKeys,
		bucketOwners, bucketProgress, bucketRecords,
	}
}

func (j *journal) public() ed25519.PublicKey {
	return j.key.Public().(ed25519.PublicKey) //nolint:forcetypeassert // documented result of ed25519
}

// inspect checks that the file is a journal of this version and key, that
// every open lease can be read, and that the chain ends where it says.
func (j *journal) inspect(tx *bolt.Tx) error {
	for _, name := range buckets() {
		if tx.Bucket([]byte(name)) == nil {
			return fmt.Errorf("bucket %s is missing", name)
		}
	}
	meta := tx.Bucket([]byte(bucketMeta))
	if got := meta.Get([]byte(metaFormat)); string(got) != formatValue {
		return fmt.Errorf("format is %q, this program knows %q", got, formatValue)
	}
	if got := meta.Get([]byte(metaKey)); !j.public().Equal(ed25519.PublicKey(got)) {
		return fault.New(fault.WrongState, evidence.KeyFile, "is not the key that signed the journal's records",
			"restore the key from a copy, or move the journal away to start a new chain")
	}
	j.hostID = string(meta.Get([]byte(metaHost)))
	err := tx.Bucket([]byte(bucketOpen)).ForEach(func(k, _ []byte) error {
		_, err := getEntry(tx, k)
		return err
	})
	if err != nil {
		return err
	}
	return j.inspectChain(tx)
}

func (j *journal) inspectChain(tx *bolt.Tx) error {
	at, err := chainEnd(tx)
	if err != nil {
		return err
	}
	last, raw := tx.Bucket([]byte(bucketRecords)).Cursor().Last()
	if last == nil && at.Sequence == 0 {
		return nil
	}
	report, err := evidence.Verify(raw, j.public())
	if err != nil {
		return fmt.Errorf("last record: %w", err)
	}
	if report.Head != at.Head || report.Link.Sequence != at.Sequence {
		return fmt.Errorf("last record is number %d with head %s, the chain ends at %d with %s",
			report.Link.Sequence, report.Head, at.Sequence, at.Head)
	}
	return nil
}

// guard turns what a damaged file does to bbolt into an error: it panics on
// pages that make no sense, and reading a page beyond the file's end faults.
func guard(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("journal is damaged: %v", v)
		}
	}()
	return fn()
}

// isDiskFull reports that the file system or the quota left no room.
func isDiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
