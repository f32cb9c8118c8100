package cleanup

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRunUndoesInReverseAndGoesOn(t *testing.T) {
	var got []int
	bad := errors.New("bad")
	var s Stack
	s.Push(func() error { got = append(got, 1); return nil })
	s.Push(func() error { got = append(got, 2); return bad })
	s.Push(func() error { got = append(got, 3); return nil })
	if err := s.Run(); !errors.Is(err, bad) {
		t.Errorf("Run() = %v, want it to hold %v", err, bad)
	}
	if diff := cmp.Diff([]int{3, 2, 1}, got); diff != "" {
		t.Error(diff)
	}
	if err := s.Run(); err != nil || len(got) != 3 {
		t.Errorf("second Run() = %v with %v, want nothing to happen", err, got)
	}
}

func TestDisarm(t *testing.T) {
	var s Stack
	s.Push(func() error { return errors.New("must not run") })
	s.Disarm()
	if err := s.Run(); err != nil {
		t.Error(err)
	}
}
