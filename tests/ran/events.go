package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// event is one line of `go test -json` (see `go doc test2json`).
type event struct {
	Action     string
	Package    string
	ImportPath string // of a build's output
	Test       string
	Output     string
}

// test is a test or subtest of a package.
type test struct{ pkg, name string }

func (t test) String() string { return t.pkg + " " + t.name }

// results is how each test ended: pass, fail or skip. The zero value of an
// entry, "", is a test that never ended.
type results struct {
	ended map[test]string
	order []test            // as they ended
	pkgs  map[string]string // how each package ended
}

// read takes events until the end of in and prints to out what a reader of
// `go test` expects: package lines, and the output of what failed or was
// skipped.
func read(in *bufio.Reader, out io.Writer) (*results, error) {
	res := &results{ended: map[test]string{}, pkgs: map[string]string{}}
	held := map[test]*strings.Builder{}
	for {
		line, err := in.ReadBytes('\n')
		if len(line) != 0 {
			var ev event
			if json.Unmarshal(line, &ev) != nil {
				// Not an event: go's own words, which nobody should miss.
				fmt.Fprintf(out, "%s", line)
			} else {
				res.take(ev, held, out)
			}
		}
		if errors.Is(err, io.EOF) {
			res.flush(held, out)
			return res, nil
		}
		if err != nil {
			return res, fmt.Errorf("read events: %w", err)
		}
	}
}

func (r *results) take(ev event, held map[test]*strings.Builder, out io.Writer) {
	id := test{ev.Package, ev.Test}
	switch ev.Action {
	case "output", "build-output":
		if ev.Test == "" {
			if ev.Output != "PASS\n" { // the package's "ok" line says it
				fmt.Fprint(out, ev.Output)
			}
			return
		}
		if held[id] == nil {
			held[id] = &strings.Builder{}
		}
		held[id].WriteString(ev.Output)
	case "pass", "fail", "skip":
		if ev.Test == "" {
			r.pkgs[ev.Package] = ev.Action
			return
		}
		r.ended[id] = ev.Action
		r.order = append(r.order, id)
		if b := held[id]; b != nil && ev.Action != "pass" {
			fmt.Fprint(out, b.String())
		}
		delete(held, id)
	}
}

// flush prints what tests said that never ended: the test a crash is about.
func (r *results) flush(held map[test]*strings.Builder, out io.Writer) {
	for id, b := range held {
		fmt.Fprintf(out, "%s did not end:\n%s", id, b.String())
	}
}

// count counts top-level tests only, as `go test` does.
func (r *results) count() (pass, fail, skip int) {
	for id, how := range r.ended {
		switch {
		case strings.Contains(id.name, "/"):
		case how == "pass":
			pass++
		case how == "skip":
			skip++
		default:
			fail++
		}
	}
	return pass, fail, skip
}
