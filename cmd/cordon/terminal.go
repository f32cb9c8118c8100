package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/term"

	"cordon/api/client"
)

// usualSize is what a terminal has when nobody knows.
var usualSize = client.Size{Rows: 24, Cols: 80}

// terminalOf returns the descriptor of v if it is a terminal.
func terminalOf(v any) (fd int, ok bool) {
	f, ok := v.(interface{ Fd() uintptr })
	if !ok {
		return 0, false
	}
	fd = int(f.Fd())
	return fd, term.IsTerminal(fd)
}

// windowSize is the size of the first of the streams that is a terminal.
func windowSize(streams ...any) client.Size {
	for _, v := range streams {
		fd, ok := terminalOf(v)
		if !ok {
			continue
		}
		cols, rows, err := term.GetSize(fd)
		if err == nil && cols > 0 && rows > 0 && cols <= 0xffff && rows <= 0xffff {
			return client.Size{Rows: uint16(rows), Cols: uint16(cols)}
		}
	}
	return usualSize
}

// rawTerminal is a terminal whose keys go to the command as they are.
type rawTerminal struct {
	fd    int
	state *term.State
	once  sync.Once
}

// makeRaw puts the terminal behind v, if it is one, into raw mode. What it
// returns may be nil, and its methods then do nothing.
func makeRaw(v any) (*rawTerminal, error) {
	fd, ok := terminalOf(v)
	if !ok {
		return nil, nil //nolint:nilnil // a pipe has no mode
	}
	state, err := term.MakeRaw(fd)
	if err != nil {
		return nil, fmt.Errorf("terminal: make raw: %w", err)
	}
	return &rawTerminal{fd: fd, state: state}, nil
}

// again repeats makeRaw: a shell that stopped this program and let it go on
// has put back its own mode.
func (t *rawTerminal) again() {
	if t != nil {
		_, _ = term.MakeRaw(t.fd) // the state to restore is the first one
	}
}

// restore puts the terminal back as it was; idempotent.
func (t *rawTerminal) restore() {
	if t == nil {
		return
	}
	t.once.Do(func() {
		_ = term.Restore(t.fd, t.state) // a terminal that is gone needs no mode
	})
}

// wiring is how a command is connected to this program.
type wiring struct {
	tty     bool
	noStdin bool
	// leaveOnHangup: a hang-up leaves the command running.
	leaveOnHangup bool
	// sendSize: the command runs already, for a terminal of another size.
	sendSize bool
}

// wired runs do with the streams, signals and terminal of this program, and
// puts the terminal back however do ends. Between enter and leave, signals
// are the command's.
func (a *app) wired(ctx context.Context, i *interrupts, w wiring,
	do func(context.Context, client.Streams, client.Size) (client.End, error),
) (client.End, error) {
	ctx, leave := i.enter(ctx, forwarding)
	defer leave()
	if w.leaveOnHangup {
		i.leaveOnHangup()
	}
	s := client.Streams{Stdout: a.stdout, Stderr: a.stderr, Signals: i.forward}
	if !w.noStdin {
		s.Stdin = hangupIsEOF{a.stdin}
	}
	size := usualSize
	if w.tty {
		keys := any(a.stdin)
		if w.noStdin {
			keys = nil
		}
		raw, err := makeRaw(keys)
		if err != nil {
			return client.End{}, err
		}
		defer raw.restore()
		size = windowSize(a.stdout, a.stdin, a.stderr)
		resize := make(chan client.Size, 1)
		s.Resize = resize
		if w.sendSize {
			resize <- size
		}
		i.onTerminal(
			func() { latest(resize, windowSize(a.stdout, a.stdin, a.stderr)) },
			func() {
				raw.again()
				latest(resize, windowSize(a.stdout, a.stdin, a.stderr))
			})
	}
	end, err := do(ctx, s, size)
	return end, because(ctx, err)
}

// latest puts v into a channel of one, in place of what may be there.
func latest[T any](ch chan T, v T) {
	for {
		select {
		case ch <- v:
			return
		default:
		}
		select {
		case <-ch:
		default:
		}
	}
}

// hangupIsEOF is a reader whose terminal may go away: that is its end, and
// SIGHUP says the rest.
type hangupIsEOF struct{ io.Reader }

func (r hangupIsEOF) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if errors.Is(err, syscall.EIO) || errors.Is(err, os.ErrClosed) {
		err = io.EOF
	}
	return n, err
}

// isClosedPipe reports that whoever read our output has gone.
func isClosedPipe(err error) bool { return errors.Is(err, syscall.EPIPE) }
