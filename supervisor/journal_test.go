package supervisor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"cordon/internal/fault"
	"cordon/jail"
	"cordon/supervisor/evidence"
)

func testJournal(t *testing.T, dir string) *journal {
	t.Helper()
	j, err := openTestJournal(dir, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.close() })
	return j
}

func openTestJournal(dir string, most int64) (*journal, error) {
	key, err := evidence.LoadOrCreateKey(dir)
	if err != nil {
		return nil, err
	}
	return openJournal(filepath.Join(dir, journalFile), key, most)
}

func testEntry(id string) entry {
	return entry{ID: id, State: Requested, OwnerUID: 7, Key: id, Envelope: testEnvelope(), SecretHash: []byte{1}}
}

func TestJournalOneDaemon(t *testing.T) {
	dir := t.TempDir()
	first := testJournal(t, dir)
	began := time.Now()
	_, err := openTestJournal(dir, 0)
	wantCode(t, "second", err, fault.DaemonRunning)
	if took := time.Since(began); took > 500*time.Millisecond {
		t.Errorf("the second daemon waited %s", took)
	}
	if err := first.close(); err != nil {
		t.Fatal(err)
	}
	again := testJournal(t, dir)
	if again.hostID != first.hostID || !strings.HasPrefix(again.hostID, "h-") {
		t.Errorf("host ids %q and %q", first.hostID, again.hostID)
	}
}

func TestJournalMode(t *testing.T) {
	dir := t.TempDir()
	testJournal(t, dir)
	info, err := os.Stat(filepath.Join(dir, journalFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
}

// TestJournalDamaged opens files that are not a good journal. None may be
// taken for one, end the process, or be written to.
func TestJournalDamaged(t *testing.T) {
	tests := []struct {
		name   string
		damage func(t *testing.T, path string)
	}{
		{"text", func(t *testing.T, path string) { write(t, path, bytes.Repeat([]byte("not a journal\n"), 5000)) }},
		{"zeros", func(t *testing.T, path string) { write(t, path, make([]byte, 64<<10)) }},
		{"short", func(t *testing.T, path string) { write(t, path, []byte("x")) }},
		{"cut in half", func(t *testing.T, path string) { cut(t, path, 2) }},
		{"cut to a quarter", func(t *testing.T, path string) { cut(t, path, 4) }},
		{"pages of noise", func(t *testing.T, path string) { noise(t, path, 2*os.Getpagesize()) }},
		{"both meta pages of noise", func(t *testing.T, path string) { noise(t, path, 0) }},
		{"somebody else's", func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			edit(t, path, func(tx *bolt.Tx) error { _, err := tx.CreateBucket([]byte("sessions")); return err })
		}},
		{"a later format", func(t *testing.T, path string) {
			edit(t, path, func(tx *bolt.Tx) error { return put(tx, bucketMeta, metaFormat, "cordon journal 2") })
		}},
		{"a bucket less", func(t *testing.T, path string) {
			edit(t, path, func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte(bucketKeys)) })
		}},
		{"an open lease that is no JSON", func(t *testing.T, path string) {
			edit(t, path, func(tx *bolt.Tx) error { return put(tx, bucketLeases, string(be64(2)), "{") })
		}},
		{"an open lease that is missing", func(t *testing.T, path string) {
			edit(t, path, func(tx *bolt.Tx) error { return put(tx, bucketOpen, string(be64(99)), "1") })
		}},
		{"a chain that ends elsewhere", func(t *testing.T, path string) {
			edit(t, path, func(tx *bolt.Tx) error { return put(tx, bucketMeta, metaChain, `{"Sequence":7,"Head":"x"}`) })
		}},
		{"a chain that begins anew", func(t *testing.T, path string) {
			edit(t, path, func(tx *bolt.Tx) error { return put(tx, bucketMeta, metaChain, `{}`) })
		}},
		{"a last record that was changed", func(t *testing.T, path string) {
			edit(t, path, func(tx *bolt.Tx) error {
				raw := tx.Bucket([]byte(bucketRecords)).Get(be64(1))
				return put(tx, bucketRecords, string(be64(1)), strings.Replace(string(raw), "closed", "cloned", 1))
			})
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, journalFile)
			j := testJournal(t, dir)
			fill(t, j)
			if err := j.close(); err != nil {
				t.Fatal(err)
			}
			tt.damage(t, path)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			_, err = openTestJournal(dir, 0)
			wantCode(t, "open", err, fault.WrongState)
			var f *fault.Fault
			if errors.As(err, &f) && (f.Field != path || f.Remedy == "") {
				t.Errorf("got field %q, remedy %q", f.Field, f.Remedy)
			}
			if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
				t.Error("the file was changed")
			}
		})
	}
}

