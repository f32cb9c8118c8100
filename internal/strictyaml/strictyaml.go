// Package strictyaml reads one small YAML document into a Go struct and
// refuses everything a person could misread: unknown fields, duplicate keys,
// anchors, aliases, merge keys, tags, values of another kind than the field's,
// empty values, more than one document. It reports every such problem with
// line, column, path, cause and remedy, not only the first.
//
// It needs no privilege and touches no file, clock or environment. A document
// may come from anyone: size, depth and text are bounded before anything is
// built from it. Everything here is safe for concurrent use; nothing is kept
// between calls.
//
// What a document means (ranges, names, which fields belong together) is not
// decided here but by the package that owns the struct.
package strictyaml

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// The bounds of every document.
const (
	MaxBytes = 64 << 10
	MaxDepth = 16 // mappings and lists inside each other, the top one included
)

// Decoder says how documents of one kind are read.
type Decoder struct {
	// Root is the one key at the top of the document, under which the struct's
	// fields stand. Empty: the fields stand at the top themselves.
	Root string
	// Forms holds the reading of integer fields that are not written as
	// integers, by full path with [] for each list item, such as
	// "sandbox.resources.cpu" or "tenants[].max.cpu". Optional.
	Forms map[string]Form
}

// Form reads the text of a scalar, quoted or not, as an integer. Its error is
// a *Problem with Cause and Remedy set.
type Form func(text string) (int64, error)

// Position is a place in the document, both counted from 1.
type Position struct {
	Line   int
	Column int // in characters
}

// String is "line 3 column 5", as far as it is known.
func (p Position) String() string {
	switch {
	case p.Line == 0:
		return ""
	case p.Column == 0:
		return fmt.Sprintf("line %d", p.Line)
	}
	return fmt.Sprintf("line %d column %d", p.Line, p.Column)
}

// Positions tells where each path that the document gives has its value. A
// path that is not in it was absent.
type Positions map[string]Position

// Place puts the position of path in front of cause: that of its value or,
// when the document does not give it, of the innermost group around it.
func (p Positions) Place(path, cause string) string {
	for at := path; at != ""; at = at[:max(strings.LastIndexAny(at, ".["), 0)] {
		if pos, ok := p[at]; ok {
			return pos.String() + ": " + cause
		}
	}
	return cause
}

// Decode reads doc into the struct that out points to; see Decoder.Decode.
func Decode(doc []byte, root string, out any) error {
	_, err := Decoder{Root: root}.Decode(doc, out)
	return err
}

// Decode reads doc into the struct that out points to. Fields that the
// document does not name keep their value; an empty list becomes nil. When the
// document is at fault the error is an *Error, out is untouched, and the
// positions are nil.
//
// The struct is made of structs, slices, strings, bools, integers,
// time.Duration and pointers to scalars; every exported field has a yaml tag.
func (d Decoder) Decode(doc []byte, out any) (Positions, error) {
	dst := reflect.ValueOf(out)
	if err := checkTarget(dst); err != nil {
		return nil, err
	}
	if bad := checkText(doc); len(bad) != 0 {
		return nil, &Error{Problems: bad}
	}
	top, bad := parse(doc)
	if bad != nil {
		return nil, &Error{Problems: []Problem{*bad}}
	}

	r := &reader{forms: d.Forms, seen: Positions{}, lines: runesOf(doc)}
	r.shape(top, "", 1)
	fresh := reflect.New(dst.Type().Elem()).Elem()
	fresh.Set(dst.Elem())
	r.top(top, d.Root, fresh)
	if len(r.problems) != 0 {
		slices.SortStableFunc(r.problems, byPosition)
		return nil, &Error{Problems: r.problems}
	}
	dst.Elem().Set(fresh)
	return r.seen, nil
}

// reader is the state of one Decode.
type reader struct {
	forms    map[string]Form
	seen     Positions
	lines    [][]rune // the source, for what the parser does not tell
	problems []Problem
}

// report adds a problem at node n.
func (r *reader) report(n *yaml.Node, path, cause, remedy string) {
	line, column := n.Line, n.Column
	if last := len(r.lines); line > last { // an empty value at the very end
		line, column = last, len(r.lines[last-1])+1
	}
	r.problems = append(r.problems, Problem{
		Line: line, Column: column, Path: path, Cause: cause, Remedy: remedy,
	})
}
