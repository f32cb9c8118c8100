package arch

import (
	"go/ast"
	"go/token"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	fileSoft = 350 // lines; more is reported
	fileCap  = 600
	funcCap  = 80
)

// longFunctions may be longer than the cap: "package name" -> why.
var longFunctions = map[string]string{}

func TestPackageComments(t *testing.T) {
	src := tree(t)
	comments := map[string][]string{}
	for _, f := range src.gos {
		if f.ast.Doc == nil || f.generated {
			continue
		}
		comments[f.pkg] = append(comments[f.pkg], f.path)
		text, want := f.ast.Doc.Text(), "Package "+f.ast.Name.Name+" "
		if f.ast.Name.Name == "main" {
			want = "Command " + path.Base(f.pkg) + " "
		}
		if !strings.HasPrefix(text, want) {
			t.Errorf("%s: the package comment does not begin with %q", f.path, want)
		}
		if len(strings.Fields(text)) < 25 {
			t.Errorf("%s: the package comment is too short to say job, privilege, owner, concurrency and what is elsewhere", f.path)
		}
	}
	for _, pkg := range src.packages() {
		if generatedOnly(src, pkg) {
			continue
		}
		if n := len(comments[pkg]); n != 1 {
			t.Errorf("%s: %d package comments, want exactly one: %v", pkg, n, comments[pkg])
		}
	}
}

// generatedOnly reports whether no one writes in pkg: its source, a .proto
// file, carries the comment.
func generatedOnly(src source, pkg string) bool {
	return !slices.ContainsFunc(src.gos, func(f goFile) bool { return f.pkg == pkg && !f.generated })
}

func TestFileLength(t *testing.T) {
	for _, f := range tree(t).gos {
		n := strings.Count(f.text, "\n")
		switch {
		case f.generated:
		case n > fileCap:
			t.Errorf("%s: %d lines, more than %d: it does two things", f.path, n, fileCap)
		case n > fileSoft:
			t.Logf("%s: %d lines, more than %d", f.path, n, fileSoft)
		}
	}
}

func TestFunctionLength(t *testing.T) {
	used := map[string]bool{}
	for _, f := range tree(t).gos {
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || f.generated {
				continue
			}
			n := f.lines(fn) - tableLines(f, fn)
			if n <= funcCap {
				continue
			}
			name := f.pkg + " " + fn.Name.Name
			used[name] = true
			if longFunctions[name] == "" {
				t.Errorf("%s: %s has %d lines beside its tables, more than %d", f.at(fn), fn.Name.Name, n, funcCap)
			}
		}
	}
	for name := range maps.Keys(longFunctions) {
		if !used[name] {
			t.Errorf("longFunctions: stale: %s", name)
		}
	}
}

// tableLines is how much of a function is the rows of tables: list and map
// literals that are not inside of another.
func tableLines(f goFile, fn *ast.FuncDecl) int {
	total := 0
	ast.Inspect(fn, func(n ast.Node) bool {
		lit, ok := n.(*ast.CompositeLit)
		if !ok {
			return true
		}
		switch lit.Type.(type) {
		case *ast.ArrayType, *ast.MapType:
			total += f.lines(lit) - 1
			return false
		}
		return true
	})
	return total
}

func TestNoInit(t *testing.T) {
	for _, f := range tree(t).gos {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" && !f.generated {
				t.Errorf("%s: init: what must happen at start is called from main", f.at(fn))
			}
		}
	}
}

// TestGlobals lets package-level variables be constants that Go cannot write:
// sentinels, tables, compiled patterns, embedded files, assertions. Nothing
// may assign to one.
func TestGlobals(t *testing.T) {
	names := map[string]map[string]bool{} // package -> its variables
	for _, f := range tree(t).gos {
		if f.generated {
			continue
		}
		for _, d := range f.ast.Decls {
			gen, ok := d.(*ast.GenDecl)
			if !ok || gen.Tok != token.VAR {
				continue
			}
			for _, s := range gen.Specs {
				spec := s.(*ast.ValueSpec)
				for i, name := range spec.Names {
					if names[f.pkg] == nil {
						names[f.pkg] = map[string]bool{}
					}
					names[f.pkg][name.Name] = name.Name != "_"
					if !fixed(f, gen, spec, i) {
						t.Errorf("%s: var %s: package-level state; put it in a struct that New returns", f.at(name), name.Name)
					}
				}
			}
		}
	}
	for _, f := range tree(t).gos {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && !f.generated {
				reportWrites(t, f, fn, names[f.pkg])
			}
		}
	}
}

