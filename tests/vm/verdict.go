package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// wantFacts are what the guest must be, or the run has proved nothing: the
// stock kernel of the suite, and cgroup v2 alone.
var wantFacts = []struct{ name, prefix string }{
	{"kernel", "6.1."},
	{"cgroup", "cgroup2fs"},
}

// verdict says what a run still owes.
func verdict(want []test, got *results, allowed map[test]string) []string {
	var bad []string
	for _, f := range wantFacts {
		if v := got.facts[f.name]; !strings.HasPrefix(v, f.prefix) {
			bad = append(bad, fmt.Sprintf("guest: %s is %q, want %s", f.name, v, f.prefix))
		}
	}
	steps := []string{"quickstart"}
	for _, id := range want {
		if s := "test " + id.pkg; !slices.Contains(steps, s) {
			steps = append(steps, s)
		}
		if got.ended[id] == "" {
			bad = append(bad, id.String()+": it did not run to its end")
		}
	}
	for _, id := range got.order {
		switch got.ended[id] {
		case "FAIL":
			bad = append(bad, id.String()+": failed")
		case "SKIP":
			if allowed[id] == "" {
				bad = append(bad, id.String()+": skipped, and the skip list does not name it")
			}
		}
	}
	for id := range allowed {
		if got.ended[id] != "SKIP" {
			bad = append(bad, id.String()+": named in the skip list, but not skipped")
		}
	}
	for _, s := range steps {
		if rc, ok := got.steps[s]; !ok {
			bad = append(bad, s+": it did not run to its end")
		} else if rc != 0 {
			bad = append(bad, fmt.Sprintf("%s: exit status %d", s, rc))
		}
	}
	for _, what := range got.left {
		bad = append(bad, "left in the guest: "+what)
	}
	if !got.done {
		bad = append(bad, "guest: it ended before its script did")
	}
	return bad
}

// readSkips reads lines of "package Test[/sub]: reason". An empty name is an
// empty list.
func readSkips(name string) (map[test]string, error) {
	allowed := map[test]string{}
	if name == "" {
		return allowed, nil
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("skip list: %w", err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		who, reason, _ := strings.Cut(line, ": ")
		pkg, id, ok := strings.Cut(who, " ")
		if !ok || strings.TrimSpace(reason) == "" {
			return nil, fmt.Errorf("%s:%d: want \"package Test: reason\"", name, n)
		}
		allowed[test{pkg, id}] = reason
	}
	return allowed, nil
}
