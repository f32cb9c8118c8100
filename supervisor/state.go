package supervisor

import (
	"fmt"
	"slices"
)

// State is where a lease is in its life.
//
//	requested -> preparing -> active -> draining -> closing -> closed
//	    |            |                     ^           |         ^
//	    +------------+---------------------+           v         |
//	                                              quarantined ---+
type State int

// The states. The zero value is none of them.
const (
	// Requested: journalled, nothing done yet.
	Requested State = iota + 1
	// Preparing: planned; the sandbox is being made.
	Preparing
	// Active: read back and handed to its owner.
	Active
	// Draining: the end has begun; commands are being ended.
	Draining
	// Closing: no command is left; everything is being removed.
	Closing
	// Closed: nothing is left, and the record says so.
	Closed
	// Quarantined: something is left; its id range stays taken and cleaning
	// is tried again.
	Quarantined
)

var stateNames = map[State]string{
	Requested: "requested", Preparing: "preparing", Active: "active",
	Draining: "draining", Closing: "closing", Closed: "closed",
	Quarantined: "quarantined",
}

// String is the state's name.
func (s State) String() string {
	if name, ok := stateNames[s]; ok {
		return name
	}
	return fmt.Sprintf("state %d", int(s))
}

// MarshalText writes the name; an unknown state is an error.
func (s State) MarshalText() ([]byte, error) {
	if name, ok := stateNames[s]; ok {
		return []byte(name), nil
	}
	return nil, fmt.Errorf("encode lease state: %d is none", int(s))
}

// UnmarshalText reads a name.
func (s *State) UnmarshalText(text []byte) error {
	for state, name := range stateNames {
		if name == string(text) {
			*s = state
			return nil
		}
	}
	return fmt.Errorf("decode lease state: %q is none", text)
}

// transitions lists where each state may go.
var transitions = map[State][]State{
	Requested:   {Preparing, Draining},
	Preparing:   {Active, Draining},
	Active:      {Draining},
	Draining:    {Closing},
	Closing:     {Closed, Quarantined},
	Quarantined: {Closed},
	Closed:      {},
}

// TransitionError is a change of state that there is no way to make.
type TransitionError struct{ From, To State }

func (e *TransitionError) Error() string {
	return fmt.Sprintf("change lease state: no way from %s to %s", e.From, e.To)
}

// to returns the state after a change, or a *TransitionError.
func (s State) to(next State) (State, error) {
	if slices.Contains(transitions[s], next) {
		return next, nil
	}
	return s, &TransitionError{From: s, To: next}
}