// fill gives a journal a closed lease with a record and an open one.
func fill(t *testing.T, j *journal) {
	t.Helper()
	for i := range 2 {
		e := testEntry(fmt.Sprint("l-", i))
		if err := j.request(&e); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			e.State = Closed
			if _, err := j.seal(e, testRecord()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func cut(t *testing.T, path string, by int64) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()/by); err != nil {
		t.Fatal(err)
	}
}

// noise overwrites everything from an offset on.
func noise(t *testing.T, path string, from int) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := from; i < len(data); i++ {
		data[i] = byte(i*7 + 13)
	}
	write(t, path, data)
}

func edit(t *testing.T, path string, fn func(*bolt.Tx) error) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Update(fn), db.Close()); err != nil {
		t.Fatal(err)
	}
}

func put(tx *bolt.Tx, bucket, key, value string) error {
	return tx.Bucket([]byte(bucket)).Put([]byte(key), []byte(value))
}

func testRecord() evidence.Record {
	rec := evidence.Record{Schema: evidence.Schema, State: "closed", Envelope: recordEnvelope(testEnvelope())}
	_, digest, err := (&Supervisor{}).checkEnvelope(testEnvelope())
	if err != nil {
		panic(err)
	}
	rec.Digests = evidence.Digests{Image: testImage, Envelope: digest}
	rec.Cleanup = evidence.Cleanup{Clean: true, Items: plainItems([]jail.CleanupItem{{Kind: "traces"}})}
	return rec
}

func TestJournalAnotherKey(t *testing.T) {
	dir := t.TempDir()
	j := testJournal(t, dir)
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, evidence.KeyFile)); err != nil {
		t.Fatal(err)
	}
	_, err := openTestJournal(dir, 0)
	wantCode(t, "open", err, fault.WrongState)
	var f *fault.Fault
	if !errors.As(err, &f) || f.Field != evidence.KeyFile {
		t.Errorf("got %v", err)
	}
}

