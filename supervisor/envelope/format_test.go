package envelope

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cordon/internal/strictyaml"
)

func TestFormatGolden(t *testing.T) {
	e, err := Read([]byte(full))
	if err != nil {
		t.Fatal(err)
	}
	got := Format(e)
	if *update {
		if err := os.WriteFile("testdata/format-full.yaml", got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("testdata/format-full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestFormatReadsBack is the property: Parse(Format(e)) == e.
func TestFormatReadsBack(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		readsBack(t, randomEnvelope(rng))
	}
	readsBack(t, New())
	readsBack(t, Complete(fullEnvelope()))
}

func readsBack(t *testing.T, e Envelope) {
	t.Helper()
	doc := Format(e)
	got, err := Parse(doc)
	if err != nil {
		t.Fatalf("Parse(Format): %v\n%s", err, doc)
	}
	if diff := cmp.Diff(e, got); diff != "" {
		t.Fatalf("Parse(Format) differs (-want +got):\n%s\n%s", diff, doc)
	}
}

// randomEnvelope makes what Parse can return: awkward text, any size of list,
// fields absent or not.
func randomEnvelope(rng *rand.Rand) Envelope {
	words := []string{
		"", "a", "no", "true", "null", "~", "1", "0x10", "1e3", "-", "- a", "a: b", "a #b", "#", "&a", "*a", "!a", "<<",
		"a\nb", "a\tb", " a ", "\"q\"", "'q'", "back\\slash", "é", "東京", "😀", "\u202e", "\ufeff", "\u2028", "\u0085",
		"\U0010ffff", "%a", "@a", "`a", "{a}", "[a]", "a,b", "2026-08-07", "2026-08-07T18:30:00Z", digestA, "a:", ":a",
		"?", "|", ">", "...", "---", "a/b.c", "C.UTF-8", ".inf", "=",
	}
	word := func() string { return words[rng.IntN(len(words))] }
	given := func() string {
		for {
			if w := word(); w != "" {
				return w
			}
		}
	}
	maybe := func() string {
		if rng.IntN(3) == 0 {
			return ""
		}
		return given()
	}
	number := func() int64 {
		if rng.IntN(3) == 0 {
			return 0
		}
		return rng.Int64N(1<<53) - 1<<10
	}
	var list []string
	for range rng.IntN(4) {
		list = append(list, word())
	}
	e := Envelope{ImageDigest: word(), RuntimeRevision: word(), WorkspaceLifetime: maybe(), BrowserProfile: word()}
	e.Identity = Identity{
		Tenant: word(), RunID: word(), AttemptID: maybe(), TraceID: word(), UID: rng.Uint32(),
		Principal: word(), AuthorityExpiry: word(),
	}
	for range rng.IntN(4) {
		e.Filesystem.Inputs = append(e.Filesystem.Inputs, Input{Name: maybe(), Digest: word(), Mode: maybe()})
		e.Repeatability.DependencyLocks = append(e.Repeatability.DependencyLocks, Lock{Name: word(), Digest: word()})
	}
	e.Filesystem.Root, e.Filesystem.Devices = maybe(), list
	e.Filesystem.Workspace = Workspace{Mode: maybe(), Medium: maybe(), MaxBytes: number(), Inodes: number()}
	e.NetworkEgress = Egress{Default: maybe(), Methods: list, MaxBytes: number()}
	e.Resources = Resources{
		CPUMilli: max(number(), 0) >> 12, MemoryBytes: number(), ProcessCount: number(), DiskBytes: number(),
		OpenFiles: number(), OutputBytes: number(), WallClock: time.Duration(max(number(), 0)),
	}
	e.Artifacts = Artifacts{Allow: list, Scan: rng.IntN(2) == 0, Hash: rng.IntN(2) == 0}
	e.Cleanup = Cleanup{Lease: time.Duration(max(number(), 0)), RevokeCredentials: rng.IntN(2) == 0}
	e.Repeatability.Locale = maybe()
	return e
}

// TestFormatOfTheLargestFits holds the bounds of the checks against the size
// that Parse reads: whatever is valid can be shown and read again.
func TestFormatOfTheLargestFits(t *testing.T) {
	wide := func(i, n int) string { return fmt.Sprintf("%03d%s", i, strings.Repeat(`\`, n-3)) }
	e := fullEnvelope()
	e.RuntimeRevision = wide(0, mostName)
	e.Identity.Principal, e.Identity.DelegatedActor = wide(0, mostText), wide(0, mostText)
	e.Filesystem.Inputs, e.Artifacts.Allow, e.Repeatability.DependencyLocks = nil, nil, nil
	for i := range mostInputs {
		e.Filesystem.Inputs = append(e.Filesystem.Inputs,
			Input{Name: fmt.Sprintf("%03d%s", i, strings.Repeat("n", mostName-3)), Digest: digestA, Mode: "read_only"})
	}
	for i := range mostArtifacts {
		e.Artifacts.Allow = append(e.Artifacts.Allow, wide(i, mostPath))
	}
	for i := range mostLocks {
		e.Repeatability.DependencyLocks = append(e.Repeatability.DependencyLocks, Lock{Name: wide(i, mostName), Digest: digestA})
	}
	if err := Validate(e); err != nil {
		t.Fatal(err)
	}
	if n := len(Format(e)); n > strictyaml.MaxBytes {
		t.Errorf("the largest envelope takes %d bytes", n)
	}
	readsBack(t, e)
}

func TestFormatDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		10 * time.Minute: "10m", time.Hour: "1h", 90 * time.Minute: "1h30m", time.Second: "1s",
		100 * time.Millisecond: "100ms", 1500 * time.Microsecond: "1.5ms", 1500: "1.5us", time.Hour + time.Second: "1h0m1s",
		10 * time.Second: "10s", 24 * time.Hour: "24h", 70 * time.Second: "1m10s",
	} {
		if got := formatDuration(d); got != want {
			t.Errorf("formatDuration(%d) = %q, want %q", d, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(full))
	f.Add([]byte(minimal))
	f.Add(Format(fullEnvelope()))
	f.Add(Format(Complete(New())))
	f.Add([]byte("sandbox:\n  resources: {cpu: 0.125, wall_clock: 1500us}\n  cleanup: {lease: \"1.5s\"}\n"))
	f.Add([]byte("sandbox: {artifacts: {allow: [\"a\\u2028b\", 'it''s', \"\\x7f\"], hash: false}}"))
	f.Add([]byte("sandbox: &a\n  identity: *a\n  <<: {}\n"))
	f.Fuzz(func(t *testing.T, doc []byte) {
		e, err := Parse(doc)
		if err != nil {
			return
		}
		again := Format(e)
		if len(again) > strictyaml.MaxBytes {
			return // short forms of long invalid lists
		}
		readsBack(t, e)
		c := Complete(e)
		if diff := cmp.Diff(c, Complete(c)); diff != "" {
			t.Fatalf("completing twice changes:\n%s", diff)
		}
		if Validate(c) != nil {
			return
		}
		a, errA := Digest(e)
		b, errB := Digest(c)
		if errA != nil || errB != nil || a != b {
			t.Fatalf("digests of a valid envelope: %s %v, %s %v", a, errA, b, errB)
		}
		if got, err := Read(Format(c)); err != nil || !cmp.Equal(got, c) {
			t.Fatalf("a valid envelope does not read back: %v", err)
		}
	})
}
