package hostpolicy

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cordon/internal/fault"
	"cordon/supervisor/envelope"
)

const policyDoc = `
host: {cpu: 4, memory_bytes: 4294967296, process_count: 1000, disk_bytes: 8589934592, id_count: 655360}
allow_host_image: true
tenants:
  - name: acme
    peers: [{uid: 1001}, {gid: 50}]
    images: [host, ` + digestA + `]
    max: {leases: 3, cpu: 2, memory_bytes: 2147483648, process_count: 300, disk_bytes: 4294967296,
          open_files: 1024, output_bytes: 33554432, wall_clock: 20m, lease: 30m}
  - name: wide
    peers: [{uid: 1001}]
    images: ["*"]
    max: {leases: 100, memory_bytes: 1099511627776}
  - name: other
    peers: [{uid: 2000}]
    images: ["*"]
`

func request(change func(*envelope.Envelope)) envelope.Envelope {
	e := envelope.New()
	e.ImageDigest = digestA
	e.Identity.Tenant, e.Identity.RunID = "acme", "r1"
	if change != nil {
		change(&e)
	}
	return envelope.Complete(e)
}

var (
	alice   = Peer{UID: 1001, GID: 1001}
	byGroup = Peer{UID: 7, GID: 8, Groups: []uint32{9, 50}}
)

func TestTenants(t *testing.T) {
	p := parsed(t, policyDoc)
	tests := []struct {
		name string
		peer Peer
		want string
	}{
		{"uid", alice, "acme wide"},
		{"supplementary group", byGroup, "acme"},
		{"primary group", Peer{UID: 7, GID: 50}, "acme"},
		{"a gid is not a uid", Peer{UID: 50, GID: 1001}, ""},
		{"root is nobody special", Peer{}, ""},
		{"stranger", Peer{UID: 3000, GID: 3000}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, tenant := range p.Tenants(tt.peer) {
				got = append(got, tenant.Name)
			}
			if s := strings.Join(got, " "); s != tt.want {
				t.Errorf("got %q, want %q", s, tt.want)
			}
			if got := (Policy{}).Tenants(tt.peer); got != nil {
				t.Errorf("the zero policy grants %v", got)
			}
		})
	}
}

