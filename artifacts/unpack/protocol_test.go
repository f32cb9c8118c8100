package unpack

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"cordon/internal/fault"

	"github.com/google/go-cmp/cmp"
)

func TestReportRoundTrip(t *testing.T) {
	want := Report{Entries: 3, Bytes: 9, Stripped: Stripped{Devices: 1}}
	var b bytes.Buffer
	if err := want.write(&b, nil); err != nil {
		t.Fatal(err)
	}
	got, err := ParseReport(b.Bytes())
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("report (-want +got):\n%s%v", diff, err)
	}
}

func TestReportFault(t *testing.T) {
	var b bytes.Buffer
	in := fault.Wrap(errors.New("bad \x1b[2J sum"), fault.HostileImage, "tar", "entry x:\ny", "build it again")
	if err := (&Report{}).write(&b, in); err != nil {
		t.Fatal(err)
	}
	_, err := ParseReport(b.Bytes())
	var f *fault.Fault
	if !errors.As(err, &f) {
		t.Fatalf("got %v, want a fault", err)
	}
	want := fault.Fault{Code: fault.HostileImage, Field: "tar", Cause: "entry x:?y: bad ?[2J sum", Remedy: "build it again"}
	if diff := cmp.Diff(want, *f); diff != "" {
		t.Errorf("fault (-want +got):\n%s", diff)
	}
}

func TestParseReportRefuses(t *testing.T) {
	for name, in := range map[string]string{
		"empty":         "",
		"no json":       "hello",
		"unknown field": `{"entries":1,"trust_me":true}`,
		"foreign code":  `{"fault":{"code":"permission_denied","field":"","cause":"","remedy":""}}`,
		"no code":       `{"fault":{"cause":"x"}}`,
		"too long":      `{"entries":1}` + strings.Repeat(" ", MaxReport),
	} {
		if rep, err := ParseReport([]byte(in)); err == nil || fault.CodeOf(err) != "" {
			t.Errorf("%s: got %+v, %v; want an ordinary error", name, rep, err)
		}
	}
}

func TestParseLimits(t *testing.T) {
	want := Limits{Bytes: 5, Files: 6}
	if got, err := parseLimits(want.Args()); err != nil || got != want {
		t.Errorf("got %v, %v", got, err)
	}
	for _, args := range [][]string{nil, {"1"}, {"1", "x"}, {"0", "1"}, {"1", "-1"}, {"1", "1", "1"}, {"9223372036854775808", "1"}} {
		if got, err := parseLimits(args); err == nil {
			t.Errorf("%q: got %v, want an error", args, got)
		}
	}
}

// Started by hand, the worker must not touch the caller's mounts or ids.
func TestRunRefusesOutsideNamespaces(t *testing.T) {
	var out, msg bytes.Buffer
	before := os.Getuid()
	code := Run(testLimits.Args(), neverRead{t}, &out, &msg)
	if code != 2 || out.Len() != 0 || !strings.Contains(msg.String(), "not PID 1") {
		t.Errorf("got %d, %q, %q", code, out.String(), msg.String())
	}
	if after := os.Getuid(); after != before {
		t.Errorf("uid changed from %d to %d", before, after)
	}
}

type neverRead struct{ t *testing.T }

func (n neverRead) Read([]byte) (int, error) {
	n.t.Error("the archive was read before the worker was confined")
	return 0, io.EOF
}
