package envelope

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"cordon/internal/fault"
)

type rule struct {
	name   string
	change func(*Envelope)
	code   fault.Code // empty: the change is fine
	want   string     // the start of the fault's text
}

func ok(name string, change func(*Envelope)) rule { return rule{name: name, change: change} }

func bad(name, want string, change func(*Envelope)) rule {
	return rule{name, change, fault.InvalidEnvelope, want}
}

func lacking(name, want string, change func(*Envelope)) rule {
	return rule{name, change, fault.Unsupported, want}
}

func runRules(t *testing.T, rules []rule) {
	t.Helper()
	for _, tt := range rules {
		t.Run(tt.name, func(t *testing.T) {
			e := fullEnvelope()
			tt.change(&e)
			var want []string
			if tt.code != "" {
				want = []string{tt.want}
			}
			wantFaults(t, Validate(e), tt.code, want)
		})
	}
}

func TestValidateIdentity(t *testing.T) {
	var rules []rule
	for _, v := range []string{digestA[:70], digestA + "a", strings.ToUpper(digestA), "sha512:" + digestA[7:], "host", "latest"} {
		rules = append(rules, bad("image "+v, "image_digest: ", func(e *Envelope) { e.ImageDigest = v }))
	}
	rules = append(rules,
		bad("image missing", "image_digest: is missing", func(e *Envelope) { e.ImageDigest = "" }),
		bad("image with a line feed", "image_digest: ", func(e *Envelope) { e.ImageDigest += "\n" }),
		ok("revision empty", func(e *Envelope) { e.RuntimeRevision = "" }),
		bad("revision long", "runtime_revision: has 129 bytes", func(e *Envelope) { e.RuntimeRevision = strings.Repeat("r", 129) }),
		bad("revision control", "runtime_revision: \"a\\x1b\" has characters", func(e *Envelope) { e.RuntimeRevision = "a\x1b" }),
		bad("revision not UTF-8", "runtime_revision: ", func(e *Envelope) { e.RuntimeRevision = "a\xff" }),
	)
	for _, v := range []string{"a", "A.b_c-9", strings.Repeat("x", 64)} {
		rules = append(rules, ok("name "+v, func(e *Envelope) { e.Identity.Tenant, e.Identity.RunID, e.Identity.AttemptID = v, v, v }))
	}
	for _, v := range []string{"", "-a", ".a", "_a", "a b", "a/b", "..", "é", "a\n", strings.Repeat("x", 65)} {
		rules = append(rules,
			bad("tenant "+v, "identity.tenant: ", func(e *Envelope) { e.Identity.Tenant = v }),
			bad("run "+v, "identity.run_id: ", func(e *Envelope) { e.Identity.RunID = v }),
			bad("attempt "+v, "identity.attempt_id: ", func(e *Envelope) { e.Identity.AttemptID = v }),
		)
	}
	for _, v := range []uint32{1, 1000, 65533} {
		rules = append(rules, ok(fmt.Sprint("uid ", v), func(e *Envelope) { e.Identity.UID = v }))
	}
	for _, v := range []uint32{65534, 65535, 65536, 1 << 31, 1<<32 - 1} {
		rules = append(rules, bad(fmt.Sprint("uid ", v), "identity.uid: ", func(e *Envelope) { e.Identity.UID = v }))
	}
	rules = append(rules,
		bad("uid root", "identity.uid: 0 is root", func(e *Envelope) { e.Identity.UID = 0 }),
		bad("principal long", "identity.principal: has 257 bytes", func(e *Envelope) { e.Identity.Principal = strings.Repeat("p", 257) }),
		bad("actor with a line feed", "identity.delegated_actor: ", func(e *Envelope) { e.Identity.DelegatedActor = "a\nb" }),
		bad("actor right to left", "identity.delegated_actor: ", func(e *Envelope) { e.Identity.DelegatedActor = "a\u202eb" }),
		ok("principal in any script", func(e *Envelope) { e.Identity.Principal = "Zoë 東京" }),
	)
	runRules(t, rules)
}