func TestAdmitAllows(t *testing.T) {
	p := parsed(t, policyDoc)
	tests := []struct {
		name string
		peer Peer
		e    envelope.Envelope
		use  InUse
	}{
		{"defaults", alice, request(nil), InUse{}},
		{"by group", byGroup, request(nil), InUse{}},
		{"exactly the bounds", alice, request(func(e *envelope.Envelope) {
			e.Resources = envelope.Resources{
				CPUMilli: 2000, MemoryBytes: 2 << 30, ProcessCount: 300, DiskBytes: 4 << 30,
				OpenFiles: 1024, OutputBytes: 32 << 20, WallClock: 20 * time.Minute,
			}
			e.Cleanup.Lease = 30 * time.Minute
		}), InUse{}},
		{"exactly what is left", alice, request(nil), InUse{
			Host:    Amounts{9, 3000, 4<<30 - 512<<20, 872, 7 << 30},
			Tenants: map[string]Amounts{"acme": {2, 1000, 2<<30 - 512<<20, 172, 3 << 30}},
		}},
		{"what others use is theirs", alice, request(nil), InUse{Tenants: map[string]Amounts{"other": {99, 9999, 99 << 30, 9999, 99 << 30}}}},
		{
			"a workspace in memory takes no disk", alice, request(func(e *envelope.Envelope) { e.Filesystem.Workspace.Medium = "memory" }),
			InUse{Host: Amounts{DiskBytes: 8 << 30}},
		},
		{"the host's image by name", alice, request(func(e *envelope.Envelope) { e.ImageDigest = digestB }), InUse{HostImage: digestB}},
		{"any image", alice, request(func(e *envelope.Envelope) { e.ImageDigest, e.Identity.Tenant = digestB, "wide" }), InUse{}},
		{"any image, the host's too", alice, request(func(e *envelope.Envelope) { e.ImageDigest, e.Identity.Tenant = digestB, "wide" }), InUse{HostImage: digestB}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := p.Admit(tt.peer, tt.e, tt.use); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAdmitRefusesStrangers(t *testing.T) {
	p := parsed(t, policyDoc)
	tests := []struct {
		name   string
		policy Policy
		peer   Peer
		tenant string
		want   string
	}{
		{"another's tenant", p, alice, "other", `identity.tenant: uid 1001 does not speak for tenant "other" [use a tenant of this caller (acme, wide), or have the operator list it under that tenant's peers in /etc/cordon/policy.yaml]`},
		{"no such tenant", p, alice, "ghost", `identity.tenant: uid 1001 does not speak for tenant "ghost" [use a tenant of this caller (acme, wide), or`},
		{"no tenant at all", p, Peer{UID: 3000}, "acme", `identity.tenant: uid 3000 does not speak for tenant "acme" [use a tenant of this caller (none), or`},
		{"empty tenant", p, alice, "", `identity.tenant: uid 1001 does not speak for tenant ""`},
		{"zero policy", Policy{}, Peer{}, "root", `identity.tenant: uid 0 does not speak for tenant "root"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			// An outrageous request must not bring out the tenant's bounds.
			err := tt.policy.Admit(tt.peer, request(func(e *envelope.Envelope) {
				e.Identity.Tenant, e.Resources.MemoryBytes = tt.tenant, 1<<50
			}), InUse{})
			wantFaults(t, err, fault.PermissionDenied, []string{tt.want})
		})
	}
}

func TestAdmitImages(t *testing.T) {
	p := parsed(t, policyDoc)
	noHost := parsed(t, strings.Replace(policyDoc, "allow_host_image: true", "allow_host_image: false", 1))
	image := func(digest, tenant string) envelope.Envelope {
		return request(func(e *envelope.Envelope) { e.ImageDigest, e.Identity.Tenant = digest, tenant })
	}
	tests := []struct {
		name   string
		policy Policy
		e      envelope.Envelope
		host   string
		want   string
	}{
		{"not listed", p, image(digestB, "acme"), "", `image_digest: tenant "acme" may not use image "` + digestB + `" [use an image that it may: host, ` + digestA + `]`},
		{"host is not every image", p, image(digestB, "acme"), digestA, `image_digest: tenant "acme" may not use`},
		{"the host's, switched off", noHost, image(digestB, "acme"), digestB, "image_digest: the snapshot of this host may not be used"},
		{"the host's, switched off, any image", noHost, image(digestB, "wide"), digestB, "image_digest: the snapshot of this host may not be used"},
		{"the host's, switched off, listed", noHost, image(digestA, "acme"), digestA, "image_digest: the snapshot of this host may not be used"},
		{"no digest", p, image("", "wide"), "", `image_digest: tenant "wide" may not use image ""`},
		{"a name", p, image("host", "acme"), "", `image_digest: tenant "acme" may not use image "host"`},
		{"the star", p, image("*", "wide"), "", `image_digest: tenant "wide" may not use image "*"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wantFaults(t, tt.policy.Admit(alice, tt.e, InUse{HostImage: tt.host}), fault.PermissionDenied, []string{tt.want})
		})
	}
}

func TestAdmitExceeded(t *testing.T) {
	p := parsed(t, policyDoc)
	tests := []struct {
		name   string
		change func(*envelope.Envelope)
		want   string
	}{
		{
			"cpu", func(e *envelope.Envelope) { e.Resources.CPUMilli = 2001 },
			`resources.cpu: 2.001 is asked for; tenant "acme" may have 2 [ask for at most 2, or have the operator raise it in /etc/cordon/policy.yaml]`,
		},
		{
			"memory", func(e *envelope.Envelope) { e.Resources.MemoryBytes = 2<<30 + 1 },
			`resources.memory_bytes: 2147483649 is asked for; tenant "acme" may have 2147483648 [ask for at most 2147483648,`,
		},
		{
			"processes", func(e *envelope.Envelope) { e.Resources.ProcessCount = 301 },
			`resources.process_count: 301 is asked for; tenant "acme" may have 300 [`,
		},
		{"disk", func(e *envelope.Envelope) { e.Resources.DiskBytes = 4<<30 + 1 }, "resources.disk_bytes: 4294967297 is asked for"},
		{
			"disk in memory", func(e *envelope.Envelope) { e.Resources.DiskBytes, e.Filesystem.Workspace.Medium = 4<<30+1, "memory" },
			"resources.disk_bytes: 4294967297 is asked for",
		},
		{
			"open files", func(e *envelope.Envelope) { e.Resources.OpenFiles = 1025 },
			`resources.open_files: 1025 is asked for; each lease of tenant "acme" may have 1024 [ask for at most 1024,`,
		},
		{"output", func(e *envelope.Envelope) { e.Resources.OutputBytes = 32<<20 + 1 }, "resources.output_bytes: 33554433 is asked for"},
		{
			"wall clock", func(e *envelope.Envelope) { e.Resources.WallClock = 20*time.Minute + 1 },
			`resources.wall_clock: 20m0.000000001s is asked for; each lease of tenant "acme" may have 20m0s [`,
		},
		{"lease", func(e *envelope.Envelope) { e.Cleanup.Lease = time.Hour }, "cleanup.lease: 1h0m0s is asked for"},
		{
			"more than the host, however wide the tenant", func(e *envelope.Envelope) { e.Identity.Tenant, e.Resources.MemoryBytes = "wide", 4<<30+1 },
			"resources.memory_bytes: 4294967297 is asked for; all leases of this host together may have 4294967296 [ask for at most 4294967296,",
		},
		{
			"near overflow", func(e *envelope.Envelope) { e.Identity.Tenant, e.Resources.MemoryBytes = "wide", math.MaxInt64 },
			`resources.memory_bytes: 9223372036854775807 is asked for; tenant "wide" may have 1099511627776 [ask for at most 4294967296,`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wantFaults(t, p.Admit(alice, request(tt.change), InUse{}), fault.PolicyExceeded, []string{tt.want})
			full := Amounts{math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64, math.MaxInt64}
			if code := fault.CodeOf(p.Admit(alice, request(tt.change), InUse{Host: full})); code != fault.PolicyExceeded {
				t.Errorf("on a full host the code is %q: the caller would wait for nothing", code)
			}
		})
	}
}

func TestAdmitFull(t *testing.T) {
	p := parsed(t, policyDoc)
	mine := func(a Amounts) InUse { return InUse{Host: a, Tenants: map[string]Amounts{"acme": a}} }
	tests := []struct {
		name string
		use  InUse
		want string
	}{
		{"tenant's leases", mine(Amounts{Leases: 3}), `leases: 1 is asked for; of the 3 of tenant "acme", 0 is left [release a lease, or wait until one ends]`},
		{"tenant's cpu", mine(Amounts{CPUMilli: 1500}), `resources.cpu: 1 is asked for; of the 2 of tenant "acme", 0.5 is left [ask for at most 0.5, release`},
		{"tenant's memory", mine(Amounts{MemoryBytes: 2<<30 - 1}), `resources.memory_bytes: 536870912 is asked for; of the 2147483648 of tenant "acme", 1 is left [ask for at most 1,`},
		{"tenant's processes", mine(Amounts{Processes: 300}), `resources.process_count: 128 is asked for; of the 300 of tenant "acme", 0 is left [release`},
		{"tenant's disk", mine(Amounts{DiskBytes: 9 << 30}), `resources.disk_bytes: 1073741824 is asked for; of the 4294967296 of tenant "acme", 0 is left [release`},
		{"host's ids", InUse{Host: Amounts{Leases: 10}}, "leases: 1 is asked for; of the host's share for all leases, 0 is left [release"},
		{"host's cpu", InUse{Host: Amounts{CPUMilli: 3001}}, "resources.cpu: 1 is asked for; of the host's share for all leases, 0.999 is left [ask for at most 0.999,"},
		{"host's memory", InUse{Host: Amounts{MemoryBytes: 4 << 30}}, "resources.memory_bytes: 536870912 is asked for; of the host's share"},
		{"host's processes", InUse{Host: Amounts{Processes: 873}}, "resources.process_count: 128 is asked for; of the host's share for all leases, 127 is left"},
		{"host's disk", InUse{Host: Amounts{DiskBytes: math.MaxInt64}}, "resources.disk_bytes: 1073741824 is asked for; of the host's share for all leases, 0 is left"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wantFaults(t, p.Admit(alice, request(nil), tt.use), fault.HostFull, []string{tt.want})
		})
	}
	if err := p.Admit(alice, request(nil), mine(Amounts{-5, -5, -5, -5, math.MinInt64})); err != nil {
		t.Errorf("a negative count: %v", err)
	}
	tooMuch := request(func(e *envelope.Envelope) { e.Resources.MemoryBytes = 2 << 30 })
	if err := p.Admit(alice, tooMuch, mine(Amounts{MemoryBytes: -1 << 30})); err != nil {
		t.Errorf("a negative count takes away: %v", err)
	}
}

