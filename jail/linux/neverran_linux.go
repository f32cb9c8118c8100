package linux

import (
	"context"
	"errors"
	"io"
	"strings"

	"cordon/jail"
	"cordon/supervisor"
)

var _ supervisor.Exec = neverRan{}

// neverRan is a command that could not be started: it has ended, printed
// nothing, and left nothing.
type neverRan struct{ start *jail.StartError }

func (neverRan) Stdin() io.WriteCloser { return discard{} }
func (neverRan) Stdout() io.Reader     { return strings.NewReader("") }
func (neverRan) Stderr() io.Reader     { return nil }

func (neverRan) Signal(int) error { return errors.New("signal: the command never ran") }

func (neverRan) Resize(_, _ uint16) error { return nil }

func (neverRan) Kill() error { return nil }

func (n neverRan) Wait(context.Context) (jail.ExecEnd, error) {
	// What failed before execve is the parked child's word; it runs the
	// project's own code, in the jail.
	return jail.ExecEnd{Witness: "init", Start: n.start}, nil
}

func (neverRan) Close() error { return nil }

// discard takes what nobody will read.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) Close() error                { return nil }
