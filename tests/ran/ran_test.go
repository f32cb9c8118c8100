package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const stream = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestB","Output":"    b_test.go:1: boom\n"}
{"Action":"output","Package":"p","Test":"TestB/sub","Output":"    b_test.go:2: inner\n"}
{"Action":"fail","Package":"p","Test":"TestB/sub"}
{"Action":"fail","Package":"p","Test":"TestB"}
{"Action":"output","Package":"p","Test":"TestC","Output":"    c_test.go:1: needs root\n"}
{"Action":"skip","Package":"p","Test":"TestC"}
{"Action":"output","Package":"p","Test":"TestD","Output":"panic: dead\n"}
not an event
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}
{"Action":"fail","Package":"p"}
{"Action":"build-output","ImportPath":"q","Output":"q.go:1: syntax error\n"}
`

func TestReadPrintsWhatMatters(t *testing.T) {
	var out strings.Builder
	got, err := read(bufio.NewReader(strings.NewReader(stream)), &out)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		"    b_test.go:2: inner",
		"    b_test.go:1: boom",
		"    c_test.go:1: needs root",
		"not an event",
		"FAIL\tp\t0.1s",
		"q.go:1: syntax error",
		"p TestD did not end:",
		"panic: dead",
		"",
	}, "\n")
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Errorf("output (-want +got):\n%s", d)
	}
	pass, fail, skip := got.count()
	if pass != 1 || fail != 1 || skip != 1 {
		t.Errorf("count = %d, %d, %d; want 1, 1, 1", pass, fail, skip)
	}
}

func TestVerdict(t *testing.T) {
	ended := func(pairs ...string) *results {
		r := &results{ended: map[test]string{}}
		for i := 0; i < len(pairs); i += 2 {
			id := test{"p", pairs[i]}
			r.ended[id] = pairs[i+1]
			r.order = append(r.order, id)
		}
		return r
	}
	declares := func(names ...string) expectation {
		var e expectation
		for _, n := range names {
			e.tests = append(e.tests, test{"p", n})
		}
		return e
	}
	for _, tt := range []struct {
		name    string
		want    expectation
		got     *results
		allowed map[test]string
		bad     []string
	}{
		{name: "all passed", want: declares("TestA"), got: ended("TestA", "pass")},
		{
			name: "nothing ran", got: ended(),
			bad: []string{"no test ran"},
		},
		{
			name: "one did not run", want: declares("TestA", "TestB"), got: ended("TestA", "pass"),
			bad: []string{"p TestB: declared, but it did not run to its end"},
		},
		{
			name: "skipped", want: declares("TestA"), got: ended("TestA/sub", "skip", "TestA", "pass"),
			bad: []string{"p TestA/sub: skipped, and the skip list does not name it"},
		},
		{
			name: "skipped with leave", want: declares("TestA"), got: ended("TestA", "skip"),
			allowed: map[test]string{{"p", "TestA"}: "no such kernel"},
		},
		{
			name: "stale leave", want: declares("TestA"), got: ended("TestA", "pass"),
			allowed: map[test]string{{"p", "TestB"}: "no such kernel"},
			bad:     []string{"p TestB: named in the skip list, but there is no such test"},
		},
		{
			name: "a package without a test", want: expectation{pkgs: []string{"p", "q"}},
			got: ended("TestA", "pass"), bad: []string{"q: ran no test"},
		},
		{
			name: "a package that did not build",
			want: expectation{tests: []test{{"q", "TestA"}, {"q", "TestB"}}},
			got:  ended("TestA", "pass"), bad: []string{"q: ran no test"},
		},
		{
			name: "failed", want: declares("TestA"), got: ended("TestA", "fail"),
			bad: []string{"p TestA: failed"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if d := cmp.Diff(tt.bad, verdict(tt.want, tt.got, tt.allowed)); d != "" {
				t.Errorf("verdict (-want +got):\n%s", d)
			}
		})
	}
}

func TestTestsOf(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x_test.go")
	src := `package x
func TestMain() {}
func Test() {}
func TestA() {}
func Testing() {}
func FuzzB() {}
func BenchmarkC() {}
func (T) TestD() {}
`
	if err := os.WriteFile(file, []byte(src), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := testsOf(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"Test", "TestA", "FuzzB"}, got); d != "" {
		t.Errorf("tests (-want +got):\n%s", d)
	}
}

func TestReadSkips(t *testing.T) {
	write := func(text string) string {
		file := filepath.Join(t.TempDir(), "skips")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	got, err := readSkips(write("# why\n\np TestA/sub: kernel: too old\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := map[test]string{{"p", "TestA/sub"}: "kernel: too old"}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(test{})); d != "" {
		t.Errorf("skips (-want +got):\n%s", d)
	}
	for _, text := range []string{"p TestA\n", "p TestA: \n", "TestA: why\n"} {
		if _, err := readSkips(write(text)); err == nil {
			t.Errorf("readSkips(%q) took it", text)
		}
	}
}

// A file and a process that runs a program of the run's directory are found;
// what was there before is not.
func TestLookFindsWhatIsLeft(t *testing.T) {
	tmp := t.TempDir()
	if err := os.WriteFile(filepath.Join(tmp, "before"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	before, err := look(tmp)
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(tmp, "left")
	text, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, text, 0o700); err != nil {
		t.Fatal(err)
	}
	// This test's own binary, told to wait for the end of its input.
	cmd := exec.CommandContext(t.Context(), program, "-test.run=^TestWaits$")
	cmd.Env = append(os.Environ(), "RAN_TEST_WAITS=1")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // do not wait for it to go away
	got, err := settle(ctx, before, tmp)
	if err != nil {
		t.Fatal(err)
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("the process left: %v", err)
	}
	pid := strconv.Itoa(cmd.Process.Pid)
	for _, want := range []string{"file " + program, "process " + pid + " left"} {
		if !slices.Contains(got, want) {
			t.Errorf("settle = %q, want %q among it", got, want)
		}
	}
	if slices.Contains(got, "file "+filepath.Join(tmp, "before")) {
		t.Errorf("settle = %q, which holds what was there before", got)
	}
}

// TestWaits is what the process of TestLookFindsWhatIsLeft does.
func TestWaits(t *testing.T) {
	if os.Getenv("RAN_TEST_WAITS") == "" {
		return
	}
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		t.Fatal(err)
	}
}