func TestValidateTraceAndAuthority(t *testing.T) {
	rules := []rule{
		ok("no trace", func(e *Envelope) { e.Identity.TraceID, e.Identity.ParentSpan = "", "" }),
		ok("trace without span", func(e *Envelope) { e.Identity.ParentSpan = "" }),
		bad("span without trace", "identity.parent_span: is given without", func(e *Envelope) { e.Identity.TraceID = "" }),
		bad("trace of zeros", "identity.trace_id: ", func(e *Envelope) { e.Identity.TraceID = strings.Repeat("0", 32) }),
		bad("trace short", "identity.trace_id: ", func(e *Envelope) { e.Identity.TraceID = e.Identity.TraceID[1:] }),
		bad("trace upper", "identity.trace_id: ", func(e *Envelope) { e.Identity.TraceID = strings.ToUpper(e.Identity.TraceID) }),
		bad("span of zeros", "identity.parent_span: ", func(e *Envelope) { e.Identity.ParentSpan = strings.Repeat("0", 16) }),
		bad("span long", "identity.parent_span: ", func(e *Envelope) { e.Identity.ParentSpan += "0" }),
		ok("no authority limit", func(e *Envelope) { e.Identity.AuthorityExpiry = "" }),
	}
	for _, v := range []string{
		"2026-08-07", "2026-08-07T18:30:00", "2026-08-07T18:30:00+02:00", "2026-08-07T18:30:00+00:00",
		"2026-08-07t18:30:00z", "2026-08-07T18:30:00.5Z", "2026-08-07T18:30:00,5Z", "2026-08-07T8:30:00Z",
		"2026-02-30T00:00:00Z", "1785000000", "tomorrow", " 2026-08-07T18:30:00Z",
	} {
		rules = append(rules, bad("expiry "+v, "identity.authority_expiry: ", func(e *Envelope) { e.Identity.AuthorityExpiry = v }))
	}
	runRules(t, rules)

	at, err := fullEnvelope().Identity.AuthorityEnd()
	if want := time.Date(2026, 8, 7, 18, 30, 0, 0, time.UTC); err != nil || !at.Equal(want) {
		t.Errorf("AuthorityEnd = %v, %v", at, err)
	}
	if at, err := (Identity{}).AuthorityEnd(); err != nil || !at.IsZero() {
		t.Errorf("AuthorityEnd of none = %v, %v", at, err)
	}
}

func TestValidateFilesystem(t *testing.T) {
	input := func(in ...Input) func(*Envelope) { return func(e *Envelope) { e.Filesystem.Inputs = in } }
	rules := []rule{
		bad("root writable", `filesystem.root: "read_write" is not known [use read_only]`, func(e *Envelope) { e.Filesystem.Root = "read_write" }),
		ok("no inputs", input()),
		ok("the same file twice under two names", input(Input{"a", digestA, "read_only"}, Input{"b", digestA, "read_only"})),
		bad("inputs of one name", `filesystem.inputs[2].name: "a" is the name of inputs[0] too`,
			input(Input{"a", digestA, "read_only"}, Input{"b", digestA, "read_only"}, Input{"a", digestB, "read_only"})),
		bad("input writable", "filesystem.inputs[0].mode: ", input(Input{"a", digestA, "read_write"})),
		bad("input digest", "filesystem.inputs[0].digest: ", input(Input{"a", "sha256:1", "read_only"})),
		bad("input digest missing", "filesystem.inputs[0].digest: is missing", input(Input{"", "", "read_only"})),
		bad("too many inputs", "filesystem.inputs: has 65 entries", func(e *Envelope) {
			e.Filesystem.Inputs = nil
			for i := range 65 {
				e.Filesystem.Inputs = append(e.Filesystem.Inputs, Input{fmt.Sprint("i", i), digestA, "read_only"})
			}
		}),
		bad("workspace kept", "filesystem.workspace.mode: ", func(e *Envelope) { e.Filesystem.Workspace.Mode = "reuse" }),
		bad("workspace medium", `filesystem.workspace.medium: "tape" is not known [use disk or memory]`, func(e *Envelope) { e.Filesystem.Workspace.Medium = "tape" }),
		bad("workspace differs", "filesystem.workspace.max_bytes: 1073741824 differs from resources.disk_bytes, 2147483648",
			func(e *Envelope) { e.Filesystem.Workspace.MaxBytes = 1 << 30 }),
		bad("too few inodes", "filesystem.workspace.inodes: 15 is out of range", func(e *Envelope) { e.Filesystem.Workspace.Inodes = 15 }),
		bad("too many inodes", "filesystem.workspace.inodes: 2097153 is out of range", func(e *Envelope) { e.Filesystem.Workspace.Inodes = 2<<20 + 1 }),
		lacking("devices", "filesystem.devices: ", func(e *Envelope) { e.Filesystem.Devices = []string{"/dev/kvm"} }),
	}
	for _, v := range []string{"a", "a.b", "...", "-", "_", "a-b_c.D9", strings.Repeat("n", 128)} {
		rules = append(rules, ok("input name "+v, input(Input{v, digestA, "read_only"})))
	}
	for _, v := range []string{"", ".", "..", "a/b", "a b", "a\x00", "é", "a\n", strings.Repeat("n", 129)} {
		rules = append(rules, bad("input name "+v, "filesystem.inputs[0].name: ", input(Input{v, digestA, "read_only"})))
	}
	runRules(t, rules)
}

