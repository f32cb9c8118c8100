package artifacts

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"pault.ag/go/debian/dependency"
)

// dpkgPackage is one installed package of the host's database.
type dpkgPackage struct {
	name      string
	arch      string // "all" or an architecture
	essential bool
	priority  string
	depends   []dependency.Relation // Pre-Depends and Depends
	provides  []string
}

// dpkgDB is the installed part of a status file.
type dpkgDB struct {
	native   string // the architecture of dpkg itself
	packages []*dpkgPackage
	byName   map[string][]*dpkgPackage
	virtual  map[string][]*dpkgPackage // by provided name, in order of names
}

const maxStatusLine = 1 << 20

// parseStatus reads /var/lib/dpkg/status. It is strict about the shape of
// the file (a field it cannot place is an error) and skips packages that are
// not fully installed. The paragraph reader is its own because the library's
// (pault.ag/go/debian/control) brings an OpenPGP parser into the daemon;
// relations are parsed by the library.
func parseStatus(r io.Reader) (*dpkgDB, error) {
	db := &dpkgDB{byName: map[string][]*dpkgPackage{}, virtual: map[string][]*dpkgPackage{}}
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 64<<10), maxStatusLine)
	fields, last := map[string]string{}, ""
	for line := 1; in.Scan(); line++ {
		text := in.Text()
		switch {
		case strings.TrimSpace(text) == "":
			if err := db.addParagraph(fields); err != nil {
				return nil, fmt.Errorf("parse package status before line %d: %w", line, err)
			}
			fields, last = map[string]string{}, ""
		case text[0] == ' ' || text[0] == '\t':
			if last == "" {
				return nil, fmt.Errorf("parse package status line %d: continuation of nothing", line)
			}
			fields[last] += "\n" + text
		default:
			key, value, ok := strings.Cut(text, ":")
			if _, dup := fields[key]; !ok || dup || key == "" {
				return nil, fmt.Errorf("parse package status line %d: not a new field", line)
			}
			fields[key], last = strings.TrimSpace(value), key
		}
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("read package status: %w", err)
	}
	if err := db.addParagraph(fields); err != nil {
		return nil, fmt.Errorf("parse package status at its end: %w", err)
	}
	return db, db.index()
}

func (db *dpkgDB) addParagraph(fields map[string]string) error {
	if len(fields) == 0 {
		return nil
	}
	name := fields["Package"]
	if name == "" || strings.ContainsAny(name, "/\x00\n") {
		return fmt.Errorf("package name %q", name)
	}
	status := strings.Fields(fields["Status"])
	if len(status) != 3 {
		return fmt.Errorf("package %s: status %q", name, fields["Status"])
	}
	switch status[2] {
	case "installed", "triggers-awaited", "triggers-pending":
	default:
		return nil
	}
	p := &dpkgPackage{
		name: name, arch: fields["Architecture"],
		essential: fields["Essential"] == "yes", priority: fields["Priority"],
	}
	if p.arch == "" || strings.ContainsAny(p.arch, "/\x00\n") {
		return fmt.Errorf("package %s: architecture %q", name, p.arch)
	}
	for _, key := range []string{"Pre-Depends", "Depends"} {
		dep, err := dependency.Parse(fields[key])
		if err != nil {
			return fmt.Errorf("package %s: %s: %w", name, key, err)
		}
		p.depends = append(p.depends, dep.Relations...)
	}
	provides, err := dependency.Parse(fields["Provides"])
	if err != nil {
		return fmt.Errorf("package %s: Provides: %w", name, err)
	}
	for _, poss := range provides.GetAllPossibilities() {
		p.provides = append(p.provides, poss.Name)
	}
	db.packages = append(db.packages, p)
	return nil
}

func (db *dpkgDB) index() error {
	slices.SortFunc(db.packages, func(a, b *dpkgPackage) int {
		return strings.Compare(a.id(), b.id())
	})
	for _, p := range db.packages {
		db.byName[p.name] = append(db.byName[p.name], p)
		for _, v := range p.provides {
			db.virtual[v] = append(db.virtual[v], p)
		}
	}
	dpkg := db.byName["dpkg"]
	if len(dpkg) != 1 {
		return errors.New("parse package status: package dpkg is not installed once")
	}
	db.native = dpkg[0].arch
	return nil
}

func (p *dpkgPackage) id() string { return p.name + ":" + p.arch }

// lookup finds the package that name means to a package of architecture
// arch: the real one before one that provides it, the same architecture
// before another. nil when none is installed.
func (db *dpkgDB) lookup(name, arch string) *dpkgPackage {
	if arch == "all" {
		arch = db.native
	}
	for _, candidates := range [][]*dpkgPackage{db.byName[name], db.virtual[name]} {
		for _, want := range []string{arch, "all", db.native} {
			for _, p := range candidates {
				if p.arch == want {
					return p
				}
			}
		}
		if len(candidates) > 0 {
			return candidates[0]
		}
	}
	return nil
}

// closure returns the packages of the image, in order of names: the seeds,
// the essential and required ones, and everything they depend on, but for
// what skip names, which is neither copied nor followed. Of alternatives the
// first installed one counts, as for dpkg.
func (db *dpkgDB) closure(seeds []string, skip map[string]string) []*dpkgPackage {
	var todo []*dpkgPackage
	in := map[*dpkgPackage]bool{}
	add := func(p *dpkgPackage) {
		if p == nil || in[p] || skip[p.name] != "" {
			return
		}
		in[p] = true
		todo = append(todo, p)
	}
	for _, p := range db.packages {
		if p.arch != db.native && p.arch != "all" {
			continue // a foreign architecture comes in by dependency only
		}
		if p.essential || p.priority == "required" {
			add(p)
		}
	}
	for _, name := range seeds {
		add(db.lookup(name, db.native))
	}
	for len(todo) > 0 {
		p := todo[0]
		todo = todo[1:]
		for _, rel := range p.depends {
			add(db.firstInstalled(rel, p.arch))
		}
	}
	out := make([]*dpkgPackage, 0, len(in))
	for _, p := range db.packages {
		if in[p] {
			out = append(out, p)
		}
	}
	return out
}

func (db *dpkgDB) firstInstalled(rel dependency.Relation, arch string) *dpkgPackage {
	for _, poss := range rel.Possibilities {
		if p := db.lookup(poss.Name, arch); p != nil {
			return p
		}
	}
	return nil // a broken database; the file is simply not there to copy
}
