package seccomp

import (
	"fmt"
	"strings"
)

// String lists the whole policy by number, one call a line, alternatives on
// lines of their own, the reason beside what no rule mentions: the text that
// reviews and digests are made of.
func (f Filter) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "arch %#x\n", uint32(f.Arch))
	fmt.Fprintf(&b, "other arch or abi: %v\n", f.BadArch)
	fmt.Fprintf(&b, "number not listed: %v\n", f.Unknown)
	fmt.Fprintf(&b, "arguments not listed: %v\n\n", f.Default)
	why := make(map[string]string)
	for _, g := range refused() {
		for _, name := range g.names() {
			why[name] = g.why
		}
	}
	rules := make(map[uint32][]Rule)
	for _, r := range f.Rules {
		rules[r.Number] = append(rules[r.Number], r)
	}
	for n := uint32(0); n <= f.Arch.Last(); n++ {
		name := f.Arch.Name(n)
		if name == "" {
			continue
		}
		if len(rules[n]) == 0 {
			fmt.Fprintf(&b, "%3d %-24s %v  (%s)\n", n, name, f.Default, why[name])
		}
		for _, r := range rules[n] {
			r.write(&b)
		}
	}
	return b.String()
}

func (r Rule) write(b *strings.Builder) {
	if len(r.When) == 0 {
		fmt.Fprintf(b, "%3d %-24s %v\n", r.Number, r.Name, r.Action)
		return
	}
	fmt.Fprintf(b, "%3d %-24s %v when\n", r.Number, r.Name, r.Action)
	for _, m := range r.When {
		fmt.Fprintf(b, "        %v\n", m)
	}
}

func (m Match) String() string {
	conds := make([]string, len(m.Conds))
	for i, c := range m.Conds {
		conds[i] = c.String()
	}
	s := strings.Join(conds, " and ")
	if m.Note != "" {
		s += "  (" + m.Note + ")"
	}
	return s
}

func (c Cond) String() string {
	switch c.Op {
	case Equal:
		return fmt.Sprintf("a%d == %#x", c.Arg, c.Value)
	case MaskedEqual:
		return fmt.Sprintf("a%d&%#x == %#x", c.Arg, c.Mask, c.Value)
	default:
		return fmt.Sprintf("a%d never", c.Arg)
	}
}
