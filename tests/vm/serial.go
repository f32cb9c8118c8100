package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
)

// results is what a guest said on its serial line.
type results struct {
	accel string
	up    func() // called when the guest is up

	facts map[string]string // nil before the guest is up
	steps map[string]int    // exit statuses
	ended map[test]string   // PASS, FAIL or SKIP
	order []test            // as they ended
	left  []string
	done  bool

	step string // the one that runs
	tail []string
}

// tailLines is how much is kept to tell why a guest does not come up.
const tailLines = 40

// verdictLine is what `-test.v` writes at a test's end.
var verdictLine = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP): (\S+) \(`)

// read takes lines until the guest's end and copies to out what its steps
// print.
func (r *results) read(in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		r.take(strings.TrimRight(line, "\r\n"), out)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read serial line: %w", err)
		}
	}
}

func (r *results) take(line string, out io.Writer) {
	r.tail = append(r.tail, line)
	if len(r.tail) > tailLines {
		r.tail = r.tail[1:]
	}
	if words, ok := strings.CutPrefix(line, "@@vm "); ok {
		r.marker(words)
		return
	}
	if r.step == "" || line == "" {
		return
	}
	fmt.Fprintln(out, line)
	pkg, ok := strings.CutPrefix(r.step, "test ")
	if m := verdictLine.FindStringSubmatch(line); ok && m != nil {
		id := test{pkg, m[2]}
		r.ended[id] = m[1]
		r.order = append(r.order, id)
	}
}

func (r *results) marker(words string) {
	verb, rest, _ := strings.Cut(words, " ")
	switch verb {
	case "up":
		r.facts, r.steps, r.ended = map[string]string{}, map[string]int{}, map[test]string{}
		if r.up != nil {
			r.up()
		}
		return
	case "done":
		r.done = true
		return
	}
	if r.facts == nil {
		return
	}
	switch verb {
	case "fact":
		name, value, _ := strings.Cut(rest, " ")
		r.facts[name] = value
	case "begin":
		r.step = rest
	case "end":
		at := strings.LastIndexByte(rest, ' ')
		if rc, err := strconv.Atoi(rest[at+1:]); err == nil && at > 0 && rest[:at] == r.step {
			r.steps[r.step] = rc
		}
		r.step = ""
	case "left":
		r.left = append(r.left, rest)
	}
}

// last is the end of what the guest said.
func (r *results) last() string { return strings.Join(r.tail, "\n") }

// count counts top-level tests only.
func (r *results) count() (pass, fail, skip int) {
	for id, how := range r.ended {
		switch {
		case strings.Contains(id.name, "/"):
		case how == "PASS":
			pass++
		case how == "SKIP":
			skip++
		default:
			fail++
		}
	}
	return pass, fail, skip
}
