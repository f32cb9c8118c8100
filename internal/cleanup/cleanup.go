// Package cleanup is the undo stack of a construction that may stop half-way.
//
// It needs no privilege. A Stack belongs to one goroutine. It is not for
// teardown of a finished thing, which lists what it owns in its own Close.
package cleanup

import (
	"errors"
	"slices"
)

// Stack holds undo steps; the last one pushed runs first. The zero value is
// ready to use.
type Stack struct {
	steps []func() error
}

// Push adds an undo step.
func (s *Stack) Push(undo func() error) { s.steps = append(s.steps, undo) }

// Disarm forgets every step: the construction succeeded and owns its parts.
func (s *Stack) Disarm() { s.steps = nil }

// Run undoes everything, goes on after errors and joins them. It is
// idempotent.
func (s *Stack) Run() error {
	var errs []error
	for _, undo := range slices.Backward(s.steps) {
		errs = append(errs, undo())
	}
	s.steps = nil
	return errors.Join(errs...)
}
