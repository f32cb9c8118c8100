package apitest

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"

	"cordon/api"
	"cordon/internal/fault"
	"cordon/supervisor/hostpolicy"
)

// Tenant is the tenant that every caller of Start's server speaks for.
const Tenant = "acme"

// Start serves a fake supervisor and a fake store on a socket of its own until
// the test ends, and returns the socket's path. adjust, if not nil, may change
// the configuration.
func Start(t testing.TB, s *Supervisor, adjust func(*api.Config)) string {
	t.Helper()
	cfg := api.Config{
		Supervisor: s,
		Images:     NewStore(),
		Tenants: func(hostpolicy.Peer) []hostpolicy.Tenant {
			return []hostpolicy.Tenant{{Name: Tenant, ImportImages: true}}
		},
		Info: func(context.Context) (api.Info, error) {
			return api.Info{
				Version: "v0.0.0-test", Kernel: "6.1.0", CgroupMode: "v2", Leases: 1,
				Terms: []api.Term{{Letter: "K", Name: "kernel", Given: true, Proof: "seccomp", LeftOver: "the kernel"}},
			}, nil
		},
		Logger: slog.New(slog.DiscardHandler),
	}
	if adjust != nil {
		adjust(&cfg)
	}
	server, err := api.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "run", "s")
	l, err := api.Listen(path, -1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx, l) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return path
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Store is a fake api.ImageService that keeps everything in memory.
type Store struct {
	mu     sync.Mutex
	inputs map[string][]byte // by tenant and digest
	images []api.Image
}

var _ api.ImageService = (*Store)(nil)

// NewStore returns an empty store.
func NewStore() *Store { return &Store{inputs: make(map[string][]byte)} }

// Input returns a stored input.
func (s *Store) Input(tenant, digest string) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inputs[tenant+"/"+digest]
}

// PutInput stores an input.
func (s *Store) PutInput(_ context.Context, tenant string, r io.Reader, _ int64, want string) (string, error) {
	b, err := io.ReadAll(r)
	if err != nil {
		return "", fmt.Errorf("read input: %w", err)
	}
	got := digest(b)
	if want != "" && want != got {
		return "", fault.New(fault.DigestMismatch, "digest", "the content has "+got, "send the file that has it")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inputs[tenant+"/"+got] = b
	return got, nil
}

// ImportImage stores the tar's digest as an image.
func (s *Store) ImportImage(_ context.Context, name string, tar io.Reader) (api.Image, error) {
	b, err := io.ReadAll(tar)
	if err != nil {
		return api.Image{}, fmt.Errorf("read archive: %w", err)
	}
	img := api.Image{Digest: digest(b), Name: name, Bytes: int64(len(b)), Files: 1}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.images = append(s.images, img)
	return img, nil
}

// SnapshotHost tells of three steps, unless ctx ends.
func (s *Store) SnapshotHost(ctx context.Context, progress func(string)) (api.Image, error) {
	for _, step := range []string{"reading", "copying", "checking"} {
		progress(step)
		if ctx.Err() != nil {
			return api.Image{}, context.Cause(ctx)
		}
	}
	return api.Image{Digest: digest(nil), Name: "host"}, nil
}

// Images lists the images.
func (s *Store) Images(context.Context) ([]api.Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.images, nil
}
