package seccomp

// Arch is an AUDIT_ARCH number, as the kernel hands it to a filter.
type Arch uint32

// AMD64 is x86_64, the one architecture whose calls are listed so far.
const AMD64 Arch = 0xc000003e

// X32Bit is set in the numbers of the x32 ABI, which shares its architecture
// with x86_64.
const X32Bit = 1 << 30

// NoCall is what a tracer puts in place of a number to skip the call; it is
// no number of any ABI.
const NoCall = 0xffffffff

// Name returns the name of a call, or "" for a number that was not given out.
func (a Arch) Name(number uint32) string {
	if a != AMD64 || number >= uint32(len(amd64Calls)) {
		return ""
	}
	return amd64Calls[number]
}

// Number returns the number of a call.
func (a Arch) Number(name string) (number uint32, ok bool) {
	if a != AMD64 || name == "" {
		return 0, false
	}
	for n, s := range amd64Calls {
		if s == name {
			return uint32(n), true
		}
	}
	return 0, false
}

// Last is the largest number that has a name.
func (a Arch) Last() uint32 {
	if a != AMD64 {
		return 0
	}
	return uint32(len(amd64Calls) - 1)
}

// Filter is a policy. The zero value ends every process that makes a call.
type Filter struct {
	Arch Arch
	// BadArch is for calls of any other ABI.
	BadArch Action
	// Unknown is for numbers without a name: a program that finds its kernel
	// too old for a call knows what to do, one that is refused does not.
	Unknown Action
	// Default is for calls that have a name and that no rule matches.
	Default Action
	// Rules are ordered by number. No two that can match the same call differ
	// in action, so their order decides nothing.
	Rules []Rule
}

// Rule gives one call an action.
type Rule struct {
	Name   string
	Number uint32
	Action Action
	// When lists alternatives, of which one must hold. None: always.
	When []Match
}

// Match holds when all of its conditions do.
type Match struct {
	Conds []Cond
	Note  string // what the values mean, for readers
}

// Op is how a condition compares. Only equality is here: the kernel takes
// many arguments as 32-bit integers while filters see 64 bits, so that "not
// equal" or "greater" can be made true by bits that the kernel ignores.
type Op uint8

// The zero Op never holds.
const (
	Equal       Op = iota + 1 // the argument is Value, in all 64 bits
	MaskedEqual               // the argument's bits of Mask are Value
)

// Cond is a condition on one argument.
type Cond struct {
	Arg   uint8 // 0 to 5
	Op    Op
	Mask  uint64 // with MaskedEqual
	Value uint64
}

func (c Cond) holds(args [6]uint64) bool {
	if int(c.Arg) >= len(args) {
		return false
	}
	switch c.Op {
	case Equal:
		return args[c.Arg] == c.Value
	case MaskedEqual:
		return args[c.Arg]&c.Mask == c.Value
	default:
		return false
	}
}

func (m Match) holds(args [6]uint64) bool {
	for _, c := range m.Conds {
		if !c.holds(args) {
			return false
		}
	}
	return true
}

func (r Rule) matches(args [6]uint64) bool {
	for _, m := range r.When {
		if m.holds(args) {
			return true
		}
	}
	return len(r.When) == 0
}

// Decide is what the filter says about one call: the reference that compiled
// filters are compared with.
func (f Filter) Decide(arch, number uint32, args [6]uint64) Action {
	if Arch(arch) != f.Arch || number&X32Bit != 0 && number != NoCall {
		return f.BadArch
	}
	if f.Arch.Name(number) == "" {
		return f.Unknown
	}
	for _, r := range f.Rules {
		if r.Number == number && r.matches(args) {
			return r.Action
		}
	}
	return f.Default
}