func TestValidateResources(t *testing.T) {
	var rules []rule
	for _, n := range []struct {
		field       string
		least, most int64
		at          func(*Envelope) *int64
	}{
		{"cpu", 10, 1024000, func(e *Envelope) *int64 { return &e.Resources.CPUMilli }},
		{"memory_bytes", 16 << 20, 16 << 40, func(e *Envelope) *int64 { return &e.Resources.MemoryBytes }},
		{"process_count", 1, 4 << 20, func(e *Envelope) *int64 { return &e.Resources.ProcessCount }},
		{"open_files", 16, 1 << 20, func(e *Envelope) *int64 { return &e.Resources.OpenFiles }},
		{"output_bytes", 4 << 10, 1 << 40, func(e *Envelope) *int64 { return &e.Resources.OutputBytes }},
		{"wall_clock", int64(100 * time.Millisecond), int64(24 * time.Hour), func(e *Envelope) *int64 { return (*int64)(&e.Resources.WallClock) }},
	} {
		for _, v := range []int64{n.least, n.most} {
			rules = append(rules, ok(fmt.Sprint(n.field, " ", v), func(e *Envelope) { *n.at(e) = v }))
		}
		for _, v := range []int64{n.least - 1, n.most + 1, 0, -1, 1 << 53, -1 << 63} {
			rules = append(rules, bad(fmt.Sprint(n.field, " ", v), "resources."+n.field+": ", func(e *Envelope) { *n.at(e) = v }))
		}
	}
	disk := func(v int64) func(*Envelope) {
		return func(e *Envelope) {
			e.Resources.DiskBytes, e.Filesystem.Workspace.MaxBytes, e.Filesystem.Workspace.Inodes = v, v, 16
		}
	}
	rules = append(rules,
		ok("disk least", disk(8<<20)), ok("disk most", disk(16<<40)),
		bad("disk small", "resources.disk_bytes: ", disk(8<<20-1)), bad("disk large", "resources.disk_bytes: ", disk(16<<40+1)),
		bad("disk negative", "resources.disk_bytes: ", disk(-1)),
		bad("cpu is shown in cores", "resources.cpu: 0.009 cores is out of range [use 0.01 to 1024]", func(e *Envelope) { e.Resources.CPUMilli = 9 }),
		bad("wall clock is shown as a time", "resources.wall_clock: 25h is out of range [use 100ms to 24h]", func(e *Envelope) { e.Resources.WallClock = 25 * time.Hour }),
	)
	runRules(t, rules)
}

