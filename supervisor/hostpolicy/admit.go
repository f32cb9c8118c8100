package hostpolicy

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"cordon/internal/fault"
	"cordon/internal/strictyaml"
	"cordon/supervisor/envelope"
)

// Admit judges a completed and validated envelope of peer. All reasons against
// it are reported as joined *fault.Fault, those that waiting does not cure
// first:
//   - permission_denied: the peer does not speak for the tenant, or the tenant
//     may not use the image;
//   - policy_exceeded: more than the tenant or the host ever grants;
//   - host_full: more than is left until other leases end.
//
// The caller holds whatever lock keeps use true until the lease is counted.
func (p Policy) Admit(peer Peer, e envelope.Envelope, use InUse) error {
	tenant, ok := p.Speaks(peer, e.Identity.Tenant)
	if !ok {
		return p.notSpeaking(peer, e.Identity.Tenant)
	}
	a := &admission{tenant: tenant, budget: p.budget, mine: use.Tenants[tenant.Name], host: use.Host}
	if !p.mayUse(tenant, e.ImageDigest, use.HostImage) {
		a.never = append(a.never, p.imageFault(tenant, e.ImageDigest, use.HostImage))
	}
	a.totals(e)
	a.each(e)
	return errors.Join(append(a.never, a.later...)...)
}

// notSpeaking says the same whether or not there is such a tenant.
func (p Policy) notSpeaking(peer Peer, tenant string) error {
	mine := "none"
	if list := p.Tenants(peer); len(list) != 0 {
		names := make([]string, len(list))
		for i, t := range list {
			names[i] = t.Name
		}
		mine = strings.Join(names, ", ")
	}
	return fault.New(fault.PermissionDenied, "identity.tenant",
		fmt.Sprintf("uid %d does not speak for tenant %.80q", peer.UID, tenant),
		fmt.Sprintf("use a tenant of this caller (%s), or have the operator list it under that tenant's peers in %s", mine, Path))
}

// mayUse fails closed: what is the host's own snapshot needs both permissions,
// even when its digest is listed.
func (p Policy) mayUse(t Tenant, digest, hostImage string) bool {
	listed := slices.Contains(t.Images, "*") || slices.Contains(t.Images, digest)
	if digest != hostImage {
		return listed && envelope.IsDigest(digest)
	}
	return p.allowHostImage && (listed || slices.Contains(t.Images, "host")) && envelope.IsDigest(digest)
}

func (p Policy) imageFault(t Tenant, digest, hostImage string) error {
	if digest != "" && digest == hostImage && !p.allowHostImage {
		return fault.New(fault.PermissionDenied, "image_digest", "the snapshot of this host may not be used",
			"use an imported image, or have the operator set allow_host_image in "+Path)
	}
	allowed := "none"
	if len(t.Images) != 0 {
		allowed = strings.Join(t.Images, ", ")
	}
	return fault.New(fault.PermissionDenied, "image_digest",
		fmt.Sprintf("tenant %q may not use image %.80q", t.Name, digest), "use an image that it may: "+allowed)
}

// admission is the state of one Admit.
type admission struct {
	tenant     Tenant
	budget     Amounts
	mine, host Amounts
	never      []error // waiting does not cure these
	later      []error
}

// total is one amount that leases share.
type total struct {
	field      string
	ask        int64
	charge     int64 // what it takes of the shared amounts
	max, mine  int64 // the tenant's bound and what it has in use
	all, taken int64 // the same of the host
	show       func(int64) string
}

func (a *admission) totals(e envelope.Envelope) {
	c, m, b, t, h := Charge(e), a.tenant.Max, a.budget, a.mine, a.host
	r := e.Resources
	for _, each := range []total{
		{"leases", 1, c.Leases, m.Leases, t.Leases, b.Leases, h.Leases, number},
		{"resources.cpu", r.CPUMilli, c.CPUMilli, m.CPUMilli, t.CPUMilli, b.CPUMilli, h.CPUMilli, strictyaml.FormatMilliCores},
		{"resources.memory_bytes", r.MemoryBytes, c.MemoryBytes, m.MemoryBytes, t.MemoryBytes, b.MemoryBytes, h.MemoryBytes, number},
		{"resources.process_count", r.ProcessCount, c.Processes, m.ProcessCount, t.Processes, b.Processes, h.Processes, number},
		{"resources.disk_bytes", r.DiskBytes, c.DiskBytes, m.DiskBytes, t.DiskBytes, b.DiskBytes, h.DiskBytes, number},
	} {
		a.total(each)
	}
}

// total compares by subtraction: no sum of what is asked can overflow.
func (a *admission) total(t total) {
	mine, taken := max(t.mine, 0), max(t.taken, 0)
	switch {
	case t.ask <= 0:
		a.missing(t.field)
	case t.ask > t.max:
		a.exceeded(t.field, fmt.Sprintf("%s is asked for; tenant %q may have %s", t.show(t.ask), a.tenant.Name, t.show(t.max)),
			t.show(min(t.max, t.all)))
	case t.charge > t.all:
		a.exceeded(t.field, fmt.Sprintf("%s is asked for; all leases of this host together may have %s", t.show(t.ask), t.show(t.all)),
			t.show(t.all))
	case t.charge > 0 && t.charge > t.max-mine:
		a.full(t, fmt.Sprintf("%s is asked for; of the %s of tenant %q, %s is left",
			t.show(t.ask), t.show(t.max), a.tenant.Name, t.show(max(t.max-mine, 0))), min(t.max-mine, t.all-taken))
	case t.charge > 0 && t.charge > t.all-taken:
		a.full(t, fmt.Sprintf("%s is asked for; of the host's share for all leases, %s is left",
			t.show(t.ask), t.show(max(t.all-taken, 0))), t.all-taken)
	}
}

// each judges the bounds of a single lease.
func (a *admission) each(e envelope.Envelope) {
	m := a.tenant.Max
	for _, b := range []struct {
		field    string
		ask, max int64
		show     func(int64) string
	}{
		{"resources.open_files", e.Resources.OpenFiles, m.OpenFiles, number},
		{"resources.output_bytes", e.Resources.OutputBytes, m.OutputBytes, number},
		{"resources.wall_clock", int64(e.Resources.WallClock), int64(m.WallClock), span},
		{"cleanup.lease", int64(e.Cleanup.Lease), int64(m.Lease), span},
	} {
		switch {
		case b.ask <= 0:
			a.missing(b.field)
		case b.ask > b.max:
			a.exceeded(b.field, fmt.Sprintf("%s is asked for; each lease of tenant %q may have %s",
				b.show(b.ask), a.tenant.Name, b.show(b.max)), b.show(b.max))
		}
	}
}

// missing refuses an envelope that nobody completed: zero would pass any bound.
func (a *admission) missing(field string) {
	a.never = append(a.never, fault.New(fault.InvalidEnvelope, field, "is not above 0", "complete and validate the envelope first"))
}

func (a *admission) exceeded(field, cause, most string) {
	remedy := "have the operator raise it in " + Path
	if most != "0" {
		remedy = "ask for at most " + most + ", or " + remedy
	}
	a.never = append(a.never, fault.New(fault.PolicyExceeded, field, cause, remedy))
}

func (a *admission) full(t total, cause string, left int64) {
	remedy := "release a lease, or wait until one ends"
	if left > 0 && t.field != "leases" {
		remedy = "ask for at most " + t.show(left) + ", " + remedy
	}
	a.later = append(a.later, fault.New(fault.HostFull, t.field, cause, remedy))
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

func span(n int64) string { return time.Duration(n).String() }
