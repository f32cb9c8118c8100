package hostpolicy

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"cordon/internal/fault"
	"cordon/internal/strictyaml"
	"cordon/supervisor/envelope"
)

// mostFact keeps every amount exact in JSON and every sum far from overflow.
const mostFact = 1 << 52

// bounded takes nonsense for nothing.
func (f HostFacts) bounded() HostFacts {
	f.CPUs = min(max(f.CPUs, 0), 1<<20)
	f.MemoryBytes = min(max(f.MemoryBytes, 0), mostFact)
	f.DiskBytes = min(max(f.DiskBytes, 0), mostFact)
	f.PidMax = min(max(f.PidMax, 0), mostFact)
	return f
}

// resolver turns one document into a policy for one host.
type resolver struct {
	lookups Lookups
	facts   HostFacts
	seen    strictyaml.Positions
	lenient bool // a lookup that cannot tell is a note, not a refusal
	bad     []error
	notes   []string
}

func (r *resolver) refuse(path, cause, remedy string) {
	r.bad = append(r.bad, fault.New(fault.InvalidPolicy, path, r.seen.Place(path, cause), remedy))
}

func (r *resolver) policy(d document) (Policy, error) {
	p := Policy{allowHostImage: d.AllowHostImage}
	p.idBase, p.idCount = r.ids(d.Host)
	p.budget = r.budget(d.Host)
	p.budget.Leases = int64(p.idCount / RangeSize)
	named := map[string]bool{}
	for i, part := range d.Tenants {
		path := fmt.Sprintf("tenants[%d]", i)
		switch {
		case part.Name == "":
			r.refuse(path+".name", "is missing", "write the tenant's name")
		case !envelope.IsName(part.Name):
			r.refuse(path+".name", fmt.Sprintf("%.80q is not a name", part.Name),
				"use 1 to 64 of a-z A-Z 0-9 . _ -, the first a letter or digit")
		case named[part.Name]:
			r.refuse(path+".name", fmt.Sprintf("%q is listed twice", part.Name), "merge the two entries")
		}
		named[part.Name] = true
		p.tenants = append(p.tenants, Tenant{
			Name:         part.Name,
			Peers:        r.peers(part.Peers, path+".peers"),
			Images:       r.images(part.Images, path+".images"),
			Max:          r.max(part.Max, p.budget, path+".max"),
			ImportImages: part.ImportImages,
		})
	}
	if len(r.bad) != 0 {
		return Policy{}, errors.Join(r.bad...)
	}
	slices.SortFunc(p.tenants, func(a, b Tenant) int { return cmp.Compare(a.Name, b.Name) })
	p.notes = r.notes
	digest, err := digestOf(p)
	if err != nil {
		return Policy{}, err
	}
	p.digest = digest
	return p, nil
}

// ids checks the range that leases get their ids from.
func (r *resolver) ids(h hostPart) (base, count uint32) {
	base, count = defaultIDBase, defaultIDCount
	if h.IDBase != nil {
		base = *h.IDBase
	}
	if h.IDCount != nil {
		count = *h.IDCount
	}
	if base < RangeSize || base%RangeSize != 0 {
		r.refuse("host.id_base", fmt.Sprintf("%d is not a multiple of %d above 0", base, RangeSize),
			fmt.Sprintf("leave it out for %d", uint32(defaultIDBase)))
	}
	if count < RangeSize || count%RangeSize != 0 {
		r.refuse("host.id_count", fmt.Sprintf("%d is not a multiple of %d above 0", count, RangeSize),
			fmt.Sprintf("write %d for each lease at a time", RangeSize))
	}
	if uint64(base)+uint64(count) > 1<<31 {
		r.refuse("host.id_count", fmt.Sprintf("the ids end at %d, which some programs take for negative",
			uint64(base)+uint64(count)-1), "keep base and count together at or below 2147483648")
	}
	return base, count
}

// budget turns the fraction into amounts and puts explicit ones in their place.
func (r *resolver) budget(h hostPart) Amounts {
	f := h.BudgetFraction
	if f == 0 {
		f = defaultFraction
	}
	cores := int64(r.facts.CPUs)
	b := Amounts{
		// One core at least, where the host has one: a lease asks for a core
		// unless told otherwise, and time on it is shared, unlike memory.
		CPUMilli:    min(max(cores*f, 1000), cores*1000),
		MemoryBytes: r.facts.MemoryBytes * f / 1000,
		Processes:   r.facts.PidMax * f / 1000,
		DiskBytes:   r.facts.DiskBytes * f / 1000,
	}
	if h.CPU != 0 {
		if b.CPUMilli = h.CPU; h.CPU > cores*1000*mostOvercommit {
			r.refuse("host.cpu", fmt.Sprintf("%s cores are more than %d times the %d that this host has",
				strictyaml.FormatMilliCores(h.CPU), mostOvercommit, cores), "write fewer")
		}
	}
	r.amount("host.memory_bytes", h.MemoryBytes, r.facts.MemoryBytes, &b.MemoryBytes)
	r.amount("host.process_count", h.ProcessCount, r.facts.PidMax, &b.Processes)
	r.amount("host.disk_bytes", h.DiskBytes, r.facts.DiskBytes, &b.DiskBytes)
	return b
}

// mostOvercommit bounds how often a core may be promised.
const mostOvercommit = 16

