package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"cordon/api/client"
	"cordon/internal/fault"
)

// Exit statuses of commands that do not run one in a sandbox.
const (
	statusFailure = 1
	statusUsage   = 2
)

// exited ends the program with a status; all there is to say has been said.
type exited int

func (e exited) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// usageError is a mistake in the arguments.
type usageError struct{ command, cause string }

func (e *usageError) Error() string { return e.command + ": " + e.cause }

func usage(cmd *cobra.Command, cause string) error {
	return &usageError{cmd.CommandPath(), cause}
}

// containerStatus marks commands whose exit status is mostly that of another
// command, so that their own failures must not look like one of those.
const containerStatus = "container-status"

func containerStatuses() map[string]string { return map[string]string{containerStatus: "yes"} }

// finish reports err and returns the exit status.
func (a *app) finish(cmd *cobra.Command, err error) int {
	if err == nil {
		return 0
	}
	if own, ok := errors.AsType[exited](err); ok {
		return int(own)
	}
	// Whoever read our output has gone: there is nothing to say, and nobody to
	// say it to.
	if isClosedPipe(err) {
		return statusPipe
	}
	a.report(err)
	if by, ok := errors.AsType[interrupted](err); ok {
		return statusSignal + int(by.sig)
	}
	if cmd != nil && cmd.Annotations[containerStatus] != "" {
		return statusFailed
	}
	if _, ok := errors.AsType[*usageError](err); ok {
		return statusUsage
	}
	return statusFailure
}

// failure is an error as it is shown: the fields of the API's.
type failure struct {
	Code   string `json:"code"`
	Field  string `json:"field"`
	Cause  string `json:"cause"`
	Remedy string `json:"remedy"`
}

// String is "field: cause [remedy]", safe for a terminal.
func (f failure) String() string {
	s := f.Cause
	if f.Field != "" {
		s = f.Field + ": " + s
	}
	if f.Remedy != "" {
		s += " [" + f.Remedy + "]"
	}
	return plain(s)
}

// report writes err to standard error: a line for each failure, or one JSON
// document with the first as "error" and the others, if any, as "more".
func (a *app) report(err error) {
	list := failures(err)
	if !a.json {
		for _, f := range list {
			fmt.Fprintf(a.stderr, "cordon: %s\n", f)
		}
		return
	}
	doc := struct {
		Error failure   `json:"error"`
		More  []failure `json:"more,omitempty"`
	}{list[0], list[1:]}
	_ = encodeLine(a.stderr, doc) // there is no place left to complain
}

// failures takes err apart; there is always at least one.
func failures(err error) []failure {
	if joined, ok := err.(interface{ Unwrap() []error }); ok { // only the outermost is a list
		var list []failure
		for _, e := range joined.Unwrap() {
			list = append(list, failures(e)...)
		}
		if len(list) != 0 {
			return list
		}
	}
	return []failure{failureOf(err)}
}

func failureOf(err error) failure {
	var (
		remote  *client.Error
		local   *fault.Fault
		mistake *usageError
		file    *fs.PathError
		link    *os.LinkError
		by      interrupted
	)
	switch {
	case errors.As(err, &remote):
		return failure{string(remote.Code), remote.Field, remote.Cause, remote.Remedy}
	case errors.As(err, &local):
		cause := local.Cause
		if local.Err != nil {
			cause += ": " + local.Err.Error()
		}
		return failure{string(local.Code), local.Field, cause, local.Remedy}
	case errors.As(err, &mistake):
		return failure{"usage", mistake.command, mistake.cause, "see " + mistake.command + " --help"}
	case errors.As(err, &file):
		return failure{Code: "file", Field: file.Path, Cause: file.Op + ": " + file.Err.Error()}
	case errors.As(err, &link):
		return failure{Code: "file", Field: link.New, Cause: link.Op + ": " + link.Err.Error()}
	case errors.As(err, &by):
		return failure{Code: string(client.Cancelled), Cause: by.Error()}
	}
	return failure{Code: "error", Cause: err.Error()}
}

// plain is s with everything that could disturb a terminal written out.
func plain(s string) string {
	if !strings.ContainsFunc(s, func(c rune) bool { return !unicode.IsPrint(c) || c == utf8.RuneError }) {
		return s
	}
	var b strings.Builder
	for i, c := range s {
		switch {
		case c == utf8.RuneError && !strings.HasPrefix(s[i:], string(utf8.RuneError)):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case unicode.IsPrint(c):
			b.WriteRune(c)
		default:
			q := fmt.Sprintf("%q", c) // '\n', '\x1b', '\u2028'
			b.WriteString(q[1 : len(q)-1])
		}
	}
	return b.String()
}

// printJSON writes v to standard output, indented.
func (a *app) printJSON(v any) error {
	enc := json.NewEncoder(a.stdout)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return wrapOutput(enc.Encode(v))
}

// encodeLine writes v as one line of JSON.
func encodeLine(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// print writes text to standard output.
func (a *app) print(text string) error {
	_, err := fmt.Fprint(a.stdout, text)
	return wrapOutput(err)
}

func wrapOutput(err error) error {
	if err != nil {
		return fmt.Errorf("write standard output: %w", err)
	}
	return nil
}

// list is s for JSON: [] and never null.
func list[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
