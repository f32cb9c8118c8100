package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed guest/guest.sh
var guestScript []byte

// test is a top-level test, or a subtest, of a package.
type test struct{ pkg, name string }

func (t test) String() string { return t.pkg + " " + t.name }

// compile leaves a test program of each package in dir/tests and returns what
// tests they hold.
func compile(ctx context.Context, dir string, patterns []string) ([]test, error) {
	out, err := exec.CommandContext(ctx, "go", append([]string{"list", "-f", "{{.ImportPath}} {{.Dir}} {{.Module.Path}}"}, patterns...)...).Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", strings.Join(patterns, " "), err)
	}
	var tests []test
	var list strings.Builder
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		pkg := strings.TrimPrefix(f[0], f[2]+"/")
		place := filepath.Join(dir, "tests", filepath.FromSlash(pkg))
		if err := os.MkdirAll(place, 0o755); err != nil {
			return nil, fmt.Errorf("compile %s: %w", pkg, err)
		}
		program := filepath.Join(place, "test")
		if err := command(ctx, "go", "test", "-c", "-trimpath", "-o", program, f[0]); err != nil {
			return nil, err
		}
		if data := filepath.Join(f[1], "testdata"); exists(data) {
			if err := os.CopyFS(filepath.Join(place, "testdata"), os.DirFS(data)); err != nil {
				return nil, fmt.Errorf("copy test data of %s: %w", pkg, err)
			}
		}
		names, err := exec.CommandContext(ctx, program, "-test.list", ".").Output()
		if err != nil {
			return nil, fmt.Errorf("list tests of %s: %w", pkg, err)
		}
		found := testsOf(pkg, string(names))
		if len(found) == 0 {
			return nil, fmt.Errorf("list tests of %s: there is none", pkg)
		}
		tests = append(tests, found...)
		fmt.Fprintln(&list, pkg)
	}
	if err := os.WriteFile(filepath.Join(dir, "tests/list"), []byte(list.String()), 0o644); err != nil {
		return nil, fmt.Errorf("compile: %w", err)
	}
	return tests, nil
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}

// testsOf picks from a test program's list what runs without -bench.
func testsOf(pkg, list string) []test {
	var tests []test
	for name := range strings.FieldsSeq(list) {
		if !strings.HasPrefix(name, "Benchmark") {
			tests = append(tests, test{pkg, name})
		}
	}
	return tests
}

// makeDisk adds the programs and what starts them, and makes tmp/disk an
// image.
func makeDisk(ctx context.Context, tmp, bin string, tests []test) (string, error) {
	dir := filepath.Join(tmp, "disk")
	for _, sub := range []string{"bin", "deploy"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return "", fmt.Errorf("make disk: %w", err)
		}
	}
	files := map[string]string{
		"deploy/policy.yaml": "deploy/policy.yaml", "deploy/quickstart.sh": "deploy/quickstart.sh",
	}
	for _, program := range []string{"cordond", "cordon", "cordon-init"} {
		files[path.Join("bin", program)] = filepath.Join(bin, program)
	}
	for to, from := range files {
		if err := copyFile(from, filepath.Join(dir, to), 0o755); err != nil {
			return "", fmt.Errorf("make disk: %w [make build, and run this from the top of the tree]", err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "guest.sh"), guestScript, 0o644); err != nil {
		return "", fmt.Errorf("make disk: %w", err)
	}
	image := filepath.Join(tmp, "disk.ext4")
	// Test programs are some 20 MB each.
	size := fmt.Sprintf("%dM", 256+64*len(slices.CompactFunc(slices.Clone(tests), func(a, b test) bool { return a.pkg == b.pkg })))
	return image, makeExt4(ctx, dir, image, diskLabel, size)
}
