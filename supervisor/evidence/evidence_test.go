package evidence

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cordon/jail"
	"cordon/supervisor/envelope"
)

var update = flag.Bool("update", false, "rewrite golden files")

func testKey(n byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{n}, ed25519.SeedSize))
}

func publicOf(key ed25519.PrivateKey) ed25519.PublicKey {
	return key.Public().(ed25519.PublicKey)
}

func testRecord(id string) Record {
	at := time.Date(2025, 3, 4, 5, 6, 7, 890, time.UTC)
	env := envelope.Envelope{
		ImageDigest: "sha256:" + strings.Repeat("ab", 32),
		Identity:    envelope.Identity{Tenant: "acme", RunID: "run-1", AttemptID: "1", UID: 1000, Principal: "alice@example.org"},
		Resources:   envelope.Resources{CPUMilli: 1500, MemoryBytes: 1 << 30, WallClock: time.Minute},
		Artifacts:   envelope.Artifacts{Allow: []string{"result.json"}, Scan: true, Hash: true},
	}
	env = envelope.Complete(env)
	envDigest, err := envelope.Digest(env)
	if err != nil {
		panic(err)
	}
	return Record{
		Schema: Schema, State: "closed",
		Lease:    Lease{ID: id, Fencing: 7, OwnerUID: 1000, IDBase: 1 << 20, RequestedAt: at, ActiveAt: at.Add(time.Second), ExpiresAt: at.Add(time.Hour), EndedAt: at.Add(time.Minute), ClosedAt: at.Add(2 * time.Minute)},
		Identity: Identity{Tenant: "acme", RunID: "run-1", AttemptID: "1", Principal: "alice@example.org"},
		Envelope: env,
		Digests:  Digests{Envelope: envDigest, HostPolicy: "sha256:h", Plan: "sha256:p", Image: env.ImageDigest},
		Host:     Host{Version: "0.1", RuntimeRevision: "r1", Kernel: "6.18.5", CgroupMode: "hybrid"},
		ReadBack: []jail.Check{{Name: "memory.max", Want: "1", Got: "1", OK: true}},
		Usage:    Usage{CPUUserUS: 1200, OutputBytes: 42},
		Network:  Network{Denied: 3, Destinations: []Destination{{Hook: "connect4", Address: "169.254.169.254", Port: 80, Proto: "tcp", Verdict: "deny", Errno: "EPERM", Count: 3, First: at, Last: at}}},
		Execs:    []Exec{{ID: "e-1", Argv0: "sh\x1b[31m<&>\u2028", ArgvDigest: ArgvDigest([]string{"sh"}), StartedAt: at, EndedAt: at, End: End{Cause: "exited", Witness: "kernel"}}},
		Exports:  []Export{{Path: "result.json", Complete: true, Bytes: 9, Digest: "sha256:d", Scan: ScanNotPerformed, At: at}},
		End:      End{Cause: "released"},
		Cleanup:  Cleanup{Clean: true, Attempts: 1, Items: []jail.CleanupItem{{Kind: "processes", Looked: "cgroup.procs", Leftovers: []string{}}}},
		Remanence: Remanence{
			Checked:    []string{"processes"},
			NotChecked: []string{"disk blocks of the removed volume"},
		},
	}
}

func mustSign(t testing.TB, rec Record, at Position, key ed25519.PrivateKey) ([]byte, Position) {
	t.Helper()
	p, err := Prepare(rec)
	if err != nil {
		t.Fatal(err)
	}
	entry, next, err := p.Sign(at, key)
	if err != nil {
		t.Fatal(err)
	}
	return entry, next
}