func TestValidateRest(t *testing.T) {
	rules := []rule{
		lacking("egress default", `network_egress.default: "allow" is not part`, func(e *Envelope) { e.NetworkEgress.Default = "allow" }),
		lacking("egress default empty", "network_egress.default: ", func(e *Envelope) { e.NetworkEgress.Default = "" }),
		lacking("egress destinations", "network_egress.allowed_destinations: ", func(e *Envelope) { e.NetworkEgress.AllowedDestinations = []string{"a"} }),
		lacking("egress methods", "network_egress.methods: ", func(e *Envelope) { e.NetworkEgress.Methods = []string{"GET"} }),
		lacking("egress bytes", "network_egress.max_bytes: ", func(e *Envelope) { e.NetworkEgress.MaxBytes = 1 }),
		bad("egress bytes negative", "network_egress.max_bytes: -1 is negative", func(e *Envelope) { e.NetworkEgress.MaxBytes = -1 }),
		lacking("persistent workspace", `workspace_lifetime: "persistent" is not part of this version: there is no persistent workspace`,
			func(e *Envelope) { e.WorkspaceLifetime = "persistent" }),
		lacking("scan", "artifacts.scan: this host has no scanner", func(e *Envelope) { e.Artifacts.Scan = true }),
		bad("no hash", "artifacts.hash: ", func(e *Envelope) { e.Artifacts.Hash = false }),
		bad("no revoke", "cleanup.revoke_credentials: ", func(e *Envelope) { e.Cleanup.RevokeCredentials = false }),
		bad("no verify", "cleanup.verify_process_tree: ", func(e *Envelope) { e.Cleanup.VerifyProcessTree = false }),
		ok("lease least", func(e *Envelope) { e.Cleanup.Lease = time.Second }),
		ok("lease most", func(e *Envelope) { e.Cleanup.Lease = 24 * time.Hour }),
		bad("lease short", "cleanup.lease: 999ms is out of range [use 1s to 24h]", func(e *Envelope) { e.Cleanup.Lease = 999 * time.Millisecond }),
		bad("lease long", "cleanup.lease: ", func(e *Envelope) { e.Cleanup.Lease = 24*time.Hour + 1 }),
		bad("lease negative", "cleanup.lease: ", func(e *Envelope) { e.Cleanup.Lease = -time.Hour }),
		lacking("tier", `isolation.tier: "microvm" is not part`, func(e *Envelope) { e.Isolation.Tier = "microvm" }),
		lacking("tier unknown", "isolation.tier: ", func(e *Envelope) { e.Isolation.Tier = "" }),
		lacking("clock", "repeatability.clock: ", func(e *Envelope) { e.Repeatability.Clock = "frozen" }),
		lacking("randomness", "repeatability.randomness: ", func(e *Envelope) { e.Repeatability.Randomness = "seeded" }),
		lacking("fixtures", "repeatability.network_fixtures: ", func(e *Envelope) { e.Repeatability.NetworkFixtures = []string{digestA} }),
		lacking("browser", "browser_profile: ", func(e *Envelope) { e.BrowserProfile = "fresh" }),
		bad("lock digest", "repeatability.dependency_locks[0].digest: ", func(e *Envelope) { e.Repeatability.DependencyLocks[0].Digest = "x" }),
		bad("lock name", "repeatability.dependency_locks[0].name: ", func(e *Envelope) { e.Repeatability.DependencyLocks[0].Name = "../go.sum" }),
		bad("lock name long", "repeatability.dependency_locks[0].name: ", func(e *Envelope) { e.Repeatability.DependencyLocks[0].Name = strings.Repeat("l", 129) }),
		bad("lock twice", `repeatability.dependency_locks[1].name: "a" is listed twice`, func(e *Envelope) {
			e.Repeatability.DependencyLocks = []Lock{{"a", digestA}, {"a", digestB}}
		}),
		bad("too many locks", "repeatability.dependency_locks: has 33 entries", func(e *Envelope) {
			e.Repeatability.DependencyLocks = nil
			for i := range 33 {
				e.Repeatability.DependencyLocks = append(e.Repeatability.DependencyLocks, Lock{fmt.Sprint(i), digestA})
			}
		}),
	}
	for _, v := range []string{"C", "C.UTF-8", "POSIX", "de", "de_DE", "de_DE.UTF-8", "ca_ES.UTF-8@valencia", "fil_PH.ISO-8859-1"} {
		rules = append(rules, ok("locale "+v, func(e *Envelope) { e.Repeatability.Locale = v }))
	}
	for _, v := range []string{"", "c", "../C", "C/UTF-8", "de_de", "de_DE.", "C.UTF-8\n", "en_US.UTF-8;rm", "deutsch"} {
		rules = append(rules, bad("locale "+v, "repeatability.locale: ", func(e *Envelope) { e.Repeatability.Locale = v }))
	}
	runRules(t, rules)
}

func TestValidateArtifactPaths(t *testing.T) {
	allow := func(p ...string) func(*Envelope) { return func(e *Envelope) { e.Artifacts.Allow = p } }
	rules := []rule{
		ok("none", allow()),
		bad("twice", `artifacts.allow[2]: "a" is allow[0] too`, allow("a", "b", "a")),
		bad("too many", "artifacts.allow: has 65 entries", func(e *Envelope) {
			e.Artifacts.Allow = nil
			for i := range 65 {
				e.Artifacts.Allow = append(e.Artifacts.Allow, fmt.Sprint(i))
			}
		}),
	}
	for _, v := range []string{"a", "a/b", "a b.json", "...", "a/..b", ".hidden", "a\\b", "é/東京.txt", strings.Repeat("p", 255)} {
		rules = append(rules, ok("path "+v, allow(v)))
	}
	for _, v := range []string{
		"", "/", "/etc/shadow", "..", ".", "../a", "a/..", "a/../b", "./a", "a/./b", "a//b", "a/", "//a",
		"a\nb", "a\x00", "a\x7f", "a\u0085", "a\u202eb", "a\xff", strings.Repeat("p", 256),
	} {
		rules = append(rules, bad("path "+v, "artifacts.allow[0]: ", allow(v)))
	}
	runRules(t, rules)
}

// TestValidateReportsAll breaks many fields at once; the zero envelope also
// shows that nothing passes by being absent.
func TestValidateReportsAll(t *testing.T) {
	var fields []string
	for _, e := range joined(Validate(Envelope{})) {
		field, _, _ := strings.Cut(e.Error(), ":")
		fields = append(fields, field)
	}
	want := "image_digest identity.tenant identity.run_id identity.attempt_id identity.uid filesystem.root" +
		" filesystem.workspace.mode filesystem.workspace.medium filesystem.workspace.inodes network_egress.default" +
		" resources.cpu resources.memory_bytes resources.process_count resources.disk_bytes resources.open_files" +
		" resources.output_bytes resources.wall_clock workspace_lifetime artifacts.hash cleanup.lease" +
		" cleanup.revoke_credentials cleanup.verify_process_tree isolation.tier repeatability.locale" +
		" repeatability.clock repeatability.randomness"
	if got := strings.Join(fields, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