func TestAdmitTenantWithoutLeases(t *testing.T) {
	p := parsed(t, "tenants: [{name: acme, peers: [{uid: 1001}], images: ['*'], max: {leases: 0}}]\n")
	wantFaults(t, p.Admit(alice, request(nil), InUse{}), fault.PolicyExceeded, []string{`leases: 1 is asked for; tenant "acme" may have 0 [have the operator raise it in /etc/`})
}

// TestAdmitReportsAll also holds the order: what waiting cures comes last.
func TestAdmitReportsAll(t *testing.T) {
	p := parsed(t, policyDoc)
	err := p.Admit(alice, request(func(e *envelope.Envelope) {
		e.ImageDigest, e.Resources.OpenFiles, e.Cleanup.Lease = digestB, 4096, time.Hour
	}), InUse{Host: Amounts{Leases: 10, MemoryBytes: 4 << 30}})
	var got []string
	for _, e := range joined(err) {
		field, _, _ := strings.Cut(e.Error(), ":")
		got = append(got, string(fault.CodeOf(e))+" "+field)
	}
	want := []string{
		"permission_denied image_digest", "policy_exceeded resources.open_files", "policy_exceeded cleanup.lease",
		"host_full leases", "host_full resources.memory_bytes",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("wrong reasons (-want +got):\n%s", diff)
	}
}

