package jail

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cordon/internal/fault"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func spec() Spec {
	return Spec{
		LeaseID: "l-0123456789abcdef",
		UID:     10000,
		IDBase:  1895825408,
		Image:   Image{Digest: "sha256:abc", Path: "/var/lib/cordon/images/abc/rootfs", IDBase: 1895759872},
		Volume:  Volume{Medium: "disk", Bytes: 2 << 30, Inodes: 131072},
		Limits:  Limits{CPUMilli: 2000, MemoryBytes: 4 << 30, Pids: 128, OpenFiles: 512},
		Locale:  "C.UTF-8",
	}
}

func features() Features {
	return Features{Kernel: "6.1.0", CgroupMode: "v2", SwapAccount: true}
}

func TestPlanGolden(t *testing.T) {
	withInputs := spec()
	withInputs.InputsDir = "/var/lib/cordon/inputs/leases/l-0123456789abcdef"
	withInputs.Volume.Medium = "memory"
	for name, s := range map[string]Spec{"disk": spec(), "inputs": withInputs} {
		p, err := NewPlan(s, features())
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join("testdata", "plan-"+name+".golden")
		if *update {
			if err := os.WriteFile(file, []byte(p.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), p.String()); diff != "" {
			t.Errorf("%s: plan differs from its golden file [go test ./jail -update, then read the diff]:\n%s", name, diff)
		}
	}
}

func TestSamePlanSameBytes(t *testing.T) {
	a, _ := NewPlan(spec(), features())
	b, _ := NewPlan(spec(), features())
	if a.Digest() != b.Digest() {
		t.Errorf("digests differ: %s %s", a.Digest(), b.Digest())
	}
	other := spec()
	other.Limits.Pids++
	if c, _ := NewPlan(other, features()); c.Digest() == a.Digest() {
		t.Error("another limit gives the same digest")
	}
}

func TestPlanRefuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(*Spec, *Features)
		want string
		code fault.Code
	}{
		{"root as workload", func(s *Spec, _ *Features) { s.UID = 0 }, "identity.uid", fault.InvalidEnvelope},
		{"overflow uid", func(s *Spec, _ *Features) { s.UID = 65534 }, "identity.uid", fault.InvalidEnvelope},
		{"huge uid", func(s *Spec, _ *Features) { s.UID = 1 << 31 }, "identity.uid", fault.InvalidEnvelope},
		{"host ids", func(s *Spec, _ *Features) { s.IDBase = 0 }, "host's own ids", ""},
		{"path as id", func(s *Spec, _ *Features) { s.LeaseID = "../x" }, "plain name", ""},
		{"no lease id", func(s *Spec, _ *Features) { s.LeaseID = "" }, "plain name", ""},
		{"no image", func(s *Spec, _ *Features) { s.Image.Path = "" }, "no path", ""},
		{"no v2 tree", func(_ *Spec, f *Features) { f.CgroupMode = "v1" }, "no v2 tree", fault.MissingFeature},
		{"zero features", func(_ *Spec, f *Features) { *f = Features{} }, "no v2 tree", fault.MissingFeature},
		{"medium", func(s *Spec, _ *Features) { s.Volume.Medium = "nfs" }, "no medium", fault.InvalidEnvelope},
	} {
		s, f := spec(), features()
		tc.edit(&s, &f)
		_, err := NewPlan(s, f)
		if err == nil || !strings.Contains(err.Error(), tc.want) || fault.CodeOf(err) != tc.code {
			t.Errorf("%s: NewPlan = %v (code %q), want %q (code %q)", tc.name, err, fault.CodeOf(err), tc.want, tc.code)
		}
	}
}

// TestZeroReportIsNotClean: a report nobody filled in proves nothing.
func TestZeroReportIsNotClean(t *testing.T) {
	if (CleanupReport{}).Clean() {
		t.Error("an empty report says clean")
	}
	r := CleanupReport{Items: []CleanupItem{{Kind: "files"}}}
	if !r.Clean() {
		t.Error("a report without leftovers is not clean")
	}
	r.Items[0].Leftovers = []string{"x"}
	if r.Clean() {
		t.Error("a report with a leftover is clean")
	}
}

func TestFailedChecks(t *testing.T) {
	r := ReadBack{Checks: []Check{{Name: "a", OK: true}, {Name: "b"}}}
	if diff := cmp.Diff([]Check{{Name: "b"}}, r.Failed()); diff != "" {
		t.Error(diff)
	}
}
