package hostpolicy

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cordon/internal/fault"
)

const (
	digestA = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	digestB = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func lookups(users, groups map[string]uint32) Lookups {
	in := func(m map[string]uint32) func(string) (uint32, bool, error) {
		return func(name string) (uint32, bool, error) {
			id, ok := m[name]
			return id, ok, nil
		}
	}
	return Lookups{UserID: in(users), GroupID: in(groups)}
}

func withCordon() Lookups {
	return lookups(map[string]uint32{"root": 0, "alice": 1001}, map[string]uint32{"cordon": 998, "wheel": 10})
}

var facts = HostFacts{CPUs: 8, MemoryBytes: 16 << 30, DiskBytes: 100 << 30, PidMax: 32768}

var whole = cmp.AllowUnexported(Policy{})

func parsed(t *testing.T, doc string) Policy {
	t.Helper()
	p, err := Parse([]byte(doc), withCordon(), facts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestShippedPolicyIsTheDefault holds deploy/policy.yaml to its first lines.
func TestShippedPolicyIsTheDefault(t *testing.T) {
	doc, err := os.ReadFile("../../deploy/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for name, l := range map[string]Lookups{"with the group": withCordon(), "without the group": lookups(nil, nil), "no lookups": {}} {
		for _, f := range []HostFacts{facts, {}, {CPUs: 1, MemoryBytes: 1 << 30, DiskBytes: 8 << 30, PidMax: 4 << 20}} {
			got, err := Parse(doc, l, f)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(Default(l, f), got, whole); diff != "" {
				t.Errorf("%s, %+v (-default +file):\n%s", name, f, diff)
			}
		}
	}
}

func TestDefault(t *testing.T) {
	most := Max{
		Leases: 64, CPUMilli: 4000, MemoryBytes: 8 << 30, ProcessCount: 16384, DiskBytes: 50 << 30,
		OpenFiles: 65536, OutputBytes: 1 << 30, WallClock: 6 * time.Hour, Lease: 24 * time.Hour,
	}
	want := Policy{
		tenants: []Tenant{
			{Name: "cordon", Peers: []PeerRule{{"gid", 998}}, Images: []string{"*"}, Max: most},
			{Name: "root", Peers: []PeerRule{{"uid", 0}}, Images: []string{"*"}, Max: most, ImportImages: true},
		},
		budget:         Amounts{Leases: 1024, CPUMilli: 4000, MemoryBytes: 8 << 30, Processes: 16384, DiskBytes: 50 << 30},
		idBase:         1879048192,
		idCount:        67108864,
		allowHostImage: true,
		digest:         "sha256:8e00f719da3ec07b15b8c9ac3819664e966dfaf010866dddacb4f63670b16adb", // computed apart
	}
	got := Default(withCordon(), facts)
	if diff := cmp.Diff(want, got, whole); diff != "" {
		t.Errorf("wrong default (-want +got):\n%s", diff)
	}
}

func TestDefaultWithoutTheGroup(t *testing.T) {
	failing := Lookups{GroupID: func(string) (uint32, bool, error) { return 7, true, errors.New("no answer") }}
	for _, l := range []Lookups{lookups(nil, nil), {}, failing} {
		p := Default(l, facts)
		cordon := p.tenants[0]
		if cordon.Name != "cordon" || len(cordon.Peers) != 0 || len(p.Notes()) != 1 {
			t.Errorf("tenant %+v, notes %q", cordon, p.Notes())
		}
		if got := p.Tenants(Peer{UID: 1, GID: 7}); got != nil {
			t.Errorf("a stranger speaks for %v", got)
		}
		if got := p.Tenants(Peer{}); len(got) != 1 || got[0].Name != "root" {
			t.Errorf("root speaks for %v", got)
		}
	}
}

func TestBudget(t *testing.T) {
	ids := int64(1024)
	tests := []struct {
		name, host string
		facts      HostFacts
		want       Amounts
	}{
		{"absent is half", "", facts, Amounts{ids, 4000, 8 << 30, 16384, 50 << 30}},
		{"quarter", "host: {budget_fraction: 0.25}", facts, Amounts{ids, 2000, 4 << 30, 8192, 25 << 30}},
		{"all", "host: {budget_fraction: 1}", facts, Amounts{ids, 8000, 16 << 30, 32768, 100 << 30}},
		{
			"explicit amounts replace their part", "host: {cpu: 12.5, memory_bytes: 1000, id_count: 131072}", facts,
			Amounts{2, 12500, 1000, 16384, 50 << 30},
		},
		{
			"all explicit", "host: {budget_fraction: 0.1, cpu: 1, memory_bytes: 2, process_count: 3, disk_bytes: 4}", facts,
			Amounts{ids, 1000, 2, 3, 4},
		},
		{"one core at least", "", HostFacts{CPUs: 1, MemoryBytes: 1000, DiskBytes: 10, PidMax: 2}, Amounts{ids, 1000, 500, 1, 5}},
		{"unknown host", "", HostFacts{}, Amounts{Leases: ids}},
		{"nonsense host", "", HostFacts{-1, -1, -1, -1}, Amounts{Leases: ids}},
		{"absurd host", "", HostFacts{1 << 30, 1 << 62, 1 << 62, 1 << 62}, Amounts{ids, 1 << 20 * 500, 1 << 51, 1 << 51, 1 << 51}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := Parse([]byte(tt.host+"\ntenants: []\n"), Lookups{}, tt.facts)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, p.Budget()); diff != "" {
				t.Errorf("wrong budget (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseTenant(t *testing.T) {
	p := parsed(t, `
host: {id_base: 131072, id_count: 65536}
tenants:
  - name: acme
    peers: [{user: alice}, {uid: 1001}, {gid: 5}, {group: wheel}, {uid: 0}, {user: nobody-here}]
    images: [host, `+digestB+`, `+digestA+`, host]
    max: {leases: 0, cpu: 0.5, memory_bytes: 1, process_count: 2, disk_bytes: 3, open_files: 4, output_bytes: 5, wall_clock: 90s, lease: 2h}
    import_images: true
  - name: Zero
`)
	want := []Tenant{
		{Name: "Zero", Peers: []PeerRule{}, Images: []string{}, Max: Max{
			64, 4000, 8 << 30, 16384, 50 << 30, 65536, 1 << 30, 6 * time.Hour, 24 * time.Hour,
		}},
		{
			Name: "acme", Peers: []PeerRule{{"gid", 5}, {"gid", 10}, {"uid", 0}, {"uid", 1001}},
			Images: []string{"host", digestA, digestB}, ImportImages: true,
			Max: Max{0, 500, 1, 2, 3, 4, 5, 90 * time.Second, 2 * time.Hour},
		},
	}
	if diff := cmp.Diff(want, p.tenants); diff != "" {
		t.Errorf("wrong tenants (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"tenants[0].peers[5].user: there is no nobody-here on this host; the entry admits nobody"}, p.Notes()); diff != "" {
		t.Errorf("wrong notes (-want +got):\n%s", diff)
	}
	if base, count := p.IDRange(); base != 131072 || count != 65536 || p.HostImageAllowed() {
		t.Errorf("ids %d+%d, host image %v", base, count, p.HostImageAllowed())
	}
}

func TestParseRefuses(t *testing.T) {
	tenant := func(s string) string { return "tenants:\n- name: a\n  " + s + "\n" }
	tests := []struct {
		name, doc string
		want      []string
	}{
		{"empty", "", []string{"the document is empty"}},
		{"no tenants", "allow_host_image: true\n", []string{"tenants: missing"}},
		{"unknown field", "tenant: []\n", []string{"tenant: line 1 column 1: unknown field tenant [did you mean tenants?]"}},
		{"unknown bound", tenant("max: {memory: 1}"), []string{"tenants[0].max.memory: line 3 column 9: unknown field memory"}},
		{"fraction of nothing", "host: {budget_fraction: 0}\ntenants: []\n", []string{`host.budget_fraction: line 1 column 25: "0" is not a part`}},
		{"fraction of nothing, written out", "host: {budget_fraction: 0.000}\ntenants: []\n", []string{`host.budget_fraction: line 1 column 25: "0.000" is not a part`}},
		{"fraction above one", "host: {budget_fraction: 1.5}\ntenants: []\n", []string{`host.budget_fraction: line 1 column 25: "1.5" is not a part`}},
		{"fraction in percent", "host: {budget_fraction: 50%}\ntenants: []\n", []string{`host.budget_fraction: line 1 column 25: "50%" is not a part`}},
		{"more than the host", "host: {cpu: 129, memory_bytes: 17179869185, process_count: 32769, disk_bytes: 0}\ntenants: []\n", []string{
			"host.cpu: line 1 column 13: 129 cores are more than 16 times the 8",
			"host.memory_bytes: line 1 column 32: 17179869185 is out of range: this host has 17179869184",
			"host.process_count: line 1 column 60: 32769 is out of range",
			"host.disk_bytes: line 1 column 79: 0 is out of range",
		}},
		{"ids of the host's own accounts", "host: {id_base: 0}\ntenants: []\n", []string{"host.id_base: line 1 column 17: 0 is not a multiple"}},
		{"ids not on a range", "host: {id_base: 100000, id_count: 1}\ntenants: []\n", []string{
			"host.id_base: line 1 column 17: 100000 is not a multiple", "host.id_count: line 1 column 35: 1 is not a multiple",
		}},
		{"no ids", "host: {id_count: 0}\ntenants: []\n", []string{"host.id_count: line 1 column 18: 0 is not a multiple"}},
		{"ids past 2^31", "host: {id_base: 2147418112, id_count: 131072}\ntenants: []\n", []string{"host.id_count: line 1 column 39: the ids end at 2147549183"}},
		{"ids past 2^32", "host: {id_base: 4294901760, id_count: 4294901760}\ntenants: []\n", []string{"host.id_count: line 1 column 39: the ids end at 8589803519"}},
		{"tenant without name", "tenants:\n- import_images: true\n", []string{"tenants[0].name: line 2 column 3: is missing"}},
		{"tenant name", "tenants:\n- name: a/b\n", []string{`tenants[0].name: line 2 column 9: "a/b" is not a name`}},
		{"tenant twice", "tenants:\n- name: a\n- name: b\n- name: a\n", []string{`tenants[2].name: line 4 column 9: "a" is listed twice`}},
		{"image by name", tenant("images: [debian, sha256:00]"), []string{
			`tenants[0].images[0]: line 3 column 12: "debian" is not an image`, `tenants[0].images[1]: line 3 column 20: "sha256:00" is not an image`,
		}},
		{"image star without quotes", tenant("images: [*]"), []string{"line 3: not readable as YAML"}},
		{"peer of nothing", tenant("peers: [{}]"), []string{"tenants[0].peers[0]: line 3 column 11: has 0 of uid"}},
		{"peer of two", tenant("peers: [{uid: 1, gid: 1}]"), []string{"tenants[0].peers[0]: line 3 column 11: has 2 of uid"}},
		{"peer of no id", tenant("peers: [{uid: 4294967295}, {gid: 4294967295}]"), []string{
			"tenants[0].peers[0].uid: line 3 column 17: 4294967295 is no id", "tenants[0].peers[1].gid: line 3 column 36: 4294967295 is no id",
		}},
		{"peer user by number", tenant(`peers: [{user: "0"}]`), []string{`tenants[0].peers[0].user: line 3 column 18: "0" is not the name of an account`}},
		{"peer user like an option", tenant("peers: [{user: -f}]"), []string{`tenants[0].peers[0].user: line 3 column 18: "-f" is not the name`}},
		{"peer group with a path", tenant("peers: [{group: ../x}]"), []string{`tenants[0].peers[0].group: line 3 column 19: "../x" is not the name`}},
		{"peer as text", tenant("peers: [root]"), []string{"tenants[0].peers[0]: line 3 column 11: a single value where a group of fields"}},
		{"bounds of nothing", tenant("max: {leases: -1, memory_bytes: 0, process_count: 0, disk_bytes: -5, open_files: 0, output_bytes: 0}"), []string{
			"tenants[0].max.leases: line 3 column 17: -1 is out of range",
			"tenants[0].max.memory_bytes: line 3 column 35: 0 is out of range",
			"tenants[0].max.process_count: line 3 column 53: 0 is out of range",
			"tenants[0].max.disk_bytes: line 3 column 68: -5 is out of range",
			"tenants[0].max.open_files: line 3 column 84: 0 is out of range",
			"tenants[0].max.output_bytes: line 3 column 101: 0 is out of range",
		}},
		{"bounds past 2^52", tenant("max: {memory_bytes: 4503599627370497}"), []string{"tenants[0].max.memory_bytes: line 3 column 23: 4503599627370497 is out"}},
		{"cpu of nothing", tenant("max: {cpu: 0}"), []string{`tenants[0].max.cpu: line 3 column 14: "0" is no cpu`}},
		{"times too long", tenant("max: {wall_clock: 25h, lease: 48h}"), []string{
			"tenants[0].max.wall_clock: line 3 column 21: 25h0m0s is more than any", "tenants[0].max.lease: line 3 column 33: 48h0m0s is more than any",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := Parse([]byte(tt.doc), withCordon(), facts)
			wantFaults(t, err, fault.InvalidPolicy, tt.want)
			if diff := cmp.Diff(Policy{}, p, whole); diff != "" {
				t.Errorf("a policy came with the error:\n%s", diff)
			}
		})
	}
}

func TestParseWithBrokenLookup(t *testing.T) {
	broken := errors.New("database is locked")
	l := Lookups{UserID: func(string) (uint32, bool, error) { return 0, true, broken }}
	_, err := Parse([]byte("tenants:\n- name: a\n  peers: [{user: alice}]\n"), l, facts)
	wantFaults(t, err, fault.InvalidPolicy, []string{"tenants[0].peers[0].user: line 3 column 18: look up alice: database is locked"})
	if !errors.Is(err, broken) {
		t.Error("the cause is not wrapped")
	}
}

// wantFaults compares the text of each joined fault with its wanted start.
func wantFaults(t *testing.T, err error, code fault.Code, want []string) {
	t.Helper()
	var got []string
	for _, e := range joined(err) {
		got = append(got, e.Error())
		if c := fault.CodeOf(e); c != code {
			t.Errorf("%v: code %q, want %q", e, c, code)
		}
	}
	for i := range min(len(got), len(want)) {
		if strings.HasPrefix(got[i], want[i]) {
			got[i] = want[i]
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("wrong faults (-want +got):\n%s", diff)
	}
}

func joined(err error) []error {
	var list interface{ Unwrap() []error }
	if errors.As(err, &list) {
		return list.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

func FuzzParse(f *testing.F) {
	doc, err := os.ReadFile("../../deploy/policy.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(doc)
	f.Add([]byte("tenants: []\n"))
	f.Add([]byte("host: {cpu: 0.5, id_base: 131072, id_count: 65536}\ntenants:\n- {name: a, peers: [{uid: 0}, {user: alice}, {group: x}], images: [host, \"*\"], max: {leases: 0, lease: 1s}}\n"))
	f.Fuzz(func(t *testing.T, doc []byte) {
		p, err := Parse(doc, withCordon(), facts)
		if err != nil {
			if fault.CodeOf(err) != fault.InvalidPolicy || p.Digest() != "" || p.Tenants(Peer{}) != nil {
				t.Fatalf("refused with code %q and a policy", fault.CodeOf(err))
			}
			return
		}
		again, err := Parse(doc, withCordon(), facts)
		if err != nil || again.Digest() != p.Digest() || p.Digest() == "" {
			t.Fatalf("the same document resolves differently: %v", err)
		}
		b := p.Budget()
		if b.Leases < 1 || b.CPUMilli < 0 || b.CPUMilli > 128000 || b.MemoryBytes > facts.MemoryBytes ||
			b.Processes > facts.PidMax || b.DiskBytes > facts.DiskBytes {
			t.Fatalf("budget %+v is more than the host", b)
		}
		for _, tenant := range p.tenants {
			if tenant.admits(Peer{UID: 1<<32 - 1, GID: 1<<32 - 1}) {
				t.Fatalf("no id speaks for %s", tenant.Name)
			}
		}
	})
}