// fixed reports whether the i-th variable of a declaration is one of the
// constants that Go cannot write: it has its value from the start, and not an
// empty one to fill.
func fixed(f goFile, gen *ast.GenDecl, spec *ast.ValueSpec, i int) bool {
	if spec.Names[i].Name == "_" || embeds(gen.Doc) || embeds(spec.Doc) {
		return true
	}
	if len(spec.Values) == 0 {
		// The linker writes it: -X main.version.
		return f.ast.Name.Name == "main" && spec.Names[i].Name == "version"
	}
	if call, ok := spec.Values[min(i, len(spec.Values)-1)].(*ast.CallExpr); ok && !f.test {
		id, _ := call.Fun.(*ast.Ident)
		builtin := id != nil && (id.Name == "make" || id.Name == "new")
		return !builtin && !strings.HasPrefix(calledName(call), "sync.")
	}
	return true
}

func embeds(doc *ast.CommentGroup) bool {
	return doc != nil && slices.ContainsFunc(doc.List, func(c *ast.Comment) bool {
		return strings.HasPrefix(c.Text, "//go:embed ")
	})
}

// reportWrites fails on assignments of fn to package-level variables. It knows
// no types: a name that fn declares anywhere counts as its own.
func reportWrites(t *testing.T, f goFile, fn *ast.FuncDecl, globals map[string]bool) {
	local := map[string]bool{}
	ast.Inspect(fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			for _, name := range n.Names {
				local[name.Name] = true
			}
		case *ast.ValueSpec:
			for _, name := range n.Names {
				local[name.Name] = true
			}
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				for _, e := range n.Lhs {
					local[base(e)] = true
				}
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				local[base(n.Key)], local[base(n.Value)] = true, true
			}
		}
		return true
	})
	written := func(e ast.Expr) {
		if name := base(e); globals[name] && !local[name] {
			t.Errorf("%s: %s writes the package-level %s", f.at(e), fn.Name.Name, name)
		}
	}
	ast.Inspect(fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				for _, e := range n.Lhs {
					written(e)
				}
			}
		case *ast.IncDecStmt:
			written(n.X)
		}
		return true
	})
}

// base is the variable that an expression on the left of an assignment
// changes: x of x, x.f, x[i] and *x.
func base(e ast.Expr) string {
	for {
		switch v := e.(type) {
		case *ast.Ident:
			return v.Name
		case *ast.SelectorExpr:
			e = v.X
		case *ast.IndexExpr:
			e = v.X
		case *ast.StarExpr:
			e = v.X
		case *ast.ParenExpr:
			e = v.X
		default:
			return ""
		}
	}
}

var optionName = regexp.MustCompile(`^With[A-Z]`)

// TestNoFunctionalOptions finds functions With... that return a function.
func TestNoFunctionalOptions(t *testing.T) {
	for _, f := range tree(t).gos {
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || f.generated || fn.Recv != nil || !optionName.MatchString(fn.Name.Name) {
				continue
			}
			if r := fn.Type.Results; r != nil && len(r.List) == 1 {
				if id, ok := r.List[0].Type.(*ast.Ident); ok && strings.HasSuffix(id.Name, "Option") {
					t.Errorf("%s: %s: options are a Config struct", f.at(fn), fn.Name.Name)
				}
			}
		}
	}
}

// TestPackageNames refuses names that say nothing.
func TestPackageNames(t *testing.T) {
	empty := []string{"util", "utils", "common", "helper", "helpers", "types", "manager", "misc", "base"}
	for _, pkg := range tree(t).packages() {
		if slices.Contains(empty, path.Base(pkg)) {
			t.Errorf("%s: the name says nothing about what is in it", pkg)
		}
		if strings.Count(pkg, "/") > 1 {
			t.Errorf("%s: deeper than two levels", pkg)
		}
	}
}
