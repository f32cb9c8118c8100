package seccomp

import (
	"cmp"
	"slices"
	"strings"
)

// group is a set of calls that share a fate and a reason.
type group struct {
	why   string
	calls string // names between blanks
}

func (g group) names() []string { return strings.Fields(g.calls) }

// Default is the filter of the workload. Whatever it refuses is answered with
// EPERM; numbers that the table does not know get ENOSYS, so that programs
// fall back as on an older kernel; another ABI ends the process.
func Default() Filter { return build(nil, prctlOptions()) }

// Init is the filter of PID 1, under which every other process of a jail
// stands too: Default, and what a child needs to give its privileges away
// before it takes Default on top.
func Init() Filter {
	return build([]string{"capset"}, append(prctlOptions(),
		named{0x18, "PR_CAPBSET_DROP"},
		named{0x2f, "PR_CAP_AMBIENT"},
	))
}

func build(more []string, prctl []named) Filter {
	f := Filter{Arch: AMD64, BadArch: KillProcess, Unknown: Errno(ENOSYS), Default: Errno(EPERM)}
	for _, g := range allowed() {
		more = append(more, g.names()...)
	}
	for _, name := range more {
		f.add(name, Allow)
	}
	// clone3 takes its flags from memory, where no filter can look. The
	// answer of a kernel without it makes libraries use clone.
	f.add("clone3", Errno(ENOSYS))
	f.addConditional(prctl)
	slices.SortStableFunc(f.Rules, func(a, b Rule) int { return cmp.Compare(a.Number, b.Number) })
	return f
}

// add appends a rule. A name that the table lacks gives a rule that Validate
// reports, so the tests of this package find it.
func (f *Filter) add(name string, a Action, when ...Match) {
	n, _ := f.Arch.Number(name)
	f.Rules = append(f.Rules, Rule{Name: name, Number: n, Action: a, When: when})
}
