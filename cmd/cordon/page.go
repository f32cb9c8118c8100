package main

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	labelWidth = 8
	pageWidth  = 80
	// mostListed keeps a page on one screen: longer lists are cut, and say so.
	mostListed = 5
)

// page is labelled lines of text, for one screen. Text may come from a
// tenant: nothing of it can disturb a terminal or begin a line of its own.
type page struct{ strings.Builder }

// line writes a label and its text, broken at spaces where it is long; what
// follows a break is indented as the text is.
func (p *page) line(label, format string, args ...any) {
	text := plain(fmt.Sprintf(format, args...))
	body := strings.TrimLeft(text, " ")
	indent := text[:len(text)-len(body)]
	for _, l := range wrap(body, pageWidth-labelWidth-1-len(indent)) {
		fmt.Fprintf(p, "%-*s %s\n", labelWidth, label, indent+l)
		label = ""
	}
}

// items writes a list below one label.
func (p *page) items(label string, texts []string) {
	for i, t := range texts {
		if i == mostListed && len(texts) > mostListed+1 {
			p.line(label, "and %d lines more [--json]", len(texts)-mostListed)
			return
		}
		p.line(label, "%s", t)
		label = ""
	}
}

// wrap breaks s at spaces into lines of at most width characters; what has no
// spaces stays whole. There is always a line.
func wrap(s string, width int) []string {
	var out []string
	line, used := "", 0
	for i, word := range strings.Split(s, " ") {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
			line, used = word, n
		case used+1+n > width:
			out = append(out, line)
			line, used = word, n
		default:
			line += " " + word
			used += 1 + n
		}
	}
	return append(out, line)
}
