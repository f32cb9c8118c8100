package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cordon/api/client"
	"cordon/internal/fault"
)

func TestFailures(t *testing.T) {
	remote := &client.Error{Code: client.NotFound, Field: "lease", Cause: "no such lease", Remedy: "acquire one"}
	for _, c := range []struct {
		name string
		err  error
		want []failure
	}{
		{"remote", fmt.Errorf("x: %w", remote), []failure{{"not_found", "lease", "no such lease", "acquire one"}}},
		{
			"fault", fault.Wrap(fs.ErrNotExist, fault.UnknownImage, "image", "is gone", "make it"),
			[]failure{{"unknown_image", "image", "is gone: file does not exist", "make it"}},
		},
		{"file", &fs.PathError{Op: "open", Path: "/x", Err: syscall.EACCES}, []failure{{Code: "file", Field: "/x", Cause: "open: permission denied"}}},
		{
			"joined", errors.Join(remote, interrupted{syscall.SIGINT}),
			[]failure{{"not_found", "lease", "no such lease", "acquire one"}, {Code: "cancelled", Cause: "interrupted by SIGINT (2)"}},
		},
		{"usage", &usageError{"cordon run", "no"}, []failure{{"usage", "cordon run", "no", "see cordon run --help"}}},
		{"other", errors.New("boom"), []failure{{Code: "error", Cause: "boom"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, failures(c.err)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestUsage holds the exit statuses of mistakes: 125 where another status
// could be the command's, 2 elsewhere.
func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args   string
		status int
		stderr string
	}{
		{"run", 125, "cordon: cordon run: COMMAND is missing [see cordon run --help]\n"},
		{"run --bogus true", 125, "cordon: cordon run: unknown flag: --bogus [see cordon run --help]\n"},
		{"run --memory 1.5X true", 125, "*"},
		{"run --pids 0 true", 125, "*"},
		{"exec l-1", 125, "cordon: cordon exec: COMMAND is missing [see cordon exec --help]\n"},
		{"exec l-1 --", 125, "cordon: cordon exec: COMMAND is missing [see cordon exec --help]\n"},
		{"exec l-1 -t ls", 125, "*"},
		{"exec --bogus l-1 ls", 125, "*"},
		{"attach l-1", 125, "cordon: cordon attach: EXEC is missing [see cordon attach --help]\n"},
		{"export l-1", 2, "cordon: cordon export: PATH is missing [see cordon export --help]\n"},
		{"export --bogus l-1 x", 2, "*"},
		{"bogus", 2, "cordon: cordon: unknown command \"bogus\" [see cordon --help]\n"},
		{"leas", 2, "cordon: cordon: unknown command \"leas\"; did you mean lease? [see cordon --help]\n"},
		{"lease bogus", 2, "cordon: cordon lease: unknown command \"bogus\" [see cordon lease --help]\n"},
		{"lease renew l-1 10", 2, "*"},
		{"lease show a b", 2, "cordon: cordon lease show: unexpected argument \"b\" [see cordon lease show --help]\n"},
		{"version x", 2, "*"},
		{"evidence verify x", 2, "cordon: cordon evidence verify: --key is missing [see cordon evidence verify --help]\n"},
	} {
		w := newWorld(t, nil)
		w.want(c.status, "", c.stderr, strings.Fields(c.args)...)
	}
}

func TestNoCommandShowsHelpOnStandardError(t *testing.T) {
	w := newWorld(t, nil)
	for _, args := range [][]string{nil, {"lease"}} {
		w.want(2, "", "*", args...)
		if !strings.Contains(w.err.String(), "Usage:") {
			t.Errorf("%q shows no usage: %s", args, w.err.String())
		}
	}
	w.want(0, "*", "", "--help")
	if !strings.Contains(w.out.String(), "Exit status of run") {
		t.Errorf("help: %s", w.out.String())
	}
}

func TestNoDaemon(t *testing.T) {
	w := newWorld(t, nil)
	for _, args := range [][]string{{"run", "true"}, {"exec", "l-1", "true"}} {
		w.want(125, "", "*", args...)
		if got := w.err.String(); !strings.Contains(got, "is cordond running?") || strings.Count(got, "\n") != 1 {
			t.Errorf("%q: %s", args, got)
		}
	}
	w.want(1, "", "*", "lease", "ls", "--json")
	var doc struct{ Error failure }
	if err := json.Unmarshal([]byte(w.err.String()), &doc); err != nil {
		t.Fatalf("%v: %s", err, w.err.String())
	}
	if doc.Error.Code != "unavailable" || doc.Error.Field != w.env["CORDON_SOCKET"] || doc.Error.Remedy == "" {
		t.Errorf("error = %+v", doc.Error)
	}
}

func TestSocketFlagOverEnvironment(t *testing.T) {
	d := newDaemon(t)
	w := newWorld(t, nil)
	w.want(0, "*", "", "--socket", d.socket, "lease", "ls")
}

func TestPanicIsReported(t *testing.T) {
	w := newWorld(t, newDaemon(t))
	w.stdout = panicking{}
	w.want(125, "", "*", "run", "--no-stdin", "both")
	if !strings.Contains(w.err.String(), "internal error: the disk is on fire") {
		t.Errorf("stderr: %s", w.err.String())
	}
}

type panicking struct{}

func (panicking) Write([]byte) (int, error) { panic("the disk is on fire") }

// TestHelp holds every command to a short help with an example that names it.
func TestHelp(t *testing.T) {
	w := newWorld(t, nil)
	for _, words := range []string{
		"run", "exec", "attach", "export", "lease acquire", "lease ls", "lease show", "lease renew", "lease release",
		"image ls", "image import", "image snapshot", "input put", "doctor", "evidence show", "evidence verify",
		"evidence key", "version", "quickstart",
	} {
		w.want(0, "*", "", append(strings.Fields(words), "--help")...)
		help := w.out.String()
		if !strings.Contains(help, "Examples:") || !strings.Contains(help, "cordon "+words) {
			t.Errorf("%s: no example: %s", words, help)
		}
		if n := strings.Count(help, "\n"); n > 50 {
			t.Errorf("%s: help has %d lines", words, n)
		}
	}
}
