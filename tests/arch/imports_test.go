package arch

import (
	"go/ast"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// own reports whether an import, as goFile.imports gives it, is a package of
// this module.
func own(imp string, pkgs []string) bool { return slices.Contains(pkgs, imp) }

// foreign reports whether an import is neither ours nor the standard library's.
func foreign(imp string, pkgs []string) bool {
	first, _, _ := strings.Cut(imp, "/")
	return strings.Contains(first, ".") && !own(imp, pkgs)
}

// edges is who imports what, tests left out: package -> import -> a place.
func edges(src source) map[string]map[string]string {
	all := map[string]map[string]string{}
	for _, f := range src.gos {
		if all[f.pkg] == nil {
			all[f.pkg] = map[string]string{}
		}
		if f.test {
			continue
		}
		for i, imp := range f.imports() {
			all[f.pkg][imp] = f.at(f.ast.Imports[i])
		}
	}
	return all
}

// TestLayers holds the arrows between our own packages to the picture.
func TestLayers(t *testing.T) {
	src := tree(t)
	pkgs, all := src.packages(), edges(src)
	for _, pkg := range pkgs {
		row, ok := layers[pkg]
		if covers("tests/...", pkg) {
			continue // imports what it tests; nothing but tests can import it
		}
		if !ok {
			t.Errorf("%s: no row in layers: say what it may import", pkg)
			continue
		}
		for imp, where := range all[pkg] {
			if own(imp, pkgs) && !slices.Contains(row, imp) {
				t.Errorf("%s: %s imports %s, which its row in layers does not allow", where, pkg, imp)
			}
		}
		for _, imp := range row {
			if all[pkg][imp] == "" {
				t.Errorf("layers: stale: %s does not import %s", pkg, imp)
			}
		}
	}
	for pkg := range layers {
		if !own(pkg, pkgs) {
			t.Errorf("layers: stale: there is no package %s", pkg)
		}
	}
}

// TestLayersHaveNoCycle shows that the picture itself points down only.
func TestLayersHaveNoCycle(t *testing.T) {
	done := map[string]bool{}
	var visit func(pkg string, way []string)
	visit = func(pkg string, way []string) {
		if slices.Contains(way, pkg) {
			t.Errorf("layers: a cycle: %s", strings.Join(append(way, pkg), " -> "))
			return
		}
		if done[pkg] {
			return
		}
		for _, imp := range layers[pkg] {
			visit(imp, append(slices.Clone(way), pkg))
		}
		done[pkg] = true
	}
	for _, pkg := range slices.Sorted(maps.Keys(layers)) {
		visit(pkg, nil)
	}
}

// TestModules holds each third-party module to the packages it is for.
func TestModules(t *testing.T) {
	src := tree(t)
	pkgs := src.packages()
	used := map[string]map[string]bool{} // module -> package
	for _, f := range src.gos {
		for i, imp := range f.imports() {
			if !foreign(imp, pkgs) {
				continue
			}
			row := moduleOf(imp)
			switch {
			case row == nil:
				t.Errorf("%s: %s is in no row of modules: say who may use it, and why", f.at(f.ast.Imports[i]), imp)
			case len(row.only) == 0 && (!row.tests || !f.test):
				t.Errorf("%s: %s is not used in this project: %s", f.at(f.ast.Imports[i]), imp, row.why)
			case f.test:
			case !slices.Contains(row.only, f.pkg):
				t.Errorf("%s: %s is not for %s: %s", f.at(f.ast.Imports[i]), imp, f.pkg, row.why)
			default:
				if used[row.path] == nil {
					used[row.path] = map[string]bool{}
				}
				used[row.path][f.pkg] = true
			}
		}
	}
	for _, row := range modules {
		for _, pkg := range row.only {
			if !used[row.path][pkg] {
				t.Errorf("modules: stale: %s does not import %s", pkg, row.path)
			}
		}
	}
}

// moduleOf finds the longest row that covers an import.
func moduleOf(imp string) *moduleRule {
	var best *moduleRule
	for i := range modules {
		if covers(modules[i].path+"/...", imp) && (best == nil || len(modules[i].path) > len(best.path)) {
			best = &modules[i]
		}
	}
	return best
}

// TestKept holds packages to what they must not reach, by any way through
// packages of ours.
func TestKept(t *testing.T) {
	src := tree(t)
	pkgs, all := src.packages(), edges(src)
	for _, rule := range kept {
		for _, pkg := range rule.pkgs {
			if !own(pkg, pkgs) {
				t.Errorf("kept: stale: there is no package %s", pkg)
				continue
			}
			seen := map[string]bool{}
			var visit func(p string, way []string)
			visit = func(p string, way []string) {
				if seen[p] {
					return
				}
				seen[p] = true
				way = append(slices.Clone(way), p)
				for imp, where := range all[p] {
					if within(imp, rule.from) {
						t.Errorf("%s: %s reaches %s: %s", where, strings.Join(way, " -> "), imp, rule.why)
					}
					if own(imp, pkgs) {
						visit(imp, way)
					}
				}
			}
			visit(pkg, nil)
		}
	}
}

// TestFilesOfImports holds imports to the files whose names announce them.
func TestFilesOfImports(t *testing.T) {
	for _, f := range tree(t).gos {
		if f.generated || f.test {
			continue
		}
		base := strings.TrimSuffix(path.Base(f.path), ".go")
		raw := strings.HasSuffix(base, "_unsafe") || strings.HasSuffix(base, "_unsafe_linux")
		for i, imp := range f.imports() {
			where := f.at(f.ast.Imports[i])
			switch imp {
			case "unsafe":
				if !raw {
					t.Errorf("%s: unsafe belongs in a file named *_unsafe.go, where a reviewer looks for it", where)
				}
			case "C":
				if !within(f.pkg, cgoPackages) {
					t.Errorf("%s: cgo is for %v only: every other program is static", where, cgoPackages)
				}
			case "golang.org/x/sys/unix":
				if !raw && !strings.HasSuffix(base, "_linux") && !within(f.pkg, linuxPackages) {
					t.Errorf("%s: raw system calls belong in files named *_linux.go", where)
				}
			}
		}
	}
}

// TestCalls holds single functions of the standard library to the packages
// that may call them.
func TestCalls(t *testing.T) {
	src := tree(t)
	used := map[string]bool{}
	for _, f := range src.gos {
		if f.generated {
			continue
		}
		names := importNames(f)
		ast.Inspect(f.ast, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := sel.X.(*ast.Ident)
			if !ok || names[x.Name] == "" {
				return true
			}
			call := names[x.Name] + "." + sel.Sel.Name
			for _, rule := range calls {
				if f.test && !rule.tests || !rule.matches(call) {
					continue
				}
				if i := slices.IndexFunc(rule.only, func(e string) bool { return covers(e, f.pkg) }); i >= 0 {
					used[rule.calls[0]+rule.only[i]] = true
				} else if len(rule.never) == 0 || within(f.pkg, rule.never) {
					t.Errorf("%s: %s: %s", f.at(sel), call, rule.why)
				}
			}
			return true
		})
	}
	for _, rule := range calls {
		for _, pkg := range rule.only {
			if !used[rule.calls[0]+pkg] {
				t.Errorf("calls: stale: %s does not call %s", pkg, strings.Join(rule.calls, ", "))
			}
		}
	}
}

// importNames maps the names a file knows its imports by to their paths.
func importNames(f goFile) map[string]string {
	names := map[string]string{}
	for _, s := range f.ast.Imports {
		p, _ := strconv.Unquote(s.Path.Value)
		name := path.Base(p)
		if s.Name != nil {
			name = s.Name.Name
		}
		names[name] = p
	}
	return names
}