// TestJournalFull: bbolt's own bound stands in for the disk's. What fits is
// kept, what does not leaves no trace, and the file stays good.
func TestJournalFull(t *testing.T) {
	dir := t.TempDir()
	j, err := openTestJournal(dir, 128<<10)
	if err != nil {
		t.Fatal(err)
	}
	var last entry
	n := 0
	for ; ; n++ {
		e := testEntry(fmt.Sprint("l-", n))
		if err = j.request(&e); err != nil {
			break
		}
		last = e
	}
	wantCode(t, "request", err, fault.DiskFull)
	if n < 10 {
		t.Fatalf("only %d leases fitted", n)
	}
	// What is there can go on, as far past the bound as it needs.
	for range 100 {
		err := j.change(last.Fencing, func(e *entry) { e.PlanDigest += strings.Repeat("x", 4<<10) })
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := j.close(); err != nil {
		t.Fatal(err)
	}
	j = testJournal(t, dir)
	open, err := j.open()
	if err != nil || len(open) != n || open[n-1].entry.ID != last.ID {
		t.Errorf("%d of %d leases, %v", len(open), n, err)
	}
	if _, found, err := j.byID(fmt.Sprint("l-", n)); found || err != nil {
		t.Errorf("the lease that did not fit: %v, %v", found, err)
	}
	e := testEntry("l-next")
	if err := j.request(&e); err != nil || e.Fencing != uint64(n+1) {
		t.Errorf("next: fencing %d, %v", e.Fencing, err)
	}
}

func TestJournalClosedLeaseIsFinal(t *testing.T) {
	j := testJournal(t, t.TempDir())
	fill(t, j)
	if err := j.change(1, func(e *entry) { e.State = Active }); err == nil {
		t.Error("a closed lease was changed")
	}
	if _, err := j.seal(entry{ID: "l-0", Fencing: 1, State: Closed}, testRecord()); err == nil {
		t.Error("a closed lease was sealed again")
	}
	if err := j.note(progress{fencing: 1, kind: progressExec, value: pastExec()}); err != nil {
		t.Error(err)
	}
	err := j.view("look", func(tx *bolt.Tx) error {
		if k, _ := tx.Bucket([]byte(bucketProgress)).Cursor().First(); k != nil {
			t.Errorf("a closed lease has progress %x", k)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestJournalProgress: the last word on each command counts, and other
// leases' progress stays apart.
func TestJournalProgress(t *testing.T) {
	j := testJournal(t, t.TempDir())
	for i := range 3 {
		e := testEntry(fmt.Sprint("l-", i))
		if err := j.request(&e); err != nil {
			t.Fatal(err)
		}
	}
	var items []progress
	for lease := uint64(1); lease <= 3; lease++ {
		for i := range uint32(300) {
			x := pastExec()
			x.ID = fmt.Sprintf("e-%d-%d", lease, i)
			items = append(items, progress{fencing: lease, kind: progressExec, index: i, value: evidence.Exec{ID: "early"}},
				progress{fencing: lease, kind: progressExec, index: i, value: x})
		}
		items = append(items, progress{fencing: lease, kind: progressExport, value: evidence.Export{Path: fmt.Sprint(lease)}})
	}
	if err := j.note(items...); err != nil {
		t.Fatal(err)
	}
	if _, err := j.seal(entry{ID: "l-1", Fencing: 2, State: Closed}, testRecord()); err != nil {
		t.Fatal(err)
	}
	open, err := j.open()
	if err != nil || len(open) != 2 {
		t.Fatalf("%d leases, %v", len(open), err)
	}
	for _, o := range open {
		if len(o.execs) != 300 || o.execs[299].ID != fmt.Sprintf("e-%d-299", o.entry.Fencing) || len(o.exports) != 1 {
			t.Errorf("lease %d has %d commands, %d exports", o.entry.Fencing, len(o.execs), len(o.exports))
		}
	}
}

func TestNewChecksConfig(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("empty config: accepted")
	} else {
		for _, want := range []string{"StateDir", "Jailer", "Egress", "Store", "Admission", "CopyArtifact", "Version", "RuntimeRevision", "IDBase", "IDRanges"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s is not named in: %v", want, err)
			}
		}
	}
	host := newFakeHost(t.TempDir())
	good := (&harness{host: host, admit: &fakeAdmission{}, stateDir: t.TempDir(), log: &bytes.Buffer{}}).config()
	for name, change := range map[string]func(*Config){
		"base in the host's ids": func(c *Config) { c.IDBase = 0 },
		"base between ranges":    func(c *Config) { c.IDBase++ },
		"ranges past the end":    func(c *Config) { c.IDRanges = 1 << 16 },
		"negative execs":         func(c *Config) { c.MaxExecs = -1 },
		"negative timeout":       func(c *Config) { c.CloseTimeout = -1 },
		"retries the wrong way":  func(c *Config) { c.RetryFirst = c.RetryMost + 1<<40 },
		"negative bound":         func(c *Config) { c.MaxJournalBytes = -1 },
		"negative rate":          func(c *Config) { c.AcquireRate = -1 },
		"negative burst":         func(c *Config) { c.AcquireBurst = -1 },
	} {
		bad := good
		change(&bad)
		if _, err := New(bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	sup, err := New(good)
	if err != nil {
		t.Fatal(err)
	}
	if err := sup.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