func TestSignVerify(t *testing.T) {
	key := testKey(1)
	entry, pos := mustSign(t, testRecord("l-1"), Position{HostID: "h-1"}, key)
	got, err := Verify(append(entry, '\n'), publicOf(key))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(testRecord("l-1"), got.Record); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	if got.Head != pos.Head || pos.Sequence != 1 || pos.HostID != "h-1" {
		t.Errorf("got head %s, position %+v", got.Head, pos)
	}
	golden(t, "report.txt", got.String())
	golden(t, "entry.json", string(entry)+"\n")
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// resign replaces a part of the entry and makes digest, head and signature
// right again, as somebody who holds the key could.
func resign(t *testing.T, entry []byte, key ed25519.PrivateKey, edit func(*Entry)) []byte {
	t.Helper()
	var e Entry
	if err := json.Unmarshal(entry, &e); err != nil {
		t.Fatal(err)
	}
	edit(&e)
	e.Link.RecordSHA256 = digest("", e.Record)
	out, err := seal(&e, key)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func replaced(doc []byte, old, with string) []byte {
	if !bytes.Contains(doc, []byte(old)) {
		panic("no " + old)
	}
	return bytes.Replace(doc, []byte(old), []byte(with), 1)
}

func TestVerifyTampered(t *testing.T) {
	key := testKey(1)
	entry, _ := mustSign(t, testRecord("l-1"), Position{HostID: "h-1"}, key)
	pos9 := Position{HostID: "h-1", Sequence: 9, Head: "sha256:9"}
	quarantined := testRecord("l-1")
	quarantined.State = "quarantined"
	unclean := testRecord("l-1")
	unclean.Cleanup.Items[0].Leftovers = []string{"pid 1"}
	otherImage := testRecord("l-1")
	otherImage.Digests.Image = "sha256:x"
	otherEnvelope := testRecord("l-1")
	otherEnvelope.Envelope.Resources.MemoryBytes++
	oldSchema := testRecord("l-1")
	oldSchema.Schema = "cordon.record/0"
	sign := func(r Record) []byte { b, _ := mustSign(t, r, pos9, key); return b }

	tests := []struct {
		name string
		in   []byte
		want error
	}{
		{"empty", nil, ErrSyntax},
		{"cut short", entry[:len(entry)-1], ErrSyntax},
		{"two documents", append(bytes.Clone(entry), entry...), ErrSyntax},
		{"not an object", []byte("7"), ErrFieldType},
		{"null", []byte("null"), ErrFieldType},
		{"deep", []byte(strings.Repeat("[", 1000)), ErrSyntax},
		{"too large", bytes.Repeat([]byte(" "), maxEntry+1), ErrTooLarge},
		{"key twice", replaced(entry, `{"head":`, `{"head":"x","head":`), ErrDuplicateKey},
		{"key twice in record", replaced(entry, `"fencing":7`, `"fencing":7,"fencing":7`), ErrDuplicateKey},
		{"unknown field", replaced(entry, `{"head":`, `{"extra":1,"head":`), ErrUnknownField},
		{"unknown field in link", replaced(entry, `"version":1}`, `"version":1,"z":1}`), ErrUnknownField},
		{"unknown field in record", replaced(entry, `"fencing":7`, `"fencing":7,"fencinh":7`), ErrUnknownField},
		{"field of another type", replaced(entry, `"fencing":7`, `"fencing":"7"`), ErrFieldType},
		{"time that is none", replaced(entry, `"requested_at":"2025`, `"requested_at":"20x5`), ErrFieldType},
		{"fraction", replaced(entry, `"fencing":7`, `"fencing":7.0`), ErrNumber},
		{"exponent", replaced(entry, `"fencing":7`, `"fencing":7e0`), ErrNumber},
		{"beyond a double", replaced(entry, `"fencing":7`, `"fencing":9007199254740993`), ErrNumber},
		{"space", replaced(entry, `"fencing":7`, `"fencing": 7`), ErrNotCanonical},
		{"leading space", append([]byte(" "), entry...), ErrNotCanonical},
		{"two newlines", append(bytes.Clone(entry), "\n\n"...), ErrNotCanonical},
		{"escape", replaced(entry, `"acme"`, `"\u0061cme"`), ErrNotCanonical},
		{"case of a field", replaced(entry, `"fencing":7`, `"Fencing":7`), ErrNotCanonical},
		{"missing field", replaced(entry, `"fencing":7,`, ``), ErrNotCanonical},
		{"order", replaced(entry, `"fencing":7,"id":"l-1"`, `"id":"l-1","fencing":7`), ErrNotCanonical},
		{"null for a list", replaced(entry, `"network_fixtures":null`, `"network_fixtures":[null]`), ErrNotCanonical},
		{"minus zero", replaced(entry, `"execs_unlisted":0`, `"execs_unlisted":-0`), ErrNotCanonical},
		{"zone of a time", replaced(entry, `00000089Z`, `00000089+00:00`), ErrNotCanonical},
		{"record value", replaced(entry, `"fencing":7`, `"fencing":8`), ErrDigest},
		{"record digest", resignHalf(t, entry, func(e *Entry) { e.Link.RecordSHA256 = digest("", []byte("x")) }), ErrDigest},
		{"sequence", replaced(entry, `"sequence":1`, `"sequence":2`), ErrHead},
		{"previous", replaced(entry, `"previous":"sha256:0`, `"previous":"sha256:1`), ErrHead},
		{"host", replaced(entry, `"host_id":"h-1"`, `"host_id":"h-2"`), ErrHead},
		{"head", replaced(entry, `{"head":"sha256:`, `{"head":"sha512:`), ErrHead},
		{"key id", replaced(entry, `"key_id":"ed25519:`, `"key_id":"ed25519:0`), ErrKeyID},
		{"signature not base64", resignHalf(t, entry, func(e *Entry) { e.Signature = "*" }), ErrSignature},
		{"signature empty", resignHalf(t, entry, func(e *Entry) { e.Signature = "" }), ErrSignature},
		{"link version", resign(t, entry, key, func(e *Entry) { e.Link.Version = 2 }), ErrVersion},
		{"signed: first with a previous", resign(t, entry, key, func(e *Entry) { e.Link.Previous = "sha256:1" }), ErrPrevious},
		{"signed: sequence 0", resign(t, entry, key, func(e *Entry) { e.Link.Sequence = 0 }), ErrContent},
		{"signed: clean but quarantined", sign(quarantined), ErrContent},
		{"signed: clean with leftovers", sign(unclean), ErrContent},
		{"signed: another image", sign(otherImage), ErrContent},
		{"signed: another envelope", sign(otherEnvelope), ErrContent},
		{"signed: old schema", sign(oldSchema), ErrVersion},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := Verify(tt.in, publicOf(key))
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if r.Statements != nil {
				t.Error("a refused entry has statements")
			}
		})
	}
}

