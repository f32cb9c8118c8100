package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	"cordon/api/client"
	cordonv1 "cordon/api/v1"
	"cordon/supervisor/evidence"
)

// runJob runs the job itself, without its attempts, on a database.
func runJob(t *testing.T, status string) jobResult {
	t.Helper()
	r, err := job(t.Context(), t.TempDir(), status)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func job(ctx context.Context, dir, status string) (jobResult, error) {
	program, in, out := filepath.Join(dir, "job.sh"), filepath.Join(dir, "status"), filepath.Join(dir, "result.json")
	if err := errors.Join(os.WriteFile(program, quickstartJob, 0o600), os.WriteFile(in, []byte(status), 0o600)); err != nil {
		return jobResult{}, err
	}
	cmd := exec.CommandContext(ctx, "sh", program, in, out, "32")
	cmd.Env = []string{"PATH=/usr/bin:/bin", "QUICKSTART_ATTACKS=no"}
	if text, err := cmd.CombinedOutput(); err != nil {
		return jobResult{}, fmt.Errorf("%w: %s", err, text)
	}
	data, err := os.ReadFile(out)
	if err != nil {
		return jobResult{}, err
	}
	r, err := parseResult(data)
	if err != nil {
		return r, fmt.Errorf("%w: %s", err, data)
	}
	return r, nil
}

func TestJobCountsPackages(t *testing.T) {
	status := readFile(t, "testdata/status")
	want := packageReport{
		Installed: 12, Other: 2, InstalledKiB: 5000000000 + 900 + 900 + 12 + 40 + 40 + 15,
		Sections:   map[string]int{"utils": 1, "admin": 1, "non-free/libs": 1, "libs": 7, "unknown": 1, `"odd\section"`: 1},
		Priorities: map[string]int{"optional": 4, "required": 1, "important": 1, "unknown": 6},
		Largest: []sized{
			{"big", 5000000000},
			{"alpha", 900},
			{"zeta", 900},
			{"libdup", 40},
			{"libdup", 40},
			{"held", 12},
			{"p5", 5},
			{"p4", 4},
			{"p3", 3},
			{"p2", 2},
		},
	}
	for name, text := range map[string]string{"lines": status, "CRLF": strings.ReplaceAll(status, "\n", "\r\n")} {
		if diff := cmp.Diff(want, runJob(t, text).Packages); diff != "" {
			t.Errorf("%s: the job (-want +got):\n%s", name, diff)
		}
		if diff := cmp.Diff(want, countPackages(text)); diff != "" {
			t.Errorf("%s: the count outside (-want +got):\n%s", name, diff)
		}
	}
}

func TestJobOfAnEmptyDatabase(t *testing.T) {
	got := runJob(t, "")
	if !got.Packages.equal(countPackages("")) || got.Packages.Installed != 0 {
		t.Errorf("packages = %+v", got.Packages)
	}
}

// TestJobOnThisMachine compares the two counts on a real database.
func TestJobOnThisMachine(t *testing.T) {
	status, err := os.ReadFile("/var/lib/dpkg/status")
	if err != nil {
		t.Skip("needs dpkg's database")
	}
	if diff := cmp.Diff(countPackages(string(status)), runJob(t, string(status)).Packages); diff != "" {
		t.Errorf("(-outside +job):\n%s", diff)
	}
}

// contained is what comes of the attempts when all is as it should be.
func contained() attempts {
	return attempts{
		Shadow:   attempt{Errno: 2, Name: "ENOENT"},
		Metadata: attempt{Errno: 1, Name: "EPERM"},
		Public:   attempt{Errno: 1, Name: "EPERM"},
		Forks:    attempt{Errno: 11, Name: "EAGAIN", Limit: 32, Started: 30},
	}
}

// sandbox makes the daemon run the job for real, with what came of the
// attempts put in.
func sandbox(t *testing.T, d *daemon, a attempts) {
	t.Helper()
	dir := t.TempDir()
	d.onExec = func(start *cordonv1.ExecStart, s grpc.BidiStreamingServer[cordonv1.ExecRequest, cordonv1.ExecResponse]) error {
		if diff := cmp.Diff([]string{"sh", "/inputs/job.sh", "/inputs/status", "result.json", "32"}, start.GetArgv()); diff != "" {
			return fmt.Errorf("argv (-want +got): %s", diff)
		}
		var status string
		for _, in := range d.envelope.Filesystem.Inputs {
			switch in.Name {
			case "status":
				status = string(d.inputs[in.Digest])
			case "job.sh":
				if string(d.inputs[in.Digest]) != string(quickstartJob) {
					return fmt.Errorf("job.sh is another")
				}
			}
		}
		r, err := job(s.Context(), dir, status)
		if err != nil {
			return err
		}
		r.Attempts = a
		data, err := json.Marshal(r)
		if err != nil {
			return err
		}
		d.mu.Lock()
		d.artifacts["result.json"] = data
		d.mu.Unlock()
		return s.Send(ended(&cordonv1.End{Cause: cordonv1.EndCause_END_CAUSE_EXITED, Witness: "kernel"}))
	}
}

var changing = regexp.MustCompile(`in [0-9.]+(µs|ms|s); |for [0-9.]+(µs|ms|s) |, [0-9.]+ KiB, sha256:[0-9a-f]{12}`)

func TestQuickstartTellsItsStoryOnOneScreen(t *testing.T) {
	status, err := filepath.Abs("testdata/status")
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	chdir(t)
	d := newDaemon(t)
	sandbox(t, d, contained())
	w := newWorld(t, d)
	w.want(0, "*", "", "quickstart", "--packages", status)
	fits(t, w.out.String())
	story := changing.ReplaceAllString(strings.ReplaceAll(w.out.String(), status, "/var/lib/dpkg/status"), "~")
	if diff := cmp.Diff([]string{"host.pub", "record.json", "result.json"}, names(t, "cordon-quickstart")); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	e := d.envelope
	if e.Resources.ProcessCount != 32 || len(e.Filesystem.Inputs) != 2 || len(e.Artifacts.Allow) != 1 {
		t.Errorf("envelope = %+v", e)
	}
	// What it says to do next works, and so does a second time.
	w.want(0, "*", "", "evidence", "verify", "-v", "--key", "cordon-quickstart/host.pub", "cordon-quickstart/record.json")
	w.want(0, "*", "", "quickstart", "--packages", status, "--json")
	var got struct {
		OK    bool
		Steps []step
	}
	if err := json.Unmarshal([]byte(w.out.String()), &got); err != nil || !got.OK || len(got.Steps) != 12 {
		t.Errorf("%v: %s", err, w.out.String())
	}
	if d.count("Release") != 2 {
		t.Errorf("released %d times", d.count("Release"))
	}
	t.Chdir(tests)
	golden(t, "story.txt", story)
}

// TestQuickstartFailsLoudly changes one thing at a time.
func TestQuickstartFailsLoudly(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*attempts, *evidence.Record)
		says   string
	}{
		{"shadow is read", func(a *attempts, _ *evidence.Record) { a.Shadow = attempt{Succeeded: true} }, "read /etc/shadow: IT WAS READ"},
		{"shadow is odd", func(a *attempts, _ *evidence.Record) { a.Shadow = attempt{Name: "EIO"} }, "stopped by EIO"},
		{"metadata is reached", func(a *attempts, _ *evidence.Record) { a.Metadata = attempt{Succeeded: true} }, "169.254.169.254:80: IT WAS REACHED"},
		{"public times out", func(a *attempts, _ *evidence.Record) { a.Public = attempt{Name: "ETIMEDOUT"} }, "203.0.113.7:443: stopped by ETIMEDOUT, and not by the filter"},
		{"the host saw no connect", func(_ *attempts, r *evidence.Record) { r.Network.Destinations = r.Network.Destinations[:1] }, "203.0.113.7:443: EPERM, but the host has not seen it"},
		{"forks without end", func(a *attempts, _ *evidence.Record) { a.Forks = attempt{Succeeded: true, Started: 128} }, "128 RAN, and the limit is 32"},
		{"forks stop for memory", func(a *attempts, _ *evidence.Record) { a.Forks.Name = "ENOMEM" }, "ENOMEM, which is not the limit"},
		{"the host saw no fork", func(_ *attempts, r *evidence.Record) { r.Usage.PidsRefused = 0 }, "EAGAIN, but the host has not seen it"},
		{"another export", func(_ *attempts, r *evidence.Record) { r.Exports[0].Digest = fakeDigest }, "the record says otherwise"},
		{"one export more", func(_ *attempts, r *evidence.Record) { r.Exports = append(r.Exports, r.Exports[0]) }, "the record says otherwise"},
		{"something is left", func(_ *attempts, r *evidence.Record) { quarantine(r) }, "LEFT OVER processes: pid 7"},
		{"another lease's record", func(_ *attempts, r *evidence.Record) { r.Lease.ID = "l-2" }, "it is about the lease l-2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, err := filepath.Abs("testdata/status")
			if err != nil {
				t.Fatal(err)
			}
			chdir(t)
			d := newDaemon(t)
			a := contained()
			rec := exampleRecord()
			c.change(&a, &rec)
			d.onRecord = func(r *evidence.Record) { c.change(&attempts{}, r) }
			sandbox(t, d, a)
			w := newWorld(t, d)
			w.want(1, "*", "*", "quickstart", "--packages", status)
			got := unwrap(w.out.String())
			if !strings.Contains(got, c.says) || strings.Count(got, "FAIL ") != 1 || !strings.Contains(got, "1 FAILED: this host does not contain") {
				t.Errorf("story: %s%s", w.out.String(), w.err.String())
			}
		})
	}
}

