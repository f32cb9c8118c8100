package artifacts

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"cordon/internal/fault"
	"cordon/supervisor/envelope"

	"github.com/google/go-cmp/cmp"
)

func TestAttach(t *testing.T) {
	requireRoot(t)
	s := openStore(t, nil)
	digest := put(t, s, "acme", "hello")
	other := put(t, s, "acme", "world")
	dir, err := s.Attach(t.Context(), "l1", "acme", []envelope.Input{
		{Name: "status", Digest: digest}, {Name: "same", Digest: digest}, {Digest: other},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"status": "hello", "same": "hello", strings.TrimPrefix(other, "sha256:"): "world"}
	got := map[string]string{}
	for _, name := range namesIn(t, dir) {
		got[name] = readFile(t, filepath.Join(dir, name))
		if fi, err := os.Lstat(filepath.Join(dir, name)); err != nil || fi.Mode() != 0o444 {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o555 {
		t.Errorf("directory: %v, %v", fi, err)
	}
	assertAttached(t, s, "l1")
	if _, err := s.Attach(t.Context(), "l1", "acme", []envelope.Input{{Digest: digest}}); fault.CodeOf(err) != fault.Conflict {
		t.Errorf("again: got %v, want conflict", err)
	}
	assertAttached(t, s, "l1")
	for range 2 { // idempotent
		if err := s.Detach("l1"); err != nil {
			t.Error(err)
		}
	}
	assertAttached(t, s)
	if again := put(t, s, "acme", "hello"); again != digest {
		t.Errorf("got %s", again)
	}
}

// TestCheckInputs says without an effect what Attach would refuse.
func TestCheckInputs(t *testing.T) {
	s := openStore(t, nil)
	digest, err := s.PutInput(t.Context(), "acme", 4, "", strings.NewReader("data"))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.CheckInputs("acme", []envelope.Input{{Name: "a", Digest: digest}}); err != nil {
		t.Errorf("an input that is there: %v", err)
	}
	for name, in := range map[string]struct{ tenant, digest string }{
		"another tenant's": {"other", digest},
		"unknown":          {"acme", "sha256:" + strings.Repeat("0", 64)},
		"no digest":        {"acme", "latest"},
		"path as tenant":   {"../acme", digest},
	} {
		err := s.CheckInputs(in.tenant, []envelope.Input{{Digest: in.digest}})
		if fault.CodeOf(err) != fault.UnknownInput {
			t.Errorf("%s: %v, want unknown_input", name, err)
		}
	}
}

func TestAttachWithoutInputs(t *testing.T) {
	requireRoot(t)
	s := openStore(t, nil)
	if dir, err := s.Attach(t.Context(), "l1", "acme", nil); dir != "" || err != nil {
		t.Errorf("got %q, %v", dir, err)
	}
	assertAttached(t, s)
	if err := s.Detach("l1"); err != nil {
		t.Error(err)
	}
}

func TestAttachRefuses(t *testing.T) {
	requireRoot(t)
	s := openStore(t, nil)
	digest := put(t, s, "acme", "hello")
	secret := put(t, s, "other", "secret")
	in := func(in ...envelope.Input) []envelope.Input { return in }
	for _, tt := range []struct {
		name, lease, tenant string
		in                  []envelope.Input
		want                fault.Code
		text                string
	}{
		{"unknown", "l1", "acme", in(envelope.Input{Name: "ok", Digest: digest}, envelope.Input{Digest: "sha256:" + strings.Repeat("0", 64)}), fault.UnknownInput, "filesystem.inputs[1].digest"},
		{"another tenant's", "l1", "acme", in(envelope.Input{Digest: secret}), fault.UnknownInput, secret},
		{"no digest", "l1", "acme", in(envelope.Input{Digest: "x"}), fault.UnknownInput, "filesystem.inputs[0].digest"},
		{"digest that climbs", "l1", "acme", in(envelope.Input{Digest: "sha256:../../../../etc/passwd"}), fault.UnknownInput, "digest"},
		{"name above", "l1", "acme", in(envelope.Input{Name: "..", Digest: digest}), fault.InvalidArgument, "filesystem.inputs[0].name"},
		{"name with a slash", "l1", "acme", in(envelope.Input{Name: "a/b", Digest: digest}), fault.InvalidArgument, "name"},
		{"name too long", "l1", "acme", in(envelope.Input{Name: strings.Repeat("n", 256), Digest: digest}), fault.InvalidArgument, "name"},
		{"same name twice", "l1", "acme", in(envelope.Input{Name: "a", Digest: digest}, envelope.Input{Name: "a", Digest: digest}), fault.InvalidArgument, "two inputs"},
		{"lease above", "..", "acme", in(envelope.Input{Digest: digest}), fault.InvalidArgument, "lease_id"},
		{"lease half-made", newLeasePrefix + "l1", "acme", in(envelope.Input{Digest: digest}), fault.InvalidArgument, "lease_id"},
		{"tenant above", "l1", "../acme", in(envelope.Input{Digest: digest}), fault.InvalidArgument, "tenant"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, err := s.Attach(t.Context(), tt.lease, tt.tenant, tt.in)
			if fault.CodeOf(err) != tt.want || !strings.Contains(err.Error(), tt.text) || dir != "" {
				t.Errorf("got %q, %v; want %s with %q", dir, err, tt.want, tt.text)
			}
			if left := namesIn(t, s.path(inputsDir, leasesDir)); len(left) != 0 {
				t.Errorf("left %v", left)
			}
		})
	}
	for _, id := range []string{"", "..", "a/b", ".new-x"} {
		if err := s.Detach(id); fault.CodeOf(err) != fault.InvalidArgument {
			t.Errorf("detach %q: got %v", id, err)
		}
	}
}

func TestAttachVerifiesContent(t *testing.T) {
	requireRoot(t)
	s := openStore(t, nil)
	digest := put(t, s, "acme", "hello")
	path := s.path(inputsDir, stagedDir, "acme", "sha256-"+strings.TrimPrefix(digest, "sha256:"))
	if err := os.WriteFile(path, []byte("hellO"), 0); err != nil {
		t.Fatal(err)
	}
	_, err := s.Attach(t.Context(), "l1", "acme", []envelope.Input{{Digest: digest}})
	if fault.CodeOf(err) != fault.DigestMismatch || !strings.Contains(err.Error(), digest) {
		t.Errorf("got %v", err)
	}
	if err := errors.Join(os.Remove(path), os.Symlink("/etc/passwd", path)); err != nil {
		t.Fatal(err)
	}
	if dir, err := s.Attach(t.Context(), "l1", "acme", []envelope.Input{{Digest: digest}}); err == nil {
		t.Errorf("a link was followed: %s", dir)
	}
	assertAttached(t, s)
}

// Each digest is read once however many names it has, and counts once.
func TestAttachReadsOnce(t *testing.T) {
	requireRoot(t)
	s := openStore(t, func(c *Config) { c.MaxInputBytes = 8 })
	hello, world := put(t, s, "acme", "hello"), put(t, s, "acme", "world")
	in := make([]envelope.Input, 64)
	for i := range in {
		in[i] = envelope.Input{Name: strings.Repeat("n", i+1), Digest: hello}
	}
	ctx := &countingContext{Context: t.Context()}
	dir, err := s.Attach(ctx, "l1", "acme", in)
	if err != nil {
		t.Fatal(err)
	}
	if got := namesIn(t, dir); len(got) != len(in) {
		t.Errorf("got %d names, want %d", len(got), len(in))
	}
	if ctx.asked > 3 { // the reader asks before each read: the bytes and the end
		t.Errorf("%d reads for one input", ctx.asked)
	}
	_, err = s.Attach(t.Context(), "l2", "acme", []envelope.Input{{Digest: hello}, {Digest: world}})
	if fault.CodeOf(err) != fault.TooLarge || !strings.Contains(err.Error(), "filesystem.inputs[1].digest: inputs up to this one have 10 bytes") {
		t.Errorf("together too large: got %v", err)
	}
	assertAttached(t, s, "l1")
}

// countingContext counts who asks whether it is over.
type countingContext struct {
	context.Context
	asked int
}

func (c *countingContext) Err() error {
	c.asked++
	return c.Context.Err()
}

func TestAttachConcurrently(t *testing.T) {
	requireRoot(t)
	s := openStore(t, nil)
	digest := put(t, s, "acme", "hello")
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for range 8 {
		wg.Go(func() {
			_, err := s.Attach(t.Context(), "l1", "acme", []envelope.Input{{Digest: digest}})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won++
			}
		})
	}
	wg.Wait()
	if won != 1 {
		t.Errorf("%d calls attached the same lease", won)
	}
	assertAttached(t, s, "l1")
}

func assertAttached(t *testing.T, s *Store, want ...string) {
	t.Helper()
	got, err := s.Attached()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("attached (-want +got):\n%s", diff)
	}
}
