package artifacts

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const dpkgPara = "Package: dpkg\nEssential: yes\nStatus: install ok installed\nArchitecture: amd64\n\n"

func TestParseStatus(t *testing.T) {
	db, err := parseStatus(strings.NewReader(dpkgPara + `Package: libc6
Status: install ok installed
Priority: optional
Architecture: amd64
Multi-Arch: same
Conffiles:
 /etc/ld.so.conf.d/x.conf 0123456789abcdef0123456789abcdef
Description: long
 text: with a colon
 .
	tabbed

Package: libc6
Status: install ok triggers-pending
Architecture: i386


Package: removed
Status: deinstall ok config-files
Architecture: amd64

Package: broken
Status: install reinstreq half-installed
Architecture: amd64

Package: mawk
Status: hold ok installed
Priority: required
Architecture: amd64
Pre-Depends: libc6 (>= 2.36)
Provides: awk, other-awk (= 1.0)`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range db.packages {
		got = append(got, p.id())
	}
	if diff := cmp.Diff([]string{"dpkg:amd64", "libc6:amd64", "libc6:i386", "mawk:amd64"}, got); diff != "" {
		t.Errorf("packages (-want +got):\n%s", diff)
	}
	mawk := db.byName["mawk"][0]
	if mawk.priority != "required" || mawk.essential || len(mawk.depends) != 1 || db.native != "amd64" {
		t.Errorf("got %+v, native %s", mawk, db.native)
	}
	if diff := cmp.Diff([]string{"awk", "other-awk"}, mawk.provides); diff != "" {
		t.Errorf("provides (-want +got):\n%s", diff)
	}
}

func TestParseStatusRefuses(t *testing.T) {
	for name, in := range map[string]string{
		"empty":                 "",
		"no dpkg":               "Package: a\nStatus: install ok installed\nArchitecture: all\n",
		"continuation of none":  " text\n" + dpkgPara,
		"no field":              "Package dpkg\n",
		"field twice":           "Package: a\nPackage: b\n",
		"no status":             dpkgPara + "Package: a\nArchitecture: all\n",
		"no architecture":       dpkgPara + "Package: a\nStatus: install ok installed\n",
		"no name":               dpkgPara + "Status: install ok installed\nArchitecture: all\n",
		"name with a slash":     dpkgPara + "Package: ../a\nStatus: install ok installed\nArchitecture: all\n",
		"arch with a slash":     dpkgPara + "Package: a\nStatus: install ok installed\nArchitecture: ../all\n",
		"relation without end":  dpkgPara + "Package: a\nStatus: install ok installed\nArchitecture: all\nDepends: b (>= 1\n",
		"line above the buffer": dpkgPara + "Package: " + strings.Repeat("a", maxStatusLine) + "\n",
	} {
		if db, err := parseStatus(strings.NewReader(in)); err == nil {
			t.Errorf("%s: got %+v", name, db)
		}
	}
}

// para writes one installed package.
func para(name, arch, fields string) string {
	return "Package: " + name + "\nStatus: install ok installed\nArchitecture: " + arch + "\n" + fields + "\n"
}

func TestClosure(t *testing.T) {
	status := dpkgPara +
		para("base", "all", "Essential: yes\nDepends: libfirst | libsecond, libmissing | libsecond\n") +
		para("required", "amd64", "Priority: required\nPre-Depends: virtual\n") +
		para("required", "i386", "Priority: required\n") +
		para("libfirst", "amd64", "") +
		para("libsecond", "amd64", "Depends: base\n") +
		para("provider-b", "amd64", "Provides: virtual\n") +
		para("provider-a", "amd64", "Provides: virtual\nDepends: gone-for-good\n") +
		para("tool", "amd64", "Depends: python3:any (>= 3.9~), lib, init, debconf (>= 0.5) | debconf-2.0\nRecommends: extra\n") +
		para("python3", "amd64", "") +
		para("lib", "i386", "") + para("lib", "amd64", "") +
		para("foreign", "i386", "Depends: lib, shared\n") + para("shared", "all", "") +
		para("init", "amd64", "Essential: yes\nDepends: systemd\n") +
		para("systemd", "amd64", "") +
		para("debconf", "all", "Depends: debconf-deps\n") + para("debconf-deps", "all", "") + para("cdebconf", "amd64", "Provides: debconf-2.0\n") +
		para("extra", "amd64", "") + para("unrelated", "amd64", "")
	db, err := parseStatus(strings.NewReader(status))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range db.closure([]string{"tool", "not-installed", "foreign"}, hostSkip) {
		got = append(got, p.id())
	}
	want := []string{
		"base:all", "dpkg:amd64", "foreign:i386", "lib:amd64", "lib:i386", "libfirst:amd64", "libsecond:amd64",
		"provider-a:amd64", "python3:amd64", "required:amd64", "shared:all", "tool:amd64",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("closure (-want +got):\n%s", diff)
	}
}

func TestParseDiversions(t *testing.T) {
	got, err := parseDiversions(strings.NewReader("/bin/sh\n/bin/sh.distrib\ndash\n/usr/bin/x\n/usr/bin/x.real\n:\n"))
	want := map[string]diversion{"/bin/sh": {"/bin/sh.distrib", "dash"}, "/usr/bin/x": {"/usr/bin/x.real", ":"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(diversion{})); diff != "" || err != nil {
		t.Errorf("diversions (-want +got):\n%s%v", diff, err)
	}
	for _, in := range []string{"/a\n", "/a\n/b\n", "a\n/b\nc\n", "/a\nb\nc\n"} {
		if got, err := parseDiversions(strings.NewReader(in)); err == nil {
			t.Errorf("%q: got %v", in, got)
		}
	}
}

const awkAlternative = `auto
/usr/bin/awk
awk.1.gz
/usr/share/man/man1/awk.1.gz
nawk
/usr/bin/nawk

/usr/bin/gawk
10
/usr/share/man/man1/gawk.1.gz

/bin/mawk
5

/usr/bin/mawk-as-nawk

`

func TestParseAlternative(t *testing.T) {
	got, err := parseAlternative("awk", strings.NewReader(awkAlternative))
	want := alternative{
		links: []altLink{{"awk", "/usr/bin/awk"}, {"awk.1.gz", "/usr/share/man/man1/awk.1.gz"}, {"nawk", "/usr/bin/nawk"}},
		choices: []altChoice{
			{10, []string{"/usr/bin/gawk", "/usr/share/man/man1/gawk.1.gz", ""}},
			{5, []string{"/bin/mawk", "", "/usr/bin/mawk-as-nawk"}},
		},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(alternative{}, altLink{}, altChoice{})); diff != "" || err != nil {
		t.Errorf("alternative (-want +got):\n%s%v", diff, err)
	}
	for name, in := range map[string]string{
		"empty":            "",
		"relative master":  "auto\nusr/bin/awk\n\n",
		"no end":           "auto\n/usr/bin/awk\nnawk\n/usr/bin/nawk\n",
		"relative slave":   "auto\n/usr/bin/awk\nnawk\nnawk\n\n",
		"slave that leads": "auto\n/usr/bin/awk\n../x\n/usr/bin/nawk\n\n",
		"no priority":      "auto\n/usr/bin/awk\n\n/usr/bin/gawk\nhigh\n",
		"cut short":        "auto\n/usr/bin/awk\nnawk\n/usr/bin/nawk\n\n/usr/bin/gawk\n10\n",
	} {
		if got, err := parseAlternative("awk", strings.NewReader(in)); err == nil {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

func TestParseFileList(t *testing.T) {
	var got []string
	err := parseFileList(strings.NewReader("/.\n/usr\n/usr/bin/a b\n"), func(p string) { got = append(got, p) })
	if diff := cmp.Diff([]string{"/usr", "/usr/bin/a b"}, got); diff != "" || err != nil {
		t.Errorf("list (-want +got):\n%s%v", diff, err)
	}
	for _, in := range []string{"usr\n", "/usr/../etc/shadow\n", "/usr//bin\n"} {
		if err := parseFileList(strings.NewReader(in), func(string) {}); err == nil {
			t.Errorf("%q: accepted", in)
		}
	}
}

// FuzzParseStatus: whatever the bytes, no panic, and what comes out is usable
// in a path.
func FuzzParseStatus(f *testing.F) {
	f.Add(dpkgPara + para("a", "all", "Depends: b (>= 1) | c:any, d [amd64]\nProvides: x\n"))
	f.Add(" \n\n:\n")
	f.Fuzz(func(t *testing.T, in string) {
		db, err := parseStatus(strings.NewReader(in))
		if err != nil {
			return
		}
		for _, p := range db.closure(hostPackages, hostSkip) {
			if strings.ContainsAny(p.id(), "/\n\x00") {
				t.Errorf("package id %q", p.id())
			}
		}
	})
}

func FuzzParseAlternative(f *testing.F) {
	f.Add(awkAlternative)
	f.Fuzz(func(t *testing.T, in string) {
		alt, err := parseAlternative("awk", strings.NewReader(in))
		if err != nil {
			return
		}
		for _, c := range alt.choices {
			if len(c.targets) != len(alt.links) {
				t.Errorf("%d targets for %d links", len(c.targets), len(alt.links))
			}
		}
		hostFacts{}.alternativeLinks(alt, func(string) bool { return true })
	})
}
