package artifacts

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestSnapshotRealHost takes the machine's own, twice.
func TestSnapshotRealHost(t *testing.T) {
	requireRoot(t)
	if testing.Short() {
		t.Skip("takes seconds")
	}
	if _, err := os.Stat("/" + dpkgDir + "status"); err != nil {
		t.Skip("needs a Debian host: ", err)
	}
	s := openStore(t, nil)
	start := time.Now()
	info, err := s.SnapshotHost(t.Context(), HostSource{}, func(m string) { t.Log(m) })
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d MiB in %d entries, %v, digest %s", info.Bytes>>20, info.Files, time.Since(start).Round(time.Millisecond), info.Digest)
	if info.Bytes > 400<<20 {
		t.Errorf("image has %d MiB, above 400", info.Bytes>>20)
	}
	again, err := openStore(t, func(c *Config) { c.ImageIDBase = testIDBase + 1<<20 }).SnapshotHost(t.Context(), HostSource{}, nil)
	if err != nil || again.Digest != info.Digest {
		t.Errorf("second snapshot: %+v, %v; want digest %s", again, err, info.Digest)
	}
	reopened, err := Open(s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	start = time.Now()
	img, err := reopened.OpenImage(info.Digest)
	first := time.Since(start)
	if err != nil {
		t.Fatal(err)
	}
	start = time.Now()
	if _, err := reopened.OpenImage(info.Digest); err != nil {
		t.Fatal(err)
	}
	t.Logf("first open %v, second %v", first.Round(time.Millisecond), time.Since(start).Round(time.Microsecond))
	checkRealTree(t, img.Path)
}

// checkRealTree holds a snapshot of the machine against the rules, without
// the code that made it: the tree as it is and dpkg's own file lists.
func checkRealTree(t *testing.T, rootfs string) {
	t.Helper()
	owned := map[string]bool{}
	for _, list := range must(filepath.Glob("/" + dpkgDir + "info/*.list")) {
		for line := range strings.Lines(readFile(t, list)) {
			owned[realDir(strings.TrimSpace(line))] = true
		}
	}
	allowedEtc := regexp.MustCompile(`^/etc/(alternatives(/|$)|ssl/certs(/|$)|(ssl|default)$|` +
		`(passwd|group|hosts|hostname|nsswitch\.conf|resolv\.conf|profile|shells|timezone|localtime|mtab|default/locale)$|` +
		`(ld\.so\.cache|ca-certificates\.conf)$)`)
	tree := listTree(t, rootfs)
	for p, v := range tree {
		p = "/" + p
		if !strings.HasSuffix(strings.Fields(v)[1], "0:0") || strings.ContainsAny(v[:10], "stTpDc") {
			t.Errorf("%s is %s", p, v)
		}
		if regexp.MustCompile(`^/(usr/local|root|home|var|boot|srv|media|mnt|(proc|sys|dev|run|tmp|workspace|inputs)/.)`).MatchString(p) {
			t.Errorf("%s is of a place that no image gets anything of", p)
		}
		fi, err := os.Lstat(rootfs + p)
		if err != nil {
			t.Fatal(err)
		}
		if fi.Mode()&0o022 != 0 && fi.Mode()&fs.ModeSymlink == 0 {
			t.Errorf("%s is writable: %v", p, fi.Mode())
		}
		byName := strings.HasPrefix(p, "/etc/") && allowedEtc.MatchString(p) || p == "/.cordon/init" ||
			strings.HasPrefix(v, "L") && (strings.HasSuffix(v, " /etc/alternatives/"+path.Base(p)) || path.Dir(p) == "/")
		if !fi.IsDir() && !owned[p] && !byName {
			t.Errorf("%s belongs to no package and is not on a list", p)
		}
	}
	for _, p := range []string{
		"usr/bin/bash", "usr/bin/sh", "usr/bin/awk", "usr/bin/ls", "usr/bin/sed", "usr/bin/grep", "usr/bin/tar", "usr/bin/env",
		"usr/bin/perl", "etc/passwd", "etc/os-release", "etc/ld.so.cache", ".cordon/init", "proc", "workspace", "inputs",
	} {
		if tree[p] == "" {
			t.Errorf("%s is missing", p)
		}
	}
	for _, p := range []string{"etc/shadow", "etc/machine-id", "usr/bin/systemctl", "usr/bin/apt", "usr/share/doc", "root"} {
		if tree[p] != "" {
			t.Errorf("%s is there", p)
		}
	}
	if got, host := readFile(t, rootfs+"/etc/passwd"), readFile(t, "/etc/passwd"); got == host {
		t.Error("passwd is the host's")
	}
}

// realDir resolves the directory of an absolute path on this machine, so that
// /bin/ls becomes /usr/bin/ls where /usr is merged.
func realDir(p string) string {
	dir, err := filepath.EvalSymlinks(filepath.Dir(p))
	if err != nil {
		return p
	}
	return fmt.Sprintf("%s/%s", strings.TrimSuffix(dir, "/"), filepath.Base(p))
}