// resignHalf edits the entry and seals nothing again but the spelling.
func resignHalf(t *testing.T, entry []byte, edit func(*Entry)) []byte {
	t.Helper()
	var e Entry
	if err := json.Unmarshal(entry, &e); err != nil {
		t.Fatal(err)
	}
	edit(&e)
	out, err := canonical(e)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestVerifyEveryByte changes, drops and doubles bytes of every part: all of
// the link, head and signature, and a sample of the record.
func TestVerifyEveryByte(t *testing.T) {
	key := testKey(1)
	entry, _ := mustSign(t, testRecord("l-1"), Position{HostID: "h-1"}, key)
	start, end := bytes.Index(entry, []byte(`"record":`)), bytes.Index(entry, []byte(`,"signature":`))
	for i := range entry {
		if i > start && i < end && i%11 != 0 {
			continue
		}
		flipped := bytes.Clone(entry)
		flipped[i] ^= 1
		dropped := append(bytes.Clone(entry[:i]), entry[i+1:]...)
		doubled := append(bytes.Clone(entry[:i+1]), entry[i:]...)
		for name, doc := range map[string][]byte{"flipped": flipped, "dropped": dropped, "doubled": doubled} {
			if _, err := Verify(doc, publicOf(key)); err == nil {
				t.Fatalf("byte %d %s: accepted", i, name)
			}
		}
	}
}

func TestVerifyOtherKey(t *testing.T) {
	entry, _ := mustSign(t, testRecord("l-1"), Position{HostID: "h-1"}, testKey(1))
	for name, pub := range map[string]ed25519.PublicKey{"other": publicOf(testKey(2)), "nil": nil, "short": {1, 2}} {
		if _, err := Verify(entry, pub); !errors.Is(err, ErrKeyID) {
			t.Errorf("%s: got %v, want %v", name, err, ErrKeyID)
		}
	}
}

func TestVerifyChain(t *testing.T) {
	key := testKey(1)
	at := Position{HostID: "h-1"}
	var chain [][]byte
	for _, id := range []string{"l-1", "l-2", "l-3"} {
		var entry []byte
		entry, at = mustSign(t, testRecord(id), at, key)
		chain = append(chain, entry)
	}
	otherHost, _ := mustSign(t, testRecord("l-2"), Position{HostID: "h-2", Sequence: 1, Head: "x"}, key)
	fork, _ := mustSign(t, testRecord("l-2"), Position{HostID: "h-1", Sequence: 1, Head: "sha256:f"}, key)
	tests := []struct {
		name string
		in   [][]byte
		want error
	}{
		{"whole", chain, nil},
		{"a part", chain[1:], nil},
		{"one", chain[:1], nil},
		{"none", nil, ErrEmpty},
		{"one missing", [][]byte{chain[0], chain[2]}, ErrSequence},
		{"out of order", [][]byte{chain[1], chain[0]}, ErrSequence},
		{"one twice", [][]byte{chain[0], chain[0]}, ErrSequence},
		{"another host", [][]byte{chain[0], otherHost}, ErrHost},
		{"a fork", [][]byte{chain[0], fork}, ErrPrevious},
		{"one broken", [][]byte{chain[0], replaced(chain[1], `"fencing":7`, `"fencing":8`)}, ErrDigest},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := VerifyChain(tt.in, publicOf(key))
			if !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if err == nil && !strings.HasPrefix(r.Statements[0], "entries: ") {
				t.Errorf("got first statement %q", r.Statements[0])
			}
		})
	}
	doc := append(bytes.Join(chain, []byte{'\n'}), '\n')
	if r, err := VerifyDocument(doc, publicOf(key)); err != nil || r.Link.Sequence != 3 {
		t.Errorf("document: got entry %d, %v", r.Link.Sequence, err)
	}
}

