package hostpolicy

import (
	"regexp"
	"strconv"
	"time"

	"cordon/internal/fault"
	"cordon/internal/strictyaml"
	"cordon/supervisor/envelope"
)

// document is the policy as it is written. A pointer or a zero is a field that
// was left out.
type document struct {
	Host           hostPart     `yaml:"host"`
	AllowHostImage bool         `yaml:"allow_host_image"`
	Tenants        []tenantPart `yaml:"tenants"`
}

type hostPart struct {
	BudgetFraction int64   `yaml:"budget_fraction"` // thousandths
	CPU            int64   `yaml:"cpu"`             // milli
	MemoryBytes    *int64  `yaml:"memory_bytes"`
	ProcessCount   *int64  `yaml:"process_count"`
	DiskBytes      *int64  `yaml:"disk_bytes"`
	IDBase         *uint32 `yaml:"id_base"`
	IDCount        *uint32 `yaml:"id_count"`
}

type tenantPart struct {
	Name         string     `yaml:"name"`
	Peers        []peerPart `yaml:"peers"`
	Images       []string   `yaml:"images"`
	Max          maxPart    `yaml:"max"`
	ImportImages bool       `yaml:"import_images"`
}

type peerPart struct {
	UID   *uint32 `yaml:"uid"`
	GID   *uint32 `yaml:"gid"`
	User  *string `yaml:"user"`
	Group *string `yaml:"group"`
}

type maxPart struct {
	Leases       *int64        `yaml:"leases"`
	CPU          int64         `yaml:"cpu"` // milli
	MemoryBytes  *int64        `yaml:"memory_bytes"`
	ProcessCount *int64        `yaml:"process_count"`
	DiskBytes    *int64        `yaml:"disk_bytes"`
	OpenFiles    *int64        `yaml:"open_files"`
	OutputBytes  *int64        `yaml:"output_bytes"`
	WallClock    time.Duration `yaml:"wall_clock"`
	Lease        time.Duration `yaml:"lease"`
}

// What a tenant is granted of each bound that its entry leaves out. Those over
// all its leases come from the budget instead.
const (
	defaultLeases      = 64
	defaultOpenFiles   = 65536
	defaultOutputBytes = 1 << 30
	defaultWallClock   = 6 * time.Hour
	defaultLease       = envelope.MostLease
)

// Where leases get their ids from unless the document says otherwise: above
// what useradd gives to subordinate ids and what systemd gives to containers,
// below 2^31, with room for 1024 leases.
const (
	defaultIDBase  = 0x70000000
	defaultIDCount = 1024 * RangeSize
)

// defaultFraction is half the host, in thousandths.
const defaultFraction = 500

// Parse reads a policy document and resolves it for this host. Every problem
// is reported: joined *fault.Fault, code invalid_policy, with line and path.
func Parse(doc []byte, lookups Lookups, facts HostFacts) (Policy, error) {
	var d document
	seen, err := strictyaml.Decoder{Forms: map[string]strictyaml.Form{
		"host.budget_fraction": fraction,
		"host.cpu":             strictyaml.MilliCores,
		"tenants[].max.cpu":    strictyaml.MilliCores,
	}}.Decode(doc, &d)
	if err != nil {
		return Policy{}, strictyaml.Faults(err, fault.InvalidPolicy)
	}
	r := &resolver{lookups: lookups, facts: facts.bounded(), seen: seen}
	if _, given := seen["tenants"]; !given {
		r.refuse("tenants", "missing", "list the tenants, or write tenants: [] to serve nobody")
	}
	return r.policy(d)
}

// Default is the policy of a host whose operator wrote none: root and the
// group cordon run one tenant each within half the host.
func Default(lookups Lookups, facts HostFacts) Policy {
	r := &resolver{lookups: lookups, facts: facts.bounded(), lenient: true}
	p, err := r.policy(defaultDocument())
	if err != nil {
		return Policy{} // refuses everyone; the document is ours, and a test holds it
	}
	return p
}

func defaultDocument() document {
	rootUID, group := uint32(0), "cordon"
	return document{
		AllowHostImage: true,
		Tenants: []tenantPart{
			{Name: "root", Peers: []peerPart{{UID: &rootUID}}, Images: []string{"*"}, ImportImages: true},
			{Name: "cordon", Peers: []peerPart{{Group: &group}}, Images: []string{"*"}},
		},
	}
}

var fractionPattern = regexp.MustCompile(`^(0\.[0-9]{1,3}|1|1\.0{1,3})$`)

// fraction reads a part of the whole as thousandths.
func fraction(text string) (int64, error) {
	bad := &strictyaml.Problem{
		Cause:  strconv.Quote(text) + " is not a part of the host",
		Remedy: "write a number above 0 and up to 1 with at most three decimals, such as 0.5",
	}
	if !fractionPattern.MatchString(text) {
		return 0, bad
	}
	milli, err := strictyaml.MilliCores(text)
	if err != nil {
		return 0, bad
	}
	return milli, nil
}
