// Package hostpolicy decides what a host grants: which peers speak for which
// tenants, how much each tenant may ask for, and how much of the host all
// leases together may take. What no entry allows is refused.
//
// It needs no privilege and touches no file, account database or clock: the
// document, the name lookups and the facts about the host are handed in. A
// Policy is built once and never changes, so it is safe for concurrent use;
// slices it hands out belong to it. Counting what is in use is the
// supervisor's work, and what an envelope may say at all is envelope's.
package hostpolicy

import (
	"slices"
	"time"

	"cordon/supervisor/envelope"
)

// Path is where the policy of a host lives.
const Path = "/etc/cordon/policy.yaml"

// RangeSize is how many host ids one lease takes.
const RangeSize = 65536

// Peer is a caller as the kernel named it.
type Peer struct {
	UID, GID uint32
	Groups   []uint32 // supplementary
}

// Lookups find the numbers of names. A name that does not exist is not an
// error; not being able to tell is. A nil function knows no name.
type Lookups struct {
	UserID  func(name string) (id uint32, found bool, err error)
	GroupID func(name string) (id uint32, found bool, err error)
}

// HostFacts is what the host has. A fact that is unknown is zero, and nothing
// is granted of it.
type HostFacts struct {
	CPUs        int
	MemoryBytes int64
	DiskBytes   int64 // of the file system that holds the workspaces
	PidMax      int64 // processes and threads the kernel can number
}

// Amounts are what leases take of a host.
type Amounts struct {
	Leases      int64 `json:"leases"`
	CPUMilli    int64 `json:"cpu_milli"`
	MemoryBytes int64 `json:"memory_bytes"`
	Processes   int64 `json:"processes"`
	DiskBytes   int64 `json:"disk_bytes"`
}

// Add is the sum of both.
func (a Amounts) Add(b Amounts) Amounts {
	return Amounts{
		Leases:      a.Leases + b.Leases,
		CPUMilli:    a.CPUMilli + b.CPUMilli,
		MemoryBytes: a.MemoryBytes + b.MemoryBytes,
		Processes:   a.Processes + b.Processes,
		DiskBytes:   a.DiskBytes + b.DiskBytes,
	}
}

// Charge is what a lease of a completed envelope takes, in full: a limit is
// counted as used. A workspace in memory takes no disk; the kernel counts its
// pages against the lease's memory.
func Charge(e envelope.Envelope) Amounts {
	a := Amounts{
		Leases:      1,
		CPUMilli:    e.Resources.CPUMilli,
		MemoryBytes: e.Resources.MemoryBytes,
		Processes:   e.Resources.ProcessCount,
		DiskBytes:   e.Resources.DiskBytes,
	}
	if e.Filesystem.Workspace.Medium == "memory" {
		a.DiskBytes = 0
	}
	return a
}

// InUse is the state of the host that an admission is judged against.
type InUse struct {
	Host    Amounts            // the sum over all leases that are not closed
	Tenants map[string]Amounts // the same by tenant; absent is nothing
	// HostImage is the digest of this host's own snapshot, the image that a
	// policy calls "host"; empty when there is none.
	HostImage string
}

// Policy is a resolved host policy. The zero Policy refuses everyone.
type Policy struct {
	tenants        []Tenant // by name
	budget         Amounts
	idBase         uint32
	idCount        uint32
	allowHostImage bool
	digest         string
	notes          []string
}

// Tenant is one tenant and its bounds.
type Tenant struct {
	Name         string     `json:"name"`
	Peers        []PeerRule `json:"peers"`
	Images       []string   `json:"images"` // digests, "host", or "*" for all
	Max          Max        `json:"max"`
	ImportImages bool       `json:"import_images"`
}

// PeerRule matches peers by one number.
type PeerRule struct {
	Kind string `json:"kind"` // uid or gid
	ID   uint32 `json:"id"`
}

// Max bounds a tenant: the first five over its leases together, the others
// for each lease.
type Max struct {
	Leases       int64         `json:"leases"`
	CPUMilli     int64         `json:"cpu_milli"`
	MemoryBytes  int64         `json:"memory_bytes"`
	ProcessCount int64         `json:"process_count"`
	DiskBytes    int64         `json:"disk_bytes"`
	OpenFiles    int64         `json:"open_files"`
	OutputBytes  int64         `json:"output_bytes"`
	WallClock    time.Duration `json:"wall_clock_ns"`
	Lease        time.Duration `json:"lease_ns"`
}

// Tenants are those that p may speak for, by name.
func (p Policy) Tenants(peer Peer) []Tenant {
	var out []Tenant
	for _, t := range p.tenants {
		if t.admits(peer) {
			out = append(out, t)
		}
	}
	return out
}

// Speaks returns the named tenant if peer may speak for it. Whether the tenant
// exists at all is not told apart from whether peer may.
func (p Policy) Speaks(peer Peer, tenant string) (Tenant, bool) {
	for _, t := range p.tenants {
		if t.Name == tenant && t.admits(peer) {
			return t, true
		}
	}
	return Tenant{}, false
}

func (t Tenant) admits(peer Peer) bool {
	return slices.ContainsFunc(t.Peers, func(r PeerRule) bool {
		switch r.Kind {
		case "uid":
			return r.ID == peer.UID
		case "gid":
			return r.ID == peer.GID || slices.Contains(peer.Groups, r.ID)
		}
		return false
	})
}

// Budget is what all leases together may take. Its Leases is how many ranges
// of ids there are.
func (p Policy) Budget() Amounts { return p.budget }

// IDRange is the host ids that leases get theirs from, RangeSize each.
func (p Policy) IDRange() (base, count uint32) { return p.idBase, p.idCount }

// HostImageAllowed reports whether a snapshot of the host may be used at all.
func (p Policy) HostImageAllowed() bool { return p.allowHostImage }

// Digest is "sha256:" and hex over the resolved policy: names looked up,
// fractions turned into amounts. The zero Policy has none.
func (p Policy) Digest() string { return p.digest }

// Notes are what an operator should know about the document: names that do
// not exist on this host and therefore admit nobody.
func (p Policy) Notes() []string { return p.notes }