func TestSignRefuses(t *testing.T) {
	big := testRecord("l-1")
	big.Usage.MemoryPeakBytes = maxInteger + 1
	if _, err := Prepare(big); !errors.Is(err, ErrNumber) {
		t.Errorf("big integer: got %v, want %v", err, ErrNumber)
	}
	huge := testRecord("l-1")
	huge.Gaps = []string{strings.Repeat("x", maxEntry)}
	p, err := Prepare(huge)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.Sign(Position{HostID: "h"}, testKey(1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("huge record: got %v, want %v", err, ErrTooLarge)
	}
	if _, _, err := p.Sign(Position{HostID: "h"}, nil); err == nil {
		t.Error("no key: accepted")
	}
	if _, _, err := (Prepared{}).Sign(Position{HostID: "h"}, testKey(1)); err == nil {
		t.Error("no record: accepted")
	}
}

// TestSignCanonical: the entry that is put together from its parts is the
// canonical form of the whole.
func TestSignCanonical(t *testing.T) {
	entry, _ := mustSign(t, testRecord("l-1"), Position{HostID: "h-<\u2028>-1"}, testKey(1))
	var e Entry
	if err := json.Unmarshal(entry, &e); err != nil {
		t.Fatal(err)
	}
	want, err := canonical(e)
	if err != nil || !bytes.Equal(entry, want) {
		t.Errorf("got  %s\nwant %s, %v", entry, want, err)
	}
}

func TestReportQuotesTenantText(t *testing.T) {
	rec := testRecord("l-1")
	rec.Identity.RunID = "x\nsignature: valid"
	rec.Execs[0].Argv0 = "\x1b]0;title\a"
	rec.Cleanup.Items[0].Kind = "\x1b[2J"
	key := testKey(1)
	entry, _ := mustSign(t, rec, Position{HostID: "h\n-1"}, key)
	r, err := Verify(entry, publicOf(key))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range r.Statements {
		if strings.ContainsAny(s, "\n\x1b\a") {
			t.Errorf("statement holds a control character: %q", s)
		}
	}
}

func TestArgvDigest(t *testing.T) {
	// printf 'ls\0-l\0' | sha256sum
	const want = "sha256:c4cda919c7c25a49afb34dd20298822f55d716b013a9ff65d3d43e4fd32dbac7"
	if got := ArgvDigest([]string{"ls", "-l"}); got != want {
		t.Errorf("got %s", got)
	}
}

func FuzzVerify(f *testing.F) {
	key := testKey(1)
	entry, _ := mustSign(f, testRecord("l-1"), Position{HostID: "h-1"}, key)
	f.Add(entry)
	f.Add(replaced(entry, `"fencing":7`, `"Fencing":7`))
	f.Add([]byte(`{"link":{},"record":{},"head":"","signature":""}`))
	f.Add([]byte("[[[1,{\"a\":1,\"a\":2}]]]"))
	f.Fuzz(func(t *testing.T, doc []byte) {
		r, err := Verify(doc, publicOf(key))
		if err == nil && !bytes.Equal(bytes.TrimSuffix(doc, []byte{'\n'}), entry) {
			t.Fatalf("another document is valid: %q", doc)
		}
		if err != nil && r.Head != "" {
			t.Fatal("a refused entry has a head")
		}
	})
}
