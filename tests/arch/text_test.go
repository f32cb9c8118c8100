package arch

import (
	"bytes"
	"go/ast"
	"go/format"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A wordRule is what no text of the tree may contain.
type wordRule struct {
	pattern *regexp.Regexp
	why     string
}

// The words are put together here so that this file does not contain them.
var words = []wordRule{
	{
		regexp.MustCompile(`\b(` + strings.Join([]string{"TO" + "DO", "FIX" + "ME", "X" + "XX:", "HA" + "CK:"}, "|") + `)\b`),
		"do it, or write down in docs/spec.md that it is not done",
	},
	{
		regexp.MustCompile(`(?i)\b(` + strings.Join([]string{
			"proxy" + `\.golang\.org`, "sum" + `\.golang\.org`, "goproxy" + `\.(io|cn)`,
			`(deb|ftp|security|snapshot|archive)` + `\.debian\.org`, "archive" + `\.ubuntu\.com`,
			"registry" + `\.npmjs\.org`, "npmjs" + `\.com`, "pypi" + `\.org`, "crates" + `\.io`,
			"docker" + `\.io`, "quay" + `\.io`, "ghcr" + `\.io`, "gcr" + `\.io`, "vuln" + `\.go\.dev`,
		}, "|") + `)\b`),
		"registries are used through their clients as set up; no host of theirs is named",
	},
	{
		regexp.MustCompile("/work" + `/(main|shared|\.library)\b`),
		"the text names one machine's directories",
	},
	{regexp.MustCompile(`(?m)[ \t]+$`), "white space at the end of a line"},
	{regexp.MustCompile(`(?m)^(<{7}|>{7}) `), "a merge was not finished"},
}

func TestWords(t *testing.T) {
	for _, f := range tree(t).texts {
		for _, rule := range words {
			if at := rule.pattern.FindStringIndex(f.text); at != nil {
				t.Errorf("%s:%d: %q: %s", f.path, lineOf(f.text, at[0]), f.text[at[0]:at[1]], rule.why)
			}
		}
		if f.text != "" && !strings.HasSuffix(f.text, "\n") && path.Base(f.path) != "go.sum" {
			t.Errorf("%s: no newline at the end", f.path)
		}
	}
}

func lineOf(text string, offset int) int { return 1 + strings.Count(text[:offset], "\n") }

// TestErrorText refuses prefixes that say nothing.
func TestErrorText(t *testing.T) {
	empty := []string{"failed to", "unable to", "could not", "couldn't", "can't ", "error "}
	for _, f := range tree(t).gos {
		if f.generated || f.test {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			name, lit := calledName(call), stringOf(call.Args[0])
			if name != "errors.New" && name != "fmt.Errorf" {
				return true
			}
			for _, p := range empty {
				if strings.HasPrefix(strings.ToLower(lit), p) {
					t.Errorf("%s: %q: write \"operation object: cause\"", f.at(call), lit)
				}
			}
			return true
		})
	}
}

// TestSkipsSayWhy wants a reason from each test that skips.
func TestSkipsSayWhy(t *testing.T) {
	for _, f := range tree(t).gos {
		if !f.test {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			bare := sel.Sel.Name == "SkipNow" ||
				(sel.Sel.Name == "Skip" || sel.Sel.Name == "Skipf") && len(call.Args) == 0
			if bare {
				t.Errorf("%s: %s without a reason", f.at(call), sel.Sel.Name)
			}
			return true
		})
	}
}

func calledName(call *ast.CallExpr) string {
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	x, ok := sel.X.(*ast.Ident)
	if !ok {
		return ""
	}
	return x.Name + "." + sel.Sel.Name
}

func stringOf(e ast.Expr) string {
	if lit, ok := e.(*ast.BasicLit); ok {
		return strings.Trim(lit.Value, "\"`")
	}
	return ""
}

func TestFormat(t *testing.T) {
	for _, f := range tree(t).gos {
		want, err := format.Source([]byte(f.text))
		if err != nil {
			t.Errorf("%s: %v", f.path, err)
		} else if !bytes.Equal(want, []byte(f.text)) {
			t.Errorf("%s: not as gofmt writes it", f.path)
		}
	}
}

var (
	testName = regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w*`)
	promise  = regexp.MustCompile(`(?i)test pending`)
)

// TestSpecNamesTests holds docs/spec.md to tests that exist: a promise whose
// test was renamed or removed is no promise.
func TestSpecNamesTests(t *testing.T) {
	src := tree(t)
	i := slices.IndexFunc(src.texts, func(f textFile) bool { return f.path == "docs/spec.md" })
	if i < 0 {
		t.Fatal("docs/spec.md: no such file")
	}
	declared := map[string]bool{}
	for _, f := range src.gos {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test {
				declared[fn.Name.Name] = true
			}
		}
	}
	spec := src.texts[i].text
	named := testName.FindAllStringIndex(spec, -1)
	for _, at := range named {
		if name := spec[at[0]:at[1]]; !declared[name] {
			t.Errorf("docs/spec.md:%d: there is no test %s", lineOf(spec, at[0]), name)
		}
	}
	if len(named) == 0 {
		t.Error("docs/spec.md names no test")
	}
	t.Logf("docs/spec.md names %d tests; %d promises wait for one", len(named), len(promise.FindAllString(spec, -1)))
}

// TestGoMod keeps what changes a build behind its reader's back out of go.mod.
func TestGoMod(t *testing.T) {
	directive := regexp.MustCompile(`(?m)^(toolchain|replace|exclude|tool)\b`)
	for _, f := range tree(t).texts {
		if path.Base(f.path) != "go.mod" {
			continue
		}
		for _, at := range directive.FindAllStringIndex(f.text, -1) {
			word := f.text[at[0]:at[1]]
			if word == "tool" && strings.HasPrefix(f.path, "tools/") {
				continue
			}
			t.Errorf("%s:%d: %s: not in this project [tools are pinned in tools/go.mod]",
				f.path, lineOf(f.text, at[0]), word)
		}
	}
}
