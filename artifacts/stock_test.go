package artifacts

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cordon/internal/fault"
	"cordon/supervisor/envelope"

	"github.com/google/go-cmp/cmp"
)

func TestPutInputTenantLimit(t *testing.T) {
	requireRoot(t)
	for _, tt := range []struct {
		name  string
		edit  func(*Config)
		field string
	}{
		{"bytes, in blocks", func(c *Config) { c.MaxStagedBytes = 2*blockSize + 1 }, "size: "},
		{"files", func(c *Config) { c.MaxStagedFiles = 2 }, "inputs: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := openStore(t, tt.edit)
			put(t, s, "acme", "a")
			put(t, s, "acme", "b")
			_, err := s.PutInput(t.Context(), "acme", 1, "", strings.NewReader("c"))
			if fault.CodeOf(err) != fault.TooLarge || !strings.Contains(err.Error(), tt.field) {
				t.Errorf("got %v, want too_large of %s", err, tt.field)
			}
			put(t, s, "other", "c") // has its own
		})
	}
}

// Many writers at a time get no more than one after the other.
func TestPutInputLimitHoldsForMany(t *testing.T) {
	requireRoot(t)
	s := openStore(t, func(c *Config) { c.MaxStagedBytes = 8 * blockSize })
	var wg sync.WaitGroup
	var stored atomic.Int64
	for i := range 64 {
		wg.Go(func() {
			body := fmt.Sprintf("%*d", blockSize, i)
			_, err := s.PutInput(t.Context(), "acme", int64(len(body)), "", strings.NewReader(body))
			switch {
			case err == nil:
				stored.Add(1)
			case fault.CodeOf(err) != fault.TooLarge:
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := len(namesIn(t, s.path(inputsDir, stagedDir, "acme"))); n != 8 || stored.Load() != 8 {
		t.Errorf("%d files staged, %d calls succeeded; want 8", n, stored.Load())
	}
}

// What is charged is what is there, through all that happens to an input.
func TestStockFollowsFiles(t *testing.T) {
	requireRoot(t)
	clock := &fakeClock{t: time.Unix(1_700_000_000, 0)}
	s := openStore(t, func(c *Config) { c.StagedTTL, c.Now = time.Hour, clock.now })
	check := func(when string, want map[string]stock) {
		t.Helper()
		if diff := cmp.Diff(want, s.stock, cmp.AllowUnexported(stock{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", when, diff)
		}
	}
	digest := put(t, s, "acme", "hello")
	put(t, s, "acme", "hello")
	put(t, s, "acme", "")
	put(t, s, "other", strings.Repeat("x", blockSize+1))
	all := map[string]stock{"acme": {blockSize, 2}, "other": {2 * blockSize, 1}}
	check("put, and put again", all)
	if _, err := s.Attach(t.Context(), "l1", "acme", []envelope.Input{{Name: "in", Digest: digest}}); err != nil {
		t.Fatal(err)
	}
	put(t, s, "acme", "hello")
	check("put while a lease has it", all)
	again, err := Open(s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.stock, again.stock, cmp.AllowUnexported(stock{})); diff != "" {
		t.Errorf("opened again (-before +after):\n%s", diff)
	}
	clock.t = clock.t.Add(2 * time.Hour)
	if _, err := s.Expire(); err != nil {
		t.Fatal(err)
	}
	check("expired", map[string]stock{"acme": {blockSize, 1}})
	_, err = s.Expire()
	if err := errors.Join(err, s.Detach("l1")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Expire(); err != nil {
		t.Fatal(err)
	}
	check("detached and expired", map[string]stock{})
}

// An input in use is on disk once, however often it is put; an unused one is
// replaced, so that putting it again mends it.
func TestPutInputAgain(t *testing.T) {
	requireRoot(t)
	s := openStore(t, nil)
	digest := put(t, s, "acme", "hello")
	path := s.path(inputsDir, stagedDir, "acme", "sha256-"+strings.TrimPrefix(digest, "sha256:"))
	if err := os.WriteFile(path, []byte("hellO"), 0); err != nil {
		t.Fatal(err)
	}
	put(t, s, "acme", "hello")
	if got := readFile(t, path); got != "hello" {
		t.Errorf("unused: still %q", got)
	}
	before := must(inodeOf(path))
	if _, err := s.Attach(t.Context(), "l1", "acme", []envelope.Input{{Digest: digest}}); err != nil {
		t.Fatal(err)
	}
	put(t, s, "acme", "hello")
	if after := must(inodeOf(path)); after != before {
		t.Errorf("in use: inode %v became %v", before, after)
	}
	assertNothingIncoming(t, s)
}
