package strictyaml

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// checkText refuses what must not reach the parser. It reports the first
// occurrence of each kind: nothing behind it can be trusted to be text.
func checkText(doc []byte) []Problem {
	if len(doc) > MaxBytes {
		return []Problem{{
			Cause:  fmt.Sprintf("the document has %d bytes; at most %d are read", len(doc), MaxBytes),
			Remedy: "shorten it",
		}}
	}
	var bad []Problem
	told := map[string]bool{}
	line, column := 1, 1
	for i := 0; i < len(doc); {
		r, size := utf8.DecodeRune(doc[i:])
		cause, remedy := textProblem(r, size, doc[i:])
		if cause != "" && !told[cause] {
			told[cause] = true
			bad = append(bad, Problem{Line: line, Column: column, Cause: cause, Remedy: remedy})
		}
		i += size
		column++
		if r == '\n' {
			line, column = line+1, 1
		}
	}
	return bad
}

// textProblem judges one character. The line breaks that only some programs
// know are refused so that a line number means the same to everyone.
func textProblem(r rune, size int, rest []byte) (cause, remedy string) {
	switch {
	case r == utf8.RuneError && size == 1:
		return "not valid UTF-8", "save the file as UTF-8 text"
	case r == 0:
		return "a NUL character", "remove it"
	case r == '\uFEFF':
		return "a byte order mark", "save the file as UTF-8 without a byte order mark"
	case r == '\r' && !bytes.HasPrefix(rest, []byte("\r\n")),
		r == '\u0085', r == '\u2028', r == '\u2029':
		return fmt.Sprintf("the line break %U, which not every program takes for one", r),
			"end lines with a line feed"
	}
	return "", ""
}

// parse returns the top node of the one document in doc.
func parse(doc []byte) (*yaml.Node, *Problem) {
	docs, err := parseAll(bytes.NewReader(doc))
	switch {
	case err != nil:
		return nil, &Problem{
			Line:   lineOfError(doc),
			Cause:  "not readable as YAML: " + plainText(err),
			Remedy: "correct this line or the one before it",
		}
	case len(docs) == 0 || isEmpty(docs[0]):
		return nil, &Problem{Cause: "the document is empty", Remedy: "write at least one field"}
	case len(docs) > 1:
		return nil, &Problem{
			Line: docs[1].Line, Column: docs[1].Column,
			Cause:  "a second document starts here; there must be exactly one",
			Remedy: "remove it",
		}
	}
	return docs[0].Content[0], nil
}

// isEmpty reports a document that holds nothing but, at most, its markers.
func isEmpty(doc *yaml.Node) bool {
	return len(doc.Content) == 0 || doc.Content[0].Value == "" && doc.Content[0].Tag == "!!null"
}

// parseAll reads at most two documents. The parser promises no panic; should
// it break that promise on hostile input, the document is refused.
func parseAll(r io.Reader) (docs []*yaml.Node, err error) {
	defer func() {
		if p := recover(); p != nil {
			docs, err = nil, fmt.Errorf("parser panic: %v", p)
		}
	}()
	dec := yaml.NewDecoder(r)
	for len(docs) < 2 {
		var n yaml.Node
		err := dec.Decode(&n)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			return nil, err
		}
		docs = append(docs, &n)
	}
	return docs, nil
}

// lineOfError finds the line at which doc stops being YAML. The parser's own
// numbers name the start of the enclosing block as often as the mistake, so
// the line is measured: feed lines until the parser gives up, then go back to
// the last line up to which the document still reads.
func lineOfError(doc []byte) int {
	lines := bytes.SplitAfter(doc, []byte("\n"))
	feed := &lineFeed{lines: lines}
	if _, err := parseAll(feed); err == nil {
		return 0
	}
	reads := func(n int) bool {
		_, err := parseAll(bytes.NewReader(bytes.Join(lines[:n], nil)))
		return err == nil
	}
	bad, step := feed.given, 1
	good := max(bad-step, 0)
	for good > 0 && !reads(good) {
		bad, step = good, step*2
		good = max(bad-step, 0)
	}
	for good+1 < bad {
		if mid := (good + bad) / 2; reads(mid) {
			good = mid
		} else {
			bad = mid
		}
	}
	return bad
}

// lineFeed hands out one line a Read and counts them.
type lineFeed struct {
	lines [][]byte
	given int
	rest  []byte
}

func (f *lineFeed) Read(p []byte) (int, error) {
	for len(f.rest) == 0 {
		if f.given == len(f.lines) {
			return 0, io.EOF
		}
		f.rest = f.lines[f.given]
		f.given++
	}
	n := copy(p, f.rest)
	f.rest = f.rest[n:]
	return n, nil
}

var prefixPattern = regexp.MustCompile(`^yaml: (line \d+: )?`)

// plainText is the parser's message without its prefix and line number.
func plainText(err error) string {
	return prefixPattern.ReplaceAllString(err.Error(), "")
}

// runesOf splits doc into lines of characters, the parser's unit of columns.
func runesOf(doc []byte) [][]rune {
	lines := bytes.Split(doc, []byte("\n"))
	out := make([][]rune, len(lines))
	for i, l := range lines {
		out[i] = []rune(string(l))
	}
	return out
}
