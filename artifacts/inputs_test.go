package artifacts

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cordon/internal/fault"
	"cordon/supervisor/envelope"

	"golang.org/x/sys/unix"
)

func put(t *testing.T, s *Store, tenant, body string) string {
	t.Helper()
	digest, err := s.PutInput(t.Context(), tenant, int64(len(body)), "", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return digest
}

func TestPutInput(t *testing.T) {
	requireRoot(t)
	s := openStore(t, nil)
	if got := put(t, s, "acme", "hello"); got != helloDigest {
		t.Errorf("got %s", got)
	}
	got, err := s.PutInput(t.Context(), "acme", 5, helloDigest, strings.NewReader("hello"))
	if err != nil || got != helloDigest {
		t.Errorf("again, with the digest: got %s, %v", got, err)
	}
	path := s.path(inputsDir, stagedDir, "acme", "sha256-"+strings.TrimPrefix(helloDigest, "sha256:"))
	fi, err := os.Lstat(path)
	if err != nil || fi.Mode() != 0o444 || readFile(t, path) != "hello" {
		t.Errorf("staged file: %v, %v", fi, err)
	}
	if put(t, s, "acme", "") == "" {
		t.Error("an empty input has no digest")
	}
	assertNothingIncoming(t, s)
}

func TestPutInputRefuses(t *testing.T) {
	requireRoot(t)
	gone := errors.New("client gone")
	for _, tt := range []struct {
		name, tenant, digest string
		size                 int64
		r                    io.Reader
		want                 fault.Code
		text                 string
	}{
		{"too short", "acme", "", 6, strings.NewReader("hello"), fault.InvalidArgument, "ended after 5 of 6"},
		{"too long", "acme", "", 4, strings.NewReader("hello"), fault.InvalidArgument, "longer than the 4"},
		{"other digest", "acme", "sha256:" + strings.Repeat("0", 64), 5, strings.NewReader("hello"), fault.DigestMismatch, helloDigest + ", not sha256:000"},
		{"no digest", "acme", "md5:1", 5, strings.NewReader("hello"), fault.InvalidArgument, "is not a digest"},
		{"negative", "acme", "", -1, strings.NewReader(""), fault.InvalidArgument, "negative"},
		{"above the limit", "acme", "", 101, strings.NewReader(""), fault.TooLarge, "above the limit of 100"},
		{"client gone", "acme", "", 10, io.MultiReader(strings.NewReader("hello"), errReader{gone}), "", "client gone"},
		{"client gone at the end", "acme", "", 5, io.MultiReader(strings.NewReader("hello"), errReader{gone}), "", "client gone"},
		{"no tenant", "", "", 0, strings.NewReader(""), fault.InvalidArgument, "tenant"},
		{"tenant above", "..", "", 0, strings.NewReader(""), fault.InvalidArgument, "tenant"},
		{"tenant with a slash", "a/b", "", 0, strings.NewReader(""), fault.InvalidArgument, "tenant"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := openStore(t, func(c *Config) { c.MaxInputBytes = 100 })
			_, err := s.PutInput(t.Context(), tt.tenant, tt.size, tt.digest, tt.r)
			if err == nil || fault.CodeOf(err) != tt.want || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %q with %q", err, tt.want, tt.text)
			}
			assertNothingIncoming(t, s)
			if left := namesIn(t, s.path(inputsDir, stagedDir)); len(left) != 0 {
				t.Errorf("left %v", left)
			}
			if len(s.stock) != 0 {
				t.Errorf("still charged: %v", s.stock)
			}
		})
	}
}

// A real full file system: a small tmpfs of our own.
func TestPutInputDiskFull(t *testing.T) {
	requireRoot(t)
	small := t.TempDir()
	if err := unix.Mount("cordon-test", small, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("needs tmpfs: %v", err)
	}
	defer func() {
		if err := unix.Unmount(small, 0); err != nil {
			t.Error(err)
		}
	}()
	s := openStore(t, func(c *Config) { c.Dir = small })
	_, err := s.PutInput(t.Context(), "acme", 4<<20, "", io.LimitReader(zeros{}, 4<<20))
	if fault.CodeOf(err) != fault.DiskFull {
		t.Errorf("input: got %v, want disk_full", err)
	}
	assertNothingIncoming(t, s)
	_, err = s.ImportImage(t.Context(), "big", bytes.NewReader(tarOf(t, file("a", strings.Repeat("x", 2<<20)))), nil)
	if fault.CodeOf(err) != fault.DiskFull {
		t.Errorf("image: got %v, want disk_full", err)
	}
	assertOnlyImages(t, s)
	put(t, s, "acme", "hello") // and there is room again
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestExpire(t *testing.T) {
	requireRoot(t)
	clock := &fakeClock{t: time.Unix(1_700_000_000, 0)}
	s := openStore(t, func(c *Config) { c.StagedTTL, c.Now = time.Hour, clock.now })
	expire := func(want int) {
		t.Helper()
		if n, err := s.Expire(); n != want || err != nil {
			t.Errorf("expired %d, %v; want %d", n, err, want)
		}
	}
	used := put(t, s, "acme", "used")
	renewed := put(t, s, "acme", "renewed")
	put(t, s, "acme", "forgotten")
	put(t, s, "other", "forgotten")
	if _, err := s.Attach(t.Context(), "l1", "acme", []envelope.Input{{Digest: used}}); err != nil {
		t.Fatal(err)
	}
	clock.t = clock.t.Add(59 * time.Minute)
	expire(0)
	put(t, s, "acme", "renewed")
	clock.t = clock.t.Add(2 * time.Minute)
	expire(2)
	for digest, want := range map[string]bool{used: true, renewed: true} {
		_, err := s.Attach(t.Context(), "l-"+digest[7:], "acme", []envelope.Input{{Digest: digest}})
		if got := err == nil; got != want {
			t.Errorf("%s: attached %v, %v", digest, got, err)
		}
	}
	if err := errors.Join(s.Detach("l1"), s.Detach("l-"+used[7:]), s.Detach("l-"+renewed[7:])); err != nil {
		t.Fatal(err)
	}
	expire(0) // attaching it started its time anew
	clock.t = clock.t.Add(2 * time.Hour)
	expire(2)
	if left := namesIn(t, s.path(inputsDir, stagedDir, "acme")); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}

// The point of the store: only the daemon gets at what is in it by path.
func TestStoreIsPrivate(t *testing.T) {
	requireRoot(t)
	s := openStore(t, nil)
	put(t, s, "acme", "hello")
	for _, dir := range []string{filepath.Dir(s.cfg.Dir), s.cfg.Dir} { // let the stranger get this far
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{s.path(imagesDir), s.path(inputsDir), s.path(inputsDir, stagedDir, "acme")} {
		cmd := exec.Command("/bin/ls", p)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: stranger()}
		if out, err := cmd.CombinedOutput(); err == nil {
			t.Errorf("uid 65534 can list %s: %s", p, out)
		}
	}
	cmd := exec.Command("/bin/ls", "-d", s.cfg.Dir) // the check itself works
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: stranger()}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("uid 65534 cannot even see the state directory: %s", out)
	}
}

func assertNothingIncoming(t *testing.T, s *Store) {
	t.Helper()
	if left := namesIn(t, s.path(inputsDir, incomingDir)); len(left) != 0 {
		t.Errorf("incoming holds %v", left)
	}
}