// unwrap undoes the breaking of lines.
func unwrap(s string) string { return strings.Join(strings.Fields(s), " ") }

func TestQuickstartWithoutAResult(t *testing.T) {
	status, err := filepath.Abs("testdata/status")
	if err != nil {
		t.Fatal(err)
	}
	chdir(t)
	d := newDaemon(t)
	d.onExec = func(_ *cordonv1.ExecStart, s grpc.BidiStreamingServer[cordonv1.ExecRequest, cordonv1.ExecResponse]) error {
		_ = s.Send(stdout([]byte("perl: not found\n")))
		return s.Send(ended(&cordonv1.End{Cause: cordonv1.EndCause_END_CAUSE_EXITED, ExitCode: 2}))
	}
	w := newWorld(t, d)
	w.want(1, "*", "cordon: result.json: the run wrote no such file\n", "quickstart", "--packages", status)
	if !strings.Contains(unwrap(w.out.String()), "FAIL job exited with 2: perl: not found") || d.count("Release") != 1 {
		t.Errorf("released %d times: %s", d.count("Release"), w.out.String())
	}
	// A count that is wrong.
	d = newDaemon(t)
	sandbox(t, d, contained())
	inner := d.onExec
	d.onExec = func(start *cordonv1.ExecStart, s grpc.BidiStreamingServer[cordonv1.ExecRequest, cordonv1.ExecResponse]) error {
		err := inner(start, s)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.artifacts["result.json"] = []byte(strings.Replace(string(d.artifacts["result.json"]), `"installed":12`, `"installed":13`, 1))
		return err
	}
	w = newWorld(t, d)
	w.want(1, "*", "", "quickstart", "--packages", status)
	if !strings.Contains(unwrap(w.out.String()), "NOT the same (12, ") {
		t.Errorf("story: %s", w.out.String())
	}
}

func TestClosingNamesThisDaemon(t *testing.T) {
	if got := closing("cordon", client.DefaultSocket, "d", 0); !strings.Contains(got, "cordon run -t") {
		t.Errorf("closing: %s", got)
	}
	if got := closing("bin/cordon", "/run/other", "d", 0); strings.Contains(got, " run ") || !strings.Contains(got, "bin/cordon evidence verify") {
		t.Errorf("closing: %s", got)
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	var b tail
	for i := range 2000 {
		fmt.Fprintf(&b, "%04d\n", i)
	}
	if got := b.String(); len(got) != maxJobOutput || !strings.HasSuffix(got, "1999\n") {
		t.Errorf("%d bytes, ending %q", len(got), got[len(got)-10:])
	}
}
