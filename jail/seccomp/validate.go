package seccomp

import (
	"errors"
	"fmt"
)

// Validate reports everything that is wrong with a filter. Compilers refuse
// a filter that does not pass.
func (f Filter) Validate() error {
	errs := []error{f.checkActions()}
	for i, r := range f.Rules {
		if err := f.checkRule(r); err != nil {
			errs = append(errs, fmt.Errorf("rule %s: %w", r.Name, err))
		}
		if i > 0 && r.Number < f.Rules[i-1].Number {
			errs = append(errs, fmt.Errorf("rule %s: %w", r.Name, errOrder))
		}
	}
	return errors.Join(append(errs, f.checkOverlaps())...)
}

// The ways a filter can be wrong.
var (
	errArch      = errors.New("unknown architecture")
	errPermits   = errors.New("answers for what nobody decided must refuse")
	errAction    = errors.New("unknown action")
	errIsDefault = errors.New("action is the default")
	errName      = errors.New("name and number do not belong together")
	errOrder     = errors.New("not ordered by number")
	errNoConds   = errors.New("alternative without a condition")
	errArgument  = errors.New("no such argument")
	errTwice     = errors.New("two conditions on one argument")
	errOp        = errors.New("unknown comparison")
	errMask      = errors.New("mask and value do not fit the comparison")
	errOverlap   = errors.New("matches a call that another rule decides otherwise")
	errRepeated  = errors.New("says what another rule says already")
)

func (f Filter) checkActions() error {
	var errs []error
	if f.Arch.Last() == 0 {
		errs = append(errs, fmt.Errorf("arch %#x: %w", uint32(f.Arch), errArch))
	}
	for _, a := range []Action{f.BadArch, f.Unknown, f.Default} {
		if a == Allow || !a.known() {
			errs = append(errs, fmt.Errorf("action %v: %w", a, errPermits))
		}
	}
	return errors.Join(errs...)
}

func (f Filter) checkRule(r Rule) error {
	if r.Name == "" || f.Arch.Name(r.Number) != r.Name {
		return fmt.Errorf("number %d: %w", r.Number, errName)
	}
	if !r.Action.known() {
		return fmt.Errorf("action %v: %w", r.Action, errAction)
	}
	// libseccomp takes no such rule, and libcontainer skips it in silence.
	if r.Action == f.Default {
		return errIsDefault
	}
	for _, m := range r.When {
		if err := m.check(); err != nil {
			return fmt.Errorf("alternative %v: %w", m, err)
		}
	}
	return nil
}

func (m Match) check() error {
	if len(m.Conds) == 0 {
		return errNoConds
	}
	seen := [6]bool{}
	for _, c := range m.Conds {
		if int(c.Arg) >= len(seen) {
			return errArgument
		}
		// libcontainer would turn the "and" of such a pair into an "or".
		if seen[c.Arg] {
			return errTwice
		}
		seen[c.Arg] = true
		switch {
		case c.Op != Equal && c.Op != MaskedEqual:
			return errOp
		case c.Op == Equal && c.Mask != 0, c.Op == MaskedEqual && (c.Mask == 0 || c.Value&^c.Mask != 0):
			return errMask
		}
	}
	return nil
}

// checkOverlaps finds alternatives of one call that can hold together. With
// different actions the meaning would hang on an order that compilers do not
// keep; with the same one the second says nothing if it is contained.
func (f Filter) checkOverlaps() error {
	var errs []error
	for i, a := range f.Rules {
		for _, b := range f.Rules[i+1:] {
			if a.Number != b.Number {
				break
			}
			if a.Action == b.Action {
				errs = append(errs, fmt.Errorf("rule %s: %w", a.Name, errRepeated))
			} else if overlap(a, b) {
				errs = append(errs, fmt.Errorf("rule %s: %w", a.Name, errOverlap))
			}
		}
		for j, m := range a.When {
			for _, n := range a.When[j+1:] {
				if !exclusive(m, n) {
					errs = append(errs, fmt.Errorf("rule %s: %v and %v: %w", a.Name, m, n, errRepeated))
				}
			}
		}
	}
	return errors.Join(errs...)
}

func overlap(a, b Rule) bool {
	if len(a.When) == 0 || len(b.When) == 0 {
		return true
	}
	for _, m := range a.When {
		for _, n := range b.When {
			if !exclusive(m, n) {
				return true
			}
		}
	}
	return false
}

// exclusive reports whether no arguments can meet both: some argument would
// have to have a bit both set and clear.
func exclusive(m, n Match) bool {
	for _, c := range m.Conds {
		for _, d := range n.Conds {
			if c.Arg == d.Arg && (c.Value^d.Value)&c.bits()&d.bits() != 0 {
				return true
			}
		}
	}
	return false
}

// bits are those the condition looks at.
func (c Cond) bits() uint64 {
	if c.Op == Equal {
		return ^uint64(0)
	}
	return c.Mask
}