// amount takes an explicit amount, which the host must have.
func (r *resolver) amount(path string, given *int64, has int64, dst *int64) {
	if given == nil {
		return
	}
	*dst = *given
	if *given < 1 || *given > has {
		r.refuse(path, fmt.Sprintf("%d is out of range: this host has %d", *given, has),
			"write less, or leave it out for the fraction")
	}
}

// max fills in what a tenant's entry leaves out.
func (r *resolver) max(m maxPart, budget Amounts, path string) Max {
	out := Max{
		Leases: defaultLeases, CPUMilli: cmp.Or(m.CPU, budget.CPUMilli), MemoryBytes: budget.MemoryBytes,
		ProcessCount: budget.Processes, DiskBytes: budget.DiskBytes,
		OpenFiles: defaultOpenFiles, OutputBytes: defaultOutputBytes,
		WallClock: cmp.Or(m.WallClock, defaultWallClock), Lease: cmp.Or(m.Lease, defaultLease),
	}
	for _, f := range []struct {
		name  string
		given *int64
		least int64
		dst   *int64
	}{
		{"leases", m.Leases, 0, &out.Leases}, // none: the tenant is switched off
		{"memory_bytes", m.MemoryBytes, 1, &out.MemoryBytes},
		{"process_count", m.ProcessCount, 1, &out.ProcessCount},
		{"disk_bytes", m.DiskBytes, 1, &out.DiskBytes},
		{"open_files", m.OpenFiles, 1, &out.OpenFiles},
		{"output_bytes", m.OutputBytes, 1, &out.OutputBytes},
	} {
		if f.given == nil {
			continue
		}
		*f.dst = *f.given
		if *f.given < f.least || *f.given > mostFact {
			r.refuse(path+"."+f.name, fmt.Sprintf("%d is out of range", *f.given),
				fmt.Sprintf("use %d to %d", f.least, int64(mostFact)))
		}
	}
	if out.WallClock > envelope.MostWallClock {
		r.refuse(path+".wall_clock", out.WallClock.String()+" is more than any envelope may ask for", "use at most 24h")
	}
	if out.Lease > envelope.MostLease {
		r.refuse(path+".lease", out.Lease.String()+" is more than any envelope may ask for", "use at most 24h")
	}
	return out
}

// images checks the list of what a tenant may run.
func (r *resolver) images(names []string, path string) []string {
	out := []string{}
	for i, name := range names {
		if name != "*" && name != "host" && !envelope.IsDigest(name) {
			r.refuse(fmt.Sprintf("%s[%d]", path, i), fmt.Sprintf("%.80q is not an image", name),
				`write "*", host, or sha256: and 64 lower-case hex digits`)
			continue
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// peers resolves the names of a tenant's peers.
func (r *resolver) peers(parts []peerPart, path string) []PeerRule {
	out := []PeerRule{}
	for i, part := range parts {
		if rule, ok := r.peer(part, fmt.Sprintf("%s[%d]", path, i)); ok {
			out = append(out, rule)
		}
	}
	slices.SortFunc(out, func(a, b PeerRule) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID))
	})
	return slices.Compact(out)
}

func (r *resolver) peer(part peerPart, path string) (PeerRule, bool) {
	given := 0
	for _, is := range []bool{part.UID != nil, part.GID != nil, part.User != nil, part.Group != nil} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		r.refuse(path, fmt.Sprintf("has %d of uid, gid, user and group", given), "write exactly one of them")
		return PeerRule{}, false
	case part.UID != nil:
		return r.number(PeerRule{"uid", *part.UID}, path+".uid")
	case part.GID != nil:
		return r.number(PeerRule{"gid", *part.GID}, path+".gid")
	case part.User != nil:
		return r.name("uid", *part.User, r.lookups.UserID, path+".user")
	}
	return r.name("gid", *part.Group, r.lookups.GroupID, path+".group")
}

// number refuses the id that the kernel takes for "no id".
func (r *resolver) number(rule PeerRule, path string) (PeerRule, bool) {
	if rule.ID == 1<<32-1 {
		r.refuse(path, fmt.Sprintf("%d is no id", rule.ID), "write the number of an account")
		return PeerRule{}, false
	}
	return rule, true
}

// accountPattern keeps numbers out: uid and gid are the fields for those.
var accountPattern = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_.@-]{0,63}$`)

// name looks an account up. One that does not exist admits nobody, which is
// safe but may be a slip, so it is noted.
func (r *resolver) name(kind, name string, find func(string) (uint32, bool, error), path string) (PeerRule, bool) {
	if !accountPattern.MatchString(name) {
		r.refuse(path, fmt.Sprintf("%.80q is not the name of an account", name), "write a name, or use uid or gid for a number")
		return PeerRule{}, false
	}
	var id uint32
	var found bool
	var err error
	if find != nil {
		id, found, err = find(name)
	}
	switch {
	case err != nil && !r.lenient:
		r.bad = append(r.bad, fault.Wrap(err, fault.InvalidPolicy, path, r.seen.Place(path, "look up "+name),
			"repair the account database, or use uid or gid"))
	case err != nil:
		r.notes = append(r.notes, fmt.Sprintf("%s: look up %s: %v; the entry admits nobody", path, name, err))
	case !found:
		r.notes = append(r.notes, fmt.Sprintf("%s: there is no %s on this host; the entry admits nobody", path, name))
	default:
		return r.number(PeerRule{kind, id}, path)
	}
	return PeerRule{}, false
}
