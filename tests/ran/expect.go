package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// expectation is what a run owes: the tests that packages declare in their
// source, whatever a TestMain or a flag makes of them, and the packages that
// must run one at all.
type expectation struct {
	tests []test
	pkgs  []string
}

// declared reads the packages' sources, as `go list` selects them.
func declared(ctx context.Context, o options) (expectation, error) {
	var want expectation
	args := []string{"list", "-json=ImportPath,Dir,TestGoFiles,XTestGoFiles"}
	if o.race {
		args = append(args, "-race")
	}
	out, err := exec.CommandContext(ctx, "go", append(args, o.pkgs...)...).Output()
	if err != nil {
		return want, fmt.Errorf("go list %s: %w%s", strings.Join(o.pkgs, " "), err, stderrOf(err))
	}
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p struct {
			ImportPath, Dir           string
			TestGoFiles, XTestGoFiles []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return want, nil
		} else if err != nil {
			return want, fmt.Errorf("go list: %w", err)
		}
		if o.each {
			want.pkgs = append(want.pkgs, p.ImportPath)
		}
		for _, f := range slices.Concat(p.TestGoFiles, p.XTestGoFiles) {
			names, err := testsOf(filepath.Join(p.Dir, f))
			if err != nil {
				return want, err
			}
			for _, n := range names {
				want.tests = append(want.tests, test{p.ImportPath, n})
			}
		}
	}
}

func stderrOf(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) != 0 {
		return ": " + strings.TrimSpace(string(exit.Stderr))
	}
	return ""
}

// testsOf lists the tests and fuzz targets of one file.
func testsOf(file string) ([]string, error) {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", file, err)
	}
	var names []string
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if ok && fn.Recv == nil && fn.Name.Name != "TestMain" && isTest(fn.Name.Name) {
			names = append(names, fn.Name.Name)
		}
	}
	return names, nil
}

// isTest follows the rule of `go test`: what comes after the prefix does not
// begin with a lower-case letter.
func isTest(name string) bool {
	for _, prefix := range []string{"Test", "Fuzz"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			r, _ := utf8.DecodeRuneInString(rest)
			return rest == "" || !unicode.IsLower(r)
		}
	}
	return false
}

// readSkips reads lines of "package Test[/sub]: reason". An empty name is an
// empty list.
func readSkips(name string) (map[test]string, error) {
	allowed := map[test]string{}
	if name == "" {
		return allowed, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("skip list: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		who, reason, _ := strings.Cut(line, ": ")
		pkg, name2, ok := strings.Cut(who, " ")
		if !ok || strings.TrimSpace(reason) == "" {
			return nil, fmt.Errorf("%s:%d: want \"package Test: reason\"", name, n)
		}
		allowed[test{pkg, name2}] = reason
	}
	return allowed, lines.Err()
}

// verdict says what a run still owes.
func verdict(want expectation, got *results, allowed map[test]string) []string {
	var bad []string
	ran := map[string]bool{}
	for id := range got.ended {
		ran[id.pkg] = true
	}
	if len(ran) == 0 {
		bad = append(bad, "no test ran")
	}
	for _, pkg := range want.pkgs {
		if !ran[pkg] {
			bad = append(bad, pkg+": ran no test")
		}
	}
	for _, id := range want.tests {
		switch {
		case got.ended[id] != "":
		case !ran[id.pkg]: // it did not build, or crashed: once is enough
			if line := id.pkg + ": ran no test"; !slices.Contains(bad, line) {
				bad = append(bad, line)
			}
		default:
			bad = append(bad, id.String()+": declared, but it did not run to its end")
		}
	}
	for _, id := range got.order {
		switch got.ended[id] {
		case "fail":
			bad = append(bad, id.String()+": failed")
		case "skip":
			if allowed[id] == "" {
				bad = append(bad, id.String()+": skipped, and the skip list does not name it")
			}
		}
	}
	for id := range allowed {
		if ran[id.pkg] && got.ended[id] == "" {
			bad = append(bad, id.String()+": named in the skip list, but there is no such test")
		}
	}
	return bad
}
