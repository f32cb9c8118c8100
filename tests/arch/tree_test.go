package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "cordon"

// textFile is a file of the tree that people write or read.
type textFile struct {
	path string // slash-separated, from the root
	text string
}

// goFile is a Go file of the main module.
type goFile struct {
	textFile
	pkg       string // directory, from the root
	test      bool   // a test, or what only tests use
	generated bool
	fset      *token.FileSet
	ast       *ast.File
}

// imports lists the file's import paths; those of this module without its
// name, so that "cordon/jail" is "jail".
func (f goFile) imports() []string {
	var list []string
	for _, s := range f.ast.Imports {
		p, _ := strconv.Unquote(s.Path.Value) // the parser has checked it
		list = append(list, strings.TrimPrefix(p, module+"/"))
	}
	return list
}

// at says where n is.
func (f goFile) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", f.path, f.fset.Position(n.Pos()).Line)
}

// lines is the number of lines that n takes.
func (f goFile) lines(n ast.Node) int {
	return f.fset.Position(n.End()).Line - f.fset.Position(n.Pos()).Line + 1
}

type source struct {
	texts []textFile
	gos   []goFile
}

// packages lists the directories that hold Go files other than tests, and
// those that hold tests only.
func (s source) packages() []string {
	var list []string
	for _, f := range s.gos {
		list = append(list, f.pkg)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// load reads the tree once for all tests.
var load = sync.OnceValues(func() (source, error) {
	root, err := findRoot()
	if err != nil {
		return source{}, err
	}
	var src source
	err = filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if slices.Contains([]string{".git", "bin", "dist"}, rel) {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || !isText(rel) {
			return nil
		}
		return src.add(name, rel)
	})
	return src, err
})

func (s *source) add(name, rel string) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	tf := textFile{path: rel, text: string(text)}
	s.texts = append(s.texts, tf)
	// tools is modules of its own; a file that no build takes is a generator,
	// run by `go run`, and no part of the package beside it.
	if path.Ext(rel) != ".go" || strings.HasPrefix(rel, "tools/") ||
		strings.HasPrefix(tf.text, "//go:build ignore\n") {
		return nil
	}
	f := goFile{
		textFile: tf, pkg: path.Dir(rel), fset: token.NewFileSet(),
		test: strings.HasSuffix(rel, "_test.go") || strings.HasPrefix(rel, "tests/"),
	}
	f.ast, err = parser.ParseFile(f.fset, rel, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	f.generated = ast.IsGenerated(f.ast)
	s.gos = append(s.gos, f)
	return nil
}

// binary is what nobody reads, and data that tests must have as it is.
var binary = regexp.MustCompile(`\.(o|png|gz|tar|zst|bin|test|prof|out|swp)$|(^|/)testdata/`)

func isText(rel string) bool { return !binary.MatchString(rel) }

// findRoot goes up to the directory that holds this module's go.mod.
func findRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module "+module+"\n") {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("find the module's root: no go.mod of %s above", module)
		}
		dir = up
	}
}

// tree returns the whole source, or ends the test.
func tree(t *testing.T) source {
	t.Helper()
	src, err := load()
	if err != nil {
		t.Fatal(err)
	}
	if len(src.gos) < 10 {
		t.Fatalf("read %d Go files: the tests look in the wrong place", len(src.gos))
	}
	return src
}

// within reports whether pkg is one of the list: an exact name, or all below
// a name that ends in "/...".
func within(pkg string, list []string) bool {
	return slices.ContainsFunc(list, func(e string) bool { return covers(e, pkg) })
}

func covers(entry, pkg string) bool {
	base, all := strings.CutSuffix(entry, "/...")
	return pkg == base || all && strings.HasPrefix(pkg, base+"/")
}
