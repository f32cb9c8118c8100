package artifacts

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"cordon/internal/fault"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestSnapshotMadeUpHost(t *testing.T) {
	requireRoot(t)
	h := debian(t)
	s := openStore(t, nil)
	var said []string
	info, err := s.SnapshotHost(t.Context(), HostSource{Root: h.root, Packages: []string{"mawk", "ca-certificates", "dash", "posh"}},
		func(m string) { said = append(said, m) })
	if err != nil {
		t.Fatal(err)
	}
	img, err := s.OpenImage(info.Digest)
	if err != nil {
		t.Fatal(err)
	}
	got := listTree(t, img.Path)
	synthetic := map[string]bool{}
	for name := range syntheticFiles() {
		synthetic[name] = true
	}
	for p, v := range got { // what every image has, and plain directories, are other tests' matter
		if synthetic[p] || v == "drwxr-xr-x 0:0" {
			delete(got, p)
		}
	}
	const x, f = "-rwxr-xr-x 0:0", "-rw-r--r-- 0:0"
	want := map[string]string{
		"bin": "Lrwxrwxrwx 0:0 usr/bin", "lib": "Lrwxrwxrwx 0:0 usr/lib",
		"usr/bin/dpkg": f, "usr/bin/ls": f, "usr/bin/su": x, "usr/bin/group": x, "usr/bin/hard1": f, "usr/bin/hard2": f,
		"usr/bin/link":       "Lrwxrwxrwx 0:0 ../lib/nowhere",
		"usr/lib/os-release": f, "usr/lib/libc.so.6": f, "opt/coreutils": f,
		"usr/bin/mawk": f, "usr/bin/awk": "Lrwxrwxrwx 0:0 /etc/alternatives/awk",
		"usr/bin/sh": f, "usr/bin/sh.distrib": f, "usr/bin/dash": f, "usr/bin/tool": f,
		"usr/share/ca-certificates/m/A.crt": f,
		"etc/alternatives/awk":              "Lrwxrwxrwx 0:0 /usr/bin/mawk",
		"etc/debian_version":                f, "etc/os-release": "Lrwxrwxrwx 0:0 ../usr/lib/os-release",
		"etc/ld.so.cache": f, "etc/ld.so.conf.d/a.conf": f, "etc/mtab": "Lrwxrwxrwx 0:0 ../proc/self/mounts",
		"etc/ca-certificates.conf": f, "etc/ssl/certs/ca-certificates.crt": f,
		"etc/ssl/certs/A.pem": "Lrwxrwxrwx 0:0 /usr/share/ca-certificates/m/A.crt", "etc/ssl/certs/00000000.0": "Lrwxrwxrwx 0:0 A.pem",
		".cordon/init": "-r-xr-xr-x 0:0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
	for p, want := range map[string]string{
		"usr/bin/sh": "dash as sh", "usr/bin/sh.distrib": "posh as sh",
		"usr/bin/tool": "tool of posh, diverted by a package that is not in the image", "usr/bin/hard2": "hard",
	} {
		if got := readFile(t, filepath.Join(img.Path, p)); got != want {
			t.Errorf("%s holds %q, want %q", p, got, want)
		}
	}
	var a, b unix.Stat_t
	if err := errors.Join(unix.Lstat(img.Path+"/usr/bin/hard1", &a), unix.Lstat(img.Path+"/usr/bin/hard2", &b)); err != nil || a.Ino != b.Ino || a.Mtim.Sec != 1000 {
		t.Errorf("hard link: %v, %d and %d, time %d", err, a.Ino, b.Ino, a.Mtim.Sec)
	}
	if _, err := os.Lstat(img.Path + "/usr/lib/empty"); err != nil {
		t.Error(err)
	}
	if want := "left out: 2 files not there, 2 not readable by everyone, 1 of other types"; !strings.Contains(strings.Join(said, "\n"), want) {
		t.Errorf("progress %q lacks %q", said, want)
	}
	passwd := readFile(t, filepath.Join(img.Path, "etc/passwd"))
	if !regexp.MustCompile(`(?m)^root:x:0:0:`).MatchString(passwd) || strings.Contains(passwd, "secret") {
		t.Errorf("passwd is %q", passwd)
	}
	assertOnlyImages(t, s, info)
}

func TestSnapshotIsMadeOnce(t *testing.T) {
	requireRoot(t)
	h := debian(t)
	s := openStore(t, nil)
	src := HostSource{Root: h.root, Packages: []string{"mawk"}}
	var wg sync.WaitGroup
	var mu sync.Mutex
	infos, copies := map[ImageInfo]bool{}, 0
	for range 4 {
		wg.Go(func() {
			info, err := s.SnapshotHost(t.Context(), src, func(m string) {
				mu.Lock()
				defer mu.Unlock()
				if m == "reading the package database" {
					copies++
				}
			})
			mu.Lock()
			defer mu.Unlock()
			if infos[info] = true; err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(infos) != 1 || copies != 1 {
		t.Errorf("%d copies made %v", copies, infos)
	}
	h.put("usr/bin/mawk", "newer") // the one there is stays
	again, err := s.SnapshotHost(t.Context(), src, nil)
	if err != nil || !infos[again] {
		t.Errorf("got %+v, %v", again, err)
	}
	other, err := openStore(t, nil).SnapshotHost(t.Context(), src, nil)
	if err != nil || other.Digest == again.Digest {
		t.Errorf("a changed host gave %+v, %v", other, err)
	}
}

func TestSnapshotRefuses(t *testing.T) {
	requireRoot(t)
	for _, tt := range []struct {
		name  string
		spoil func(h fakeHost)
		edit  func(c *Config)
		want  fault.Code
		text  string
	}{
		{"no database", func(h fakeHost) { h.check(os.RemoveAll(filepath.Join(h.root, "var"))) }, nil, fault.MissingFeature, "package database"},
		{"broken database", func(h fakeHost) { h.put(dpkgDir+"status", "hello\n") }, nil, "", "parse package status"},
		{"no file list", func(h fakeHost) { h.check(os.Remove(filepath.Join(h.root, dpkgDir, "info/libc6.list"))) }, nil, "", "files of package libc6"},
		{"list that climbs", func(h fakeHost) { h.put(dpkgDir+"info/libc6.list", "/usr/../root/.bashrc\n") }, nil, "", "parse file list"},
		{"odd merge", func(h fakeHost) {
			h.check(os.Remove(filepath.Join(h.root, "bin")))
			h.put("bin", "-> /opt/bin")
		}, nil, "", "/bin is a link"},
		{"too many files", func(fakeHost) {}, func(c *Config) { c.MaxImageFiles = 10 }, fault.TooLarge, "10 entries"},
		{"too many bytes", func(fakeHost) {}, func(c *Config) { c.MaxImageBytes = 10 }, fault.TooLarge, "10 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := debian(t)
			tt.spoil(h)
			s := openStore(t, tt.edit)
			info, err := s.SnapshotHost(t.Context(), HostSource{Root: h.root}, nil)
			if err == nil || fault.CodeOf(err) != tt.want || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %+v, %v; want %q with %q", info, err, tt.want, tt.text)
			}
			assertOnlyImages(t, s)
		})
	}
}

// Changes during the snapshot, made from its own progress calls.
func TestSnapshotSeesChanges(t *testing.T) {
	requireRoot(t)
	h := debian(t)
	s := openStore(t, nil)
	_, err := s.SnapshotHost(t.Context(), HostSource{Root: h.root}, func(m string) {
		if strings.HasPrefix(m, "copied 0 of") {
			h.pkg("new", "", "/usr/bin/new")
		}
	})
	if fault.CodeOf(err) != fault.WrongState || !strings.Contains(err.Error(), "package database") {
		t.Errorf("got %v", err)
	}
	assertOnlyImages(t, s)
}

func TestCopierSeesChanges(t *testing.T) {
	requireRoot(t)
	for name, change := range map[string]func(p string) error{
		"grown":    func(p string) error { return os.WriteFile(p, []byte("longer than before"), 0o644) },
		"touched":  func(p string) error { return os.Chtimes(p, time.Unix(2000, 0), time.Unix(2000, 0)) },
		"replaced": func(p string) error { return errors.Join(os.Rename(p, p+"2"), os.WriteFile(p, []byte("ls"), 0o644)) },
	} {
		h := debian(t)
		host, err := openDir(h.root)
		if err != nil {
			t.Fatal(err)
		}
		defer host.Close()
		out, err := os.OpenRoot(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		c := newHostCopier(t.Context(), host, out, testIDBase, (&Config{MaxImageBytes: 1 << 20, MaxImageFiles: 100}).limits())
		var st unix.Stat_t
		if err := unix.Lstat(h.root+"/usr/bin/ls", &st); err != nil {
			t.Fatal(err)
		}
		if err := change(h.root + "/usr/bin/ls"); err != nil {
			t.Fatal(err)
		}
		err = c.file(hostItem{src: "usr/bin/ls", dst: "usr/bin/ls"}, &st)
		if fault.CodeOf(err) != fault.WrongState || !strings.Contains(err.Error(), "/usr/bin/ls changed") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestSnapshotCancelled(t *testing.T) {
	requireRoot(t)
	h := debian(t)
	s := openStore(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := s.SnapshotHost(ctx, HostSource{Root: h.root}, func(m string) {
		if strings.HasPrefix(m, "copied 0 of") {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	assertOnlyImages(t, s)
	if _, err := s.SnapshotHost(t.Context(), HostSource{Root: h.root}, nil); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// A tree that leaves by another program's tar and comes back is the same.
func TestSnapshotThroughTar(t *testing.T) {
	requireRoot(t)
	s := openStore(t, nil)
	info, err := s.SnapshotHost(t.Context(), HostSource{Root: debian(t).root, Packages: []string{"mawk"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	img, err := s.OpenImage(info.Digest)
	if err != nil {
		t.Fatal(err)
	}
	archive, err := exec.Command("tar", "-C", img.Path, "--owner=0", "--group=0", "-czf", "-", ".").Output()
	if err != nil {
		t.Skip("needs tar: ", err)
	}
	back, err := openStore(t, nil).ImportImage(t.Context(), "back", bytes.NewReader(archive), nil)
	if err != nil || back.Digest != info.Digest {
		t.Errorf("got %+v, %v; want digest %s", back, err, info.Digest)
	}
}
