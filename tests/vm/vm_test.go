package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// serialText is a guest that does all there is, with the noise that a serial
// line brings.
const serialText = "SeaBIOS\r\nBooting from ROM...\r\n@@vm begin early\r\n" +
	"\r\n@@vm up\r\n\r\n@@vm fact kernel 6.1.0-1-cloud-amd64\r\n\r\n@@vm fact cgroup cgroup2fs\r\n" +
	"\r\n@@vm begin test a/b\r\n=== RUN   TestA\r\n=== RUN   TestA/sub\r\n--- PASS: TestA (0.10s)\r\n    --- PASS: TestA/sub (0.00s)\r\n" +
	"--- SKIP: TestB (0.00s)\r\n    b_test.go:1: --- FAIL: quoted\r\nPASS\r\n\r\n@@vm end test a/b 0\r\n" +
	"--- FAIL: TestOutside (0.00s)\r\n" +
	"\r\n@@vm begin quickstart\r\n--- FAIL: TestNoTest (0.00s)\r\nhello\r\n@@vm end quickstart 0\r\n\r\n@@vm done\r\n"

func read(t *testing.T, text string) (*results, string) {
	t.Helper()
	var out strings.Builder
	got := &results{}
	if err := got.read(strings.NewReader(text), &out); err != nil {
		t.Fatal(err)
	}
	return got, out.String()
}

func TestRead(t *testing.T) {
	got, out := read(t, serialText)
	want := &results{
		facts: map[string]string{"kernel": "6.1.0-1-cloud-amd64", "cgroup": "cgroup2fs"},
		steps: map[string]int{"test a/b": 0, "quickstart": 0},
		ended: map[test]string{{"a/b", "TestA"}: "PASS", {"a/b", "TestA/sub"}: "PASS", {"a/b", "TestB"}: "SKIP"},
		order: []test{{"a/b", "TestA"}, {"a/b", "TestA/sub"}, {"a/b", "TestB"}},
		done:  true,
		tail:  got.tail,
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(results{}, test{})); d != "" {
		t.Errorf("results (-want +got):\n%s", d)
	}
	if !strings.HasPrefix(out, "=== RUN   TestA\n") || !strings.HasSuffix(out, "\nhello\n") || strings.Contains(out, "@@vm") {
		t.Errorf("copied:\n%s", out)
	}
	if pass, fail, skip := got.count(); pass != 1 || fail != 0 || skip != 1 {
		t.Errorf("count = %d, %d, %d; want 1, 0, 1", pass, fail, skip)
	}
}

func TestVerdict(t *testing.T) {
	want := []test{{"a/b", "TestA"}, {"a/b", "TestB"}}
	leave := map[test]string{{"a/b", "TestB"}: "no such device"}
	for _, tt := range []struct {
		name     string
		from, to string // replaced in serialText
		allowed  map[test]string
		bad      []string
	}{
		{name: "good", allowed: leave},
		{
			name: "skipped without leave",
			bad:  []string{"a/b TestB: skipped, and the skip list does not name it"},
		},
		{
			name: "stale leave", allowed: leave, from: "--- SKIP: TestB", to: "--- PASS: TestB",
			bad: []string{"a/b TestB: named in the skip list, but not skipped"},
		},
		{
			name: "a subtest failed", allowed: leave, from: "    --- PASS: TestA/sub", to: "    --- FAIL: TestA/sub",
			bad: []string{"a/b TestA/sub: failed"},
		},
		{
			name: "one is missing", allowed: leave, from: "--- PASS: TestA (", to: "panic (",
			bad: []string{"a/b TestA: it did not run to its end"},
		},
		{
			name: "status", allowed: leave, from: "@@vm end test a/b 0", to: "@@vm end test a/b 2",
			bad: []string{"test a/b: exit status 2"},
		},
		{
			name: "another kernel", allowed: leave, from: "kernel 6.1.0", to: "kernel 6.12.0",
			bad: []string{`guest: kernel is "6.12.0-1-cloud-amd64", want 6.1.`},
		},
		{
			name: "hybrid", allowed: leave, from: "cgroup cgroup2fs", to: "cgroup tmpfs",
			bad: []string{`guest: cgroup is "tmpfs", want cgroup2fs`},
		},
		{
			name: "left", allowed: leave, from: "@@vm done", to: "@@vm left /run/x y\n@@vm done",
			bad: []string{"left in the guest: /run/x y"},
		},
		{
			name: "it ended early", allowed: leave, from: serialText[strings.Index(serialText, "@@vm begin quick"):], to: "",
			bad: []string{"quickstart: it did not run to its end", "guest: it ended before its script did"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text := strings.Replace(serialText, tt.from, tt.to, 1)
			if tt.from != "" && text == serialText {
				t.Fatalf("%q is not in the text", tt.from)
			}
			got, _ := read(t, text)
			if d := cmp.Diff(tt.bad, verdict(want, got, tt.allowed)); d != "" {
				t.Errorf("verdict (-want +got):\n%s", d)
			}
		})
	}
}

// A guest that never says "up" has no facts: boot takes it for one that did
// not come up, whatever else it prints.
func TestNotUp(t *testing.T) {
	got, out := read(t, "SeaBIOS\r\n@@vm fact kernel 6.1.0\r\n@@vm begin quickstart\r\nhello\r\n[    0.1] Kernel panic\r\n")
	if got.facts != nil || got.step != "" || out != "" {
		t.Errorf("results = %+v, copied %q", got, out)
	}
	if !strings.Contains(got.last(), "Kernel panic") {
		t.Errorf("last = %q", got.last())
	}
}

func TestTestsOf(t *testing.T) {
	got := testsOf("p", "TestA\nBenchmarkB\nFuzzC\nExampleD\n")
	want := []test{{"p", "TestA"}, {"p", "FuzzC"}, {"p", "ExampleD"}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(test{})); d != "" {
		t.Errorf("tests (-want +got):\n%s", d)
	}
}

func TestReadSkips(t *testing.T) {
	file := filepath.Join(t.TempDir(), "skips")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# why\n\na/b TestA/sub: device: none\n")
	got, err := readSkips(file)
	want := map[test]string{{"a/b", "TestA/sub"}: "device: none"}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(test{})); d != "" || err != nil {
		t.Errorf("skips %v (-want +got):\n%s", err, d)
	}
	for _, text := range []string{"p TestA\n", "p TestA: \n", "TestA: why\n"} {
		write(text)
		if _, err := readSkips(file); err == nil {
			t.Errorf("readSkips of %q: no error", text)
		}
	}
}
