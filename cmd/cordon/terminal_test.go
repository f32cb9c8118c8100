package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"cordon/api/client"
)

// openTerminal returns the two ends of a pseudo-terminal of 30 by 100.
func openTerminal(t *testing.T) (keyboard, tty *os.File) {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	keyboard = os.NewFile(uintptr(fd), "/dev/ptmx")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	setSize(t, tty, 30, 100)
	t.Cleanup(func() {
		_ = keyboard.Close()
		_ = tty.Close()
	})
	return keyboard, tty
}

func setSize(t *testing.T, tty *os.File, rows, cols uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(tty.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
		t.Fatal(err)
	}
}

// mode is what raw mode changes.
func mode(t *testing.T, tty *os.File) unix.Termios {
	t.Helper()
	m, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *m
}

func isRaw(m unix.Termios) bool { return m.Lflag&(unix.ISIG|unix.ICANON|unix.ECHO) == 0 }

// TestTerminalIsRestored runs commands that end in each way there is.
func TestTerminalIsRestored(t *testing.T) {
	for _, c := range []struct {
		name   string
		args   []string
		set    func(*world)
		status int
	}{
		{"exit", []string{"exit", "3"}, nil, 3},
		{"a limit", []string{"cause", "oom_killed"}, nil, 137},
		{"the daemon goes away", []string{"vanish"}, nil, 125},
		{"a panic", []string{"both"}, func(w *world) { w.stdout = panicking{} }, 125},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, newDaemon(t))
			_, tty := openTerminal(t)
			w.stdin = tty
			if c.set != nil {
				c.set(w)
			}
			before := mode(t, tty)
			w.want(c.status, "*", "*", append([]string{"run", "-t", "--"}, c.args...)...)
			if after := mode(t, tty); after != before {
				t.Errorf("mode %+v, was %+v", after, before)
			}
		})
	}
}

// TestTerminalPassesKeysSizesAndSignals is one session at a terminal.
func TestTerminalPassesKeysSizesAndSignals(t *testing.T) {
	d := newDaemon(t)
	w := newWorld(t, d)
	keyboard, tty := openTerminal(t)
	w.stdin, w.stdout = tty, tty
	before := mode(t, tty)
	done := make(chan int)
	go func() { done <- w.start("run", "-t", "cat") }()
	eventually(t, "raw mode", func() bool { return isRaw(mode(t, tty)) && d.count("Exec") > 0 })

	// Ctrl-C and Ctrl-Z are keys, not signals.
	if _, err := keyboard.WriteString("a\x03\x1a\r"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if _, err := io.ReadFull(keyboard, got); err != nil || string(got) != "a\x03\x1a\r" {
		t.Errorf("came back: %q, %v", got, err)
	}
	if s := d.start.GetSize(); s.GetRows() != 30 || s.GetCols() != 100 {
		t.Errorf("size at the start: %v", s)
	}
	setSize(t, tty, 40, 132)
	w.signals <- syscall.SIGWINCH
	sizes := func() int { d.mu.Lock(); defer d.mu.Unlock(); return len(d.resizes) }
	eventually(t, "a new size", func() bool { return sizes() == 1 })
	if s := d.resizes[0]; s.GetRows() != 40 || s.GetCols() != 132 {
		t.Errorf("new size: %v", s)
	}

	// A shell that stopped us and goes on has put back its mode.
	if err := unix.IoctlSetTermios(int(tty.Fd()), unix.TCSETS, &before); err != nil {
		t.Fatal(err)
	}
	w.signals <- syscall.SIGCONT
	eventually(t, "raw mode again", func() bool { return isRaw(mode(t, tty)) && sizes() == 2 })

	// The terminal goes away: end of input, which ends the command.
	if err := keyboard.Close(); err != nil {
		t.Fatal(err)
	}
	if status := <-done; status != 0 {
		t.Errorf("status %d: %s", status, w.err.String())
	}
}

func TestWindowSize(t *testing.T) {
	_, tty := openTerminal(t)
	if got := windowSize(strings.NewReader(""), tty); got != (client.Size{Rows: 30, Cols: 100}) {
		t.Errorf("size = %v", got)
	}
	setSize(t, tty, 0, 0) // as a serial line has it
	if got := windowSize(tty); got != usualSize {
		t.Errorf("size = %v", got)
	}
}

func TestNoTerminalNoRawMode(t *testing.T) {
	raw, err := makeRaw(strings.NewReader(""))
	if raw != nil || err != nil {
		t.Errorf("makeRaw = %v, %v", raw, err)
	}
	raw.again()
	raw.restore()
}

// newLine is a progress line at a clock of the test's.
func newLine(a *app, now *time.Time) *progress {
	p := a.progressLine()
	p.now = func() time.Time { return *now }
	p.next = now.Add(progressDelay)
	return p
}

func TestProgress(t *testing.T) {
	now := time.Unix(0, 0)
	show := func(a *app) {
		p := newLine(a, &now)
		p.say("too soon")
		now = now.Add(progressDelay)
		p.say("first " + strings.Repeat("x", 200) + "\x1b")
		p.say("too soon after")
		now = now.Add(progressEvery)
		p.say("second")
		p.close()
	}
	var silent syncBuffer
	show(newApp(config{stderr: &silent}))
	if silent.String() != "" {
		t.Errorf("without a terminal: %q", silent.String())
	}

	keyboard, tty := openTerminal(t)
	show(newApp(config{stderr: tty}))
	want := "\r\x1b[Kfirst " + strings.Repeat("x", 93) + "\r\x1b[Ksecond\r\x1b[K"
	got := make([]byte, len(want))
	if _, err := io.ReadFull(keyboard, got); err != nil || string(got) != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}

	a := newApp(config{stderr: tty})
	a.json = true
	if p := a.progressLine(); p.w != nil {
		t.Error("a line for a program that reads JSON")
	}
}

func TestProgressOfASnapshotOnATerminal(t *testing.T) {
	_, tty := openTerminal(t)
	if !term.IsTerminal(int(tty.Fd())) {
		t.Fatal("not a terminal")
	}
	p := &progress{w: &syncBuffer{}, now: time.Now}
	c := &counted{Reader: strings.NewReader("12345"), p: p, what: "sending x", total: 5}
	if _, err := io.Copy(io.Discard, c); err != nil {
		t.Fatal(err)
	}
	if got := p.w.(*syncBuffer).String(); !strings.Contains(got, "sending x: 5 B of 5 B") {
		t.Errorf("line: %q", got)
	}
}

func TestStoppable(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	r := stoppable{ctx, strings.NewReader("12")}
	if n, err := r.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("read %d, %v", n, err)
	}
	cancel(errBroken)
	if n, err := r.Read(make([]byte, 1)); n != 0 || err != errBroken { //nolint:errorlint // the very one
		t.Errorf("read %d, %v", n, err)
	}
}
