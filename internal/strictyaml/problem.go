package strictyaml

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"cordon/internal/fault"
)

// Problem is one thing that is wrong with a document.
type Problem struct {
	Line   int    // from 1; 0 when it is the document as a whole
	Column int    // from 1; 0 when only the line is known
	Path   string // such as sandbox.filesystem.inputs[1].digest, or empty
	Cause  string
	Remedy string
}

// Error is "line 3 column 5: path: cause [remedy]".
func (p *Problem) Error() string {
	var b strings.Builder
	if where := p.Where(); where != "" {
		b.WriteString(where + ": ")
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	b.WriteString(p.Cause)
	if p.Remedy != "" {
		b.WriteString(" [" + p.Remedy + "]")
	}
	return b.String()
}

// Where is the place in words, as far as it is known.
func (p *Problem) Where() string {
	return Position{Line: p.Line, Column: p.Column}.String()
}

// Error is every problem of one document, in the document's order.
type Error struct {
	Problems []Problem
}

// Error prints one problem a line.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i := range e.Problems {
		lines[i] = e.Problems[i].Error()
	}
	return strings.Join(lines, "\n")
}

// Faults turns the problems in err's tree into joined faults of one code; the
// place goes to the front of each cause. Any other error is returned as it is.
func Faults(err error, code fault.Code) error {
	var list *Error
	if !errors.As(err, &list) {
		return err
	}
	out := make([]error, len(list.Problems))
	for i := range list.Problems {
		p := &list.Problems[i]
		cause := p.Cause
		if where := p.Where(); where != "" {
			cause = where + ": " + cause
		}
		out[i] = fault.New(code, p.Path, cause, p.Remedy)
	}
	return errors.Join(out...)
}

func byPosition(a, b Problem) int {
	return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
}

// quote shows text of the document in a message, bounded and printable.
func quote(s string) string {
	const most = 48
	if r := []rune(s); len(r) > most {
		return fmt.Sprintf("%q...", string(r[:most]))
	}
	return fmt.Sprintf("%q", s)
}
