package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cordon/api"
	"cordon/api/apitest"
	"cordon/api/client"
	"cordon/supervisor"
)

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func TestPutInput(t *testing.T) {
	store := apitest.NewStore()
	c := connect(t, apitest.NewSupervisor(), func(cfg *api.Config) { cfg.Images = store })
	for _, size := range []int64{0, 1, 64 << 10, 64<<10 + 1, 1 << 20} {
		data, err := io.ReadAll(io.LimitReader(&pattern{}, size))
		if err != nil {
			t.Fatal(err)
		}
		want := client.Input{Digest: digestOf(data), Size: size}
		got, err := c.PutInput(t.Context(), apitest.Tenant, bytes.NewReader(data), size, want.Digest)
		if err != nil || got != want {
			t.Errorf("%d bytes: %+v, %v; want %+v", size, got, err, want)
		}
		if !bytes.Equal(store.Input(apitest.Tenant, want.Digest), data) {
			t.Errorf("%d bytes: other bytes arrived", size)
		}
	}
}

func TestPutInputRefused(t *testing.T) {
	c := connect(t, apitest.NewSupervisor(), func(cfg *api.Config) { cfg.Limits = api.Limits{InputBytes: 1 << 20} })
	boom := errors.New("boom")
	broken := io.MultiReader(strings.NewReader(strings.Repeat("x", 100_000)), readerFunc(func([]byte) (int, error) { return 0, boom }))
	for _, tt := range []struct {
		name   string
		tenant string
		r      io.Reader
		size   int64
		digest string
		code   client.Code
	}{
		{"another tenant", "other", strings.NewReader("x"), 1, "", client.PermissionDenied},
		{"wrong digest", apitest.Tenant, strings.NewReader("x"), 1, digestOf(nil), client.DigestMismatch},
		{"short", apitest.Tenant, strings.NewReader("x"), 2, "", client.InvalidArgument},
		{"long", apitest.Tenant, strings.NewReader("xyz"), 2, "", client.InvalidArgument},
		// Refused at the header, while the rest is still being sent.
		{"too large", apitest.Tenant, &pattern{}, 1<<20 + 1, "", client.TooLarge},
		{"broken reader", apitest.Tenant, broken, 200_000, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := c.PutInput(within(t, 10*time.Second), tt.tenant, tt.r, tt.size, tt.digest)
			if err == nil || client.CodeOf(err) != tt.code {
				t.Errorf("got %v, want code %q", err, tt.code)
			}
			if tt.r == broken && !errors.Is(err, boom) {
				t.Errorf("got %v, want the reader's error", err)
			}
		})
	}
}

func TestImages(t *testing.T) {
	c := connect(t, apitest.NewSupervisor(), nil)
	img, err := c.ImportImage(t.Context(), "base", strings.NewReader("a tar"))
	if err != nil || img.Name != "base" || img.Digest != digestOf([]byte("a tar")) {
		t.Errorf("imported %+v, %v", img, err)
	}
	list, err := c.Images(t.Context())
	if diff := cmp.Diff([]client.Image{img}, list); diff != "" || err != nil {
		t.Errorf("images: %v (-want +got):\n%s", err, diff)
	}
	if os.Getuid() != 0 {
		t.Skip("needs root") // for the rest: nobody else may
	}
	var steps []string
	img, err = c.SnapshotHost(t.Context(), func(s string) { steps = append(steps, s) })
	if err != nil || img.Name != "host" {
		t.Errorf("snapshot %+v, %v", img, err)
	}
	if diff := cmp.Diff([]string{"reading", "copying", "checking"}, steps); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
	if _, err := c.SnapshotHost(t.Context(), nil); err != nil {
		t.Errorf("without progress: %v", err)
	}
}

// liar is a supervisor that claims another size or digest than it sent.
type liar struct {
	*apitest.Supervisor
	change func(*supervisor.Exported)
}

func (l liar) Export(ctx context.Context, caller supervisor.Caller, ref supervisor.Ref, path string,
	begin func(int64) (io.Writer, error),
) (supervisor.Exported, error) {
	got, err := l.Supervisor.Export(ctx, caller, ref, path, begin)
	l.change(&got)
	return got, err
}

func TestExport(t *testing.T) {
	data, err := io.ReadAll(io.LimitReader(&pattern{}, 200_000))
	if err != nil {
		t.Fatal(err)
	}
	fake := apitest.NewSupervisor()
	fake.Files["result"] = data
	service := liar{fake, func(*supervisor.Exported) {}}
	c := connect(t, fake, func(cfg *api.Config) { cfg.Supervisor = &service })
	l := acquire(t, c)
	var out bytes.Buffer
	digest, size, err := l.Export(t.Context(), "result", &out)
	if err != nil || digest != digestOf(data) || size != int64(len(data)) || !bytes.Equal(out.Bytes(), data) {
		t.Errorf("got %s, %d, %v", digest, size, err)
	}
	if _, _, err := l.Export(t.Context(), "other", io.Discard); client.CodeOf(err) != client.NotDeclared {
		t.Errorf("undeclared: %v", err)
	}
	if _, _, err := l.Export(t.Context(), "result", failing{syscall.ENOSPC}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("disk full here: %v", err)
	}
	for name, change := range map[string]func(*supervisor.Exported){
		"digest": func(e *supervisor.Exported) { e.Digest = digestOf(nil) },
		"size":   func(e *supervisor.Exported) { e.Size++ },
	} {
		service.change = change
		if digest, _, err := l.Export(t.Context(), "result", io.Discard); client.CodeOf(err) != client.DigestMismatch || digest != "" {
			t.Errorf("wrong %s: %q, %v; want digest_mismatch", name, digest, err)
		}
	}
}