// TestAdmitRefusesTheIncomplete: zero is below every bound and must not pass.
func TestAdmitRefusesTheIncomplete(t *testing.T) {
	e := envelope.New()
	e.ImageDigest, e.Identity.Tenant = digestA, "acme"
	var fields []string
	for _, err := range joined(parsed(t, policyDoc).Admit(alice, e, InUse{})) {
		field, _, _ := strings.Cut(err.Error(), ":")
		fields = append(fields, field)
		if fault.CodeOf(err) != fault.InvalidEnvelope {
			t.Errorf("%v has code %q", err, fault.CodeOf(err))
		}
	}
	want := "resources.cpu resources.memory_bytes resources.process_count resources.disk_bytes" +
		" resources.open_files resources.output_bytes resources.wall_clock cleanup.lease"
	if got := strings.Join(fields, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestDefaultAdmitsTheDefaultEnvelope on the smallest host that is any use.
func TestDefaultAdmitsTheDefaultEnvelope(t *testing.T) {
	small := HostFacts{CPUs: 1, MemoryBytes: 1 << 30, DiskBytes: 2 << 30, PidMax: 32768}
	p := Default(withCordon(), small)
	for tenant, peer := range map[string]Peer{"root": {}, "cordon": {UID: 5, GID: 5, Groups: []uint32{998}}} {
		e := request(func(e *envelope.Envelope) { e.Identity.Tenant = tenant })
		if err := p.Admit(peer, e, InUse{HostImage: digestA}); err != nil {
			t.Errorf("%s: %v", tenant, err)
		}
		if code := fault.CodeOf(p.Admit(peer, e, InUse{Host: Charge(e)})); code != fault.HostFull {
			t.Errorf("%s: a second lease got code %q", tenant, code)
		}
	}
	e := request(func(e *envelope.Envelope) { e.Identity.Tenant = "root" })
	if code := fault.CodeOf(Default(withCordon(), HostFacts{}).Admit(Peer{}, e, InUse{})); code != fault.PolicyExceeded {
		t.Errorf("an unknown host: code %q", code)
	}
}

func TestCharge(t *testing.T) {
	e := request(nil)
	want := Amounts{1, 1000, 512 << 20, 128, 1 << 30}
	if got := Charge(e); got != want {
		t.Errorf("disk: got %+v", got)
	}
	if got := Charge(e).Add(want); got != (Amounts{2, 2000, 1 << 30, 256, 2 << 30}) {
		t.Errorf("sum: got %+v", got)
	}
	e.Filesystem.Workspace.Medium = "memory"
	want.DiskBytes = 0
	if got := Charge(e); got != want {
		t.Errorf("memory: got %+v", got)
	}
}
