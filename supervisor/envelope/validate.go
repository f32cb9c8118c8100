package envelope

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"cordon/internal/fault"
)

// Validate checks a completed envelope against everything that holds on every
// host. All failures are reported: joined *fault.Fault, code invalid_envelope,
// or unsupported where it is a feature that this version lacks.
func Validate(e Envelope) error {
	found := findings(e)
	errs := make([]error, len(found))
	for i, f := range found {
		errs[i] = f
	}
	return errors.Join(errs...)
}

// findings runs every check.
func findings(e Envelope) []*fault.Fault {
	r := &report{}
	for _, check := range []func(*Envelope, *report){
		checkImage,
		checkRuntime,
		checkNames,
		checkTrace,
		checkUID,
		checkPrincipal,
		checkAuthority,
		checkRoot,
		checkInputs,
		checkWorkspace,
		checkDevices,
		checkEgress,
		checkResources,
		checkLifetime,
		checkArtifacts,
		checkCleanup,
		checkTier,
		checkRepeatability,
		checkLocks,
		checkBrowser,
	} {
		check(&e, r)
	}
	return r.found
}

// report gathers what the checks find.
type report struct {
	found []*fault.Fault
}

func (r *report) invalid(field, cause, remedy string) {
	r.found = append(r.found, fault.New(fault.InvalidEnvelope, field, cause, remedy))
}

// unsupported is for what the envelope may say one day.
func (r *report) unsupported(field, cause, remedy string) {
	r.found = append(r.found, fault.New(fault.Unsupported, field, cause, remedy))
}

// fixed wants the one value that an ordinary field can have.
func (r *report) fixed(field, got string, want ...string) {
	if slices.Contains(want, got) {
		return
	}
	r.invalid(field, show(got)+" is not known", "use "+strings.Join(want, " or "))
}

// within wants a number between two bounds, both included.
func (r *report) within(field string, got, least, most int64) {
	if got < least || got > most {
		r.invalid(field, fmt.Sprintf("%d is out of range", got), fmt.Sprintf("use %d to %d", least, most))
	}
}

func (r *report) duration(field string, got, least, most time.Duration) {
	if got < least || got > most {
		r.invalid(field, formatDuration(got)+" is out of range",
			"use "+formatDuration(least)+" to "+formatDuration(most))
	}
}

// text wants printable text of at most most bytes; empty is allowed.
func (r *report) text(field, got string, most int) {
	switch {
	case len(got) > most:
		r.invalid(field, fmt.Sprintf("has %d bytes", len(got)), fmt.Sprintf("use at most %d", most))
	case !printable(got):
		r.invalid(field, show(got)+" has characters that cannot be printed", "use printable text")
	}
}

func (r *report) digest(field, got string) {
	switch {
	case got == "":
		r.invalid(field, "is missing", "write sha256: and 64 hex digits")
	case !digestPattern.MatchString(got):
		r.invalid(field, show(got)+" is not a digest", "write sha256: and 64 lower-case hex digits")
	}
}

// count bounds the length of a list.
func (r *report) count(field string, got, most int) {
	if got > most {
		r.invalid(field, fmt.Sprintf("has %d entries", got), fmt.Sprintf("use at most %d", most))
	}
}

// printable reports valid UTF-8 of printable characters and plain spaces.
func printable(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, c := range s {
		if !unicode.IsPrint(c) {
			return false
		}
	}
	return true
}

// show quotes a value for a message, bounded.
func show(s string) string {
	const most = 48
	if r := []rune(s); len(r) > most {
		return fmt.Sprintf("%q...", string(r[:most]))
	}
	return fmt.Sprintf("%q", s)
}
