package main

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// mostLargest is how many packages the quickstart's report names.
const mostLargest = 10

// packageReport is what the quickstart's job finds out, and what is found out
// again here, from the same bytes and by other code.
type packageReport struct {
	Installed    int            `json:"installed"`
	Other        int            `json:"other"` // known to dpkg and not installed
	InstalledKiB int64          `json:"installed_kib"`
	Sections     map[string]int `json:"sections"`
	Priorities   map[string]int `json:"priorities"`
	Largest      []sized        `json:"largest"`
}

type sized struct {
	Name string `json:"name"`
	KiB  int64  `json:"kib"`
}

func (r packageReport) equal(o packageReport) bool {
	return r.Installed == o.Installed && r.Other == o.Other && r.InstalledKiB == o.InstalledKiB &&
		maps.Equal(r.Sections, o.Sections) && maps.Equal(r.Priorities, o.Priorities) && slices.Equal(r.Largest, o.Largest)
}

// countPackages reads dpkg's status database.
func countPackages(status string) packageReport {
	r := packageReport{Sections: map[string]int{}, Priorities: map[string]int{}}
	for stanza := range stanzas(status) {
		name := stanza["Package"]
		if name == "" {
			continue
		}
		if words := strings.Fields(stanza["Status"]); len(words) != 3 || words[2] != "installed" {
			r.Other++
			continue
		}
		// No number is 0, as for awk.
		kib, _ := strconv.ParseInt(stanza["Installed-Size"], 10, 64)
		r.Installed++
		r.InstalledKiB += kib
		r.Sections[cmp.Or(stanza["Section"], "unknown")]++
		r.Priorities[cmp.Or(stanza["Priority"], "unknown")]++
		r.Largest = append(r.Largest, sized{name, kib})
	}
	slices.SortFunc(r.Largest, func(a, b sized) int {
		return cmp.Or(cmp.Compare(b.KiB, a.KiB), strings.Compare(a.Name, b.Name))
	})
	r.Largest = r.Largest[:min(len(r.Largest), mostLargest)]
	return r
}

// stanzas yields the paragraphs of a control file as fields; lines that
// continue a field are left out.
func stanzas(text string) func(yield func(map[string]string) bool) {
	return func(yield func(map[string]string) bool) {
		fields := map[string]string{}
		for line := range strings.Lines(text) {
			line = strings.TrimRight(line, " \t\r\n")
			switch {
			case line == "":
				if !yield(fields) {
					return
				}
				fields = map[string]string{}
			case line[0] == ' ' || line[0] == '\t':
			default:
				if name, value, ok := strings.Cut(line, ":"); ok {
					fields[name] = strings.TrimLeft(value, " \t")
				}
			}
		}
		yield(fields)
	}
}
