package main

import (
	"fmt"
	"io"
	"time"

	"golang.org/x/term"
)

// progressDelay keeps short work quiet; progressEvery bounds the writing.
const (
	progressDelay = 400 * time.Millisecond
	progressEvery = 100 * time.Millisecond
)

// progress is one line on a terminal that says what long work is at. Without
// a terminal it is silent. It belongs to one goroutine; close removes the
// line.
type progress struct {
	w     io.Writer // nil: silent
	fd    int
	now   func() time.Time
	next  time.Time
	shown bool
}

// progressLine returns the line of standard error.
func (a *app) progressLine() *progress {
	p := &progress{now: time.Now}
	if fd, ok := terminalOf(a.stderr); ok && !a.json {
		p.w, p.fd = a.stderr, fd
	}
	p.next = p.now().Add(progressDelay)
	return p
}

// say shows text, if there has been nothing new for a while.
func (p *progress) say(text string) {
	now := p.now()
	if p.w == nil || now.Before(p.next) {
		return
	}
	p.next = now.Add(progressEvery)
	width := int(usualSize.Cols)
	if cols, _, err := term.GetSize(p.fd); err == nil && cols > 0 {
		width = cols
	}
	text = plain(text)
	if r := []rune(text); len(r) >= width {
		text = string(r[:width-1])
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s", text)
	p.shown = true
}

func (p *progress) close() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

// counted is a reader that says how much of it has been read.
type counted struct {
	io.Reader
	p     *progress
	what  string
	total int64 // 0: not known
	done  int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.done += int64(n)
	if c.total > 0 {
		c.p.say(fmt.Sprintf("%s: %s of %s", c.what, formatBytes(c.done), formatBytes(c.total)))
	} else {
		c.p.say(fmt.Sprintf("%s: %s", c.what, formatBytes(c.done)))
	}
	return n, err
}
