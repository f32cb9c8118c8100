package artifacts

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cordon/internal/fault"

	"github.com/google/go-cmp/cmp"
)

func TestConfigChecks(t *testing.T) {
	good := Config{Dir: "/x", ImageIDBase: testIDBase}
	for name, edit := range map[string]func(*Config){
		"relative dir":     func(c *Config) { c.Dir = "state" },
		"no dir":           func(c *Config) { c.Dir = "" },
		"no id base":       func(c *Config) { c.ImageIDBase = 0 },
		"host's ids":       func(c *Config) { c.ImageIDBase = 65535 },
		"ids that wrap":    func(c *Config) { c.ImageIDBase = 1<<32 - 65536 },
		"negative limit":   func(c *Config) { c.MaxImageBytes = -1 },
		"negative count":   func(c *Config) { c.MaxStagedFiles = -1 },
		"store too small":  func(c *Config) { c.MaxStoreBytes = defaultImageBytes },
		"relative program": func(c *Config) { c.UnpackCommand = []string{"cordond"} },
	} {
		c := good
		edit(&c)
		if _, err := Open(c); err == nil || !strings.Contains(err.Error(), "check store config") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestOpenRefusesOpenDirectory(t *testing.T) {
	requireRoot(t)
	for name, spoil := range map[string]func(dir string) error{
		"readable by others": func(d string) error { return errors.Join(os.Mkdir(d, 0o700), os.Chmod(d, 0o755)) },
		"someone else's":     func(d string) error { return errors.Join(os.Mkdir(d, 0o700), os.Chown(d, 1, 1)) },
		"a link":             func(d string) error { return os.Symlink(t.TempDir(), d) },
		"a file":             func(d string) error { return os.WriteFile(d, nil, 0o700) },
	} {
		cfg := Config{Dir: t.TempDir(), ImageIDBase: testIDBase}
		if err := spoil(filepath.Join(cfg.Dir, imagesDir)); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(cfg); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
}

func TestOpenDropsHalfMade(t *testing.T) {
	requireRoot(t)
	s := openStore(t, nil)
	for _, p := range []string{
		s.path(imagesDir, stagingDir, "1", rootfsDir, "etc"), s.path(inputsDir, leasesDir, newLeasePrefix+"l1"),
		s.path(inputsDir, leasesDir, "l2"),
	} {
		if err := os.MkdirAll(p, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(s.path(inputsDir, incomingDir, "9"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := Open(s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	assertOnlyImages(t, again)
	got := append(namesIn(t, s.path(inputsDir, incomingDir)), namesIn(t, s.path(inputsDir, leasesDir))...)
	if diff := cmp.Diff([]string{"l2"}, got); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// importOne stores a small image and reopens the store, as a daemon does that
// starts anew.
func importOne(t *testing.T) (*Store, ImageInfo) {
	t.Helper()
	s := openStore(t, nil)
	info, err := s.ImportImage(t.Context(), "one", bytes.NewReader(tarOf(t, file("usr/bin/tool", "content"))), nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Open(s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	return again, info
}

func TestReopen(t *testing.T) {
	requireRoot(t)
	s, info := importOne(t)
	if diff := cmp.Diff([]ImageInfo{info}, s.List()); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	if got, ok := s.ByName("one"); !ok || got != info {
		t.Errorf("by name: got %+v, %v", got, ok)
	}
	if got, ok := s.ByName("two"); ok {
		t.Errorf("by name: got %+v", got)
	}
	if _, err := s.OpenImage(info.Digest); err != nil {
		t.Error(err)
	}
}

func TestOpenImageUnknown(t *testing.T) {
	requireRoot(t)
	s, _ := importOne(t)
	for _, digest := range []string{"", "one", helloDigest, "sha256:../../etc", strings.ToUpper(helloDigest)} {
		img, err := s.OpenImage(digest)
		if fault.CodeOf(err) != fault.UnknownImage || !strings.Contains(err.Error(), digest) || img.Path != "" {
			t.Errorf("%q: got %+v, %v", digest, img, err)
		}
	}
}

func TestOpenImageTampered(t *testing.T) {
	requireRoot(t)
	for name, tamper := range map[string]func(rootfs string) error{
		"content": func(r string) error {
			tool := filepath.Join(r, "usr/bin/tool")
			fi, err := os.Stat(tool)
			return errors.Join(err, os.WriteFile(tool, []byte("evil..."), 0o644), os.Chtimes(tool, fi.ModTime(), fi.ModTime()))
		},
		"new file":    func(r string) error { return os.WriteFile(filepath.Join(r, "usr/new"), nil, 0o644) },
		"setuid":      func(r string) error { return os.Chmod(filepath.Join(r, "usr/bin/tool"), 0o755|os.ModeSetuid) },
		"link on dev": func(r string) error { return errors.Join(os.Remove(r+"/dev"), os.Symlink("/dev", r+"/dev")) },
	} {
		t.Run(name, func(t *testing.T) {
			s, info := importOne(t)
			rootfs := filepath.Join(s.path(imagesDir), "sha256-"+strings.TrimPrefix(info.Digest, "sha256:"), rootfsDir)
			if err := tamper(rootfs); err != nil {
				t.Fatal(err)
			}
			for range 2 { // and it stays refused
				_, err := s.OpenImage(info.Digest)
				if fault.CodeOf(err) != fault.DigestMismatch || !strings.Contains(err.Error(), info.Digest) {
					t.Errorf("got %v", err)
				}
			}
		})
	}
}

// After the first verification only the top is looked at; that is enough to
// notice an image that was swapped as a whole or had its root touched.
func TestOpenImageCheapCheck(t *testing.T) {
	requireRoot(t)
	s, info := importOne(t)
	img, err := s.OpenImage(info.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(img.Path, "new"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := s.OpenImage(info.Digest); fault.CodeOf(err) != fault.DigestMismatch {
		t.Errorf("got %v", err)
	}
}

func TestOpenImageConcurrently(t *testing.T) {
	requireRoot(t)
	s, info := importOne(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := s.OpenImage(info.Digest); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestOpenBrokenManifest(t *testing.T) {
	requireRoot(t)
	for name, text := range map[string]string{
		"no json":       "hello",
		"unknown field": `{"schema":"cordon.image/v1","digest":"` + helloDigest + `","trust":true}`,
		"other schema":  `{"schema":"cordon.image/v2","digest":"` + helloDigest + `"}`,
		"other digest":  `{"schema":"cordon.image/v1","digest":"` + helloDigest + `"}`,
	} {
		s, info := importOne(t)
		digits, _ := digestHex(info.Digest)
		if err := os.WriteFile(s.path(imagesDir, dirOf(digits), manifestFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(s.cfg); err == nil || !strings.Contains(err.Error(), dirOf(digits)) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestListOrder(t *testing.T) {
	requireRoot(t)
	clock := &fakeClock{t: time.Unix(1_700_000_000, 0)}
	s := openStore(t, func(c *Config) { c.Now = clock.now })
	for _, name := range []string{"zebra", "ant"} {
		if _, err := s.ImportImage(t.Context(), name, bytes.NewReader(tarOf(t, file(name, ""))), nil); err != nil {
			t.Fatal(err)
		}
		clock.t = clock.t.Add(time.Minute)
	}
	var got []string
	for _, info := range s.List() {
		got = append(got, info.Name+" "+info.Created.Format(time.RFC3339))
	}
	if diff := cmp.Diff([]string{"zebra 2023-11-14T22:13:20Z", "ant 2023-11-14T22:14:20Z"}, got); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
}
