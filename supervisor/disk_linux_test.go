package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"cordon/internal/fault"
)

// TestRealDiskFull fills a small file system under a running supervisor: at
// some moment an Acquire or a Release meets the end of it, and then again.
func TestRealDiskFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m,mode=700"); err != nil {
		t.Skipf("mount: %v", err)
	}
	defer func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	bubbleWith(t, func(c *Config) { c.StateDir = dir; c.IDRanges, c.AcquireBurst = 1000, 1000 }, func(t *testing.T, h *harness) {
		h.admit.most = 1000
		filler := filepath.Join(dir, "filler")
		if err := os.WriteFile(filler, make([]byte, 4<<20-256<<10), 0o600); err != nil {
			t.Fatal(err)
		}
		var refs []Ref
		var err error
		for i := 0; err == nil && i < 1000; i++ {
			var got Acquired
			if got, err = h.sup.Acquire(t.Context(), owner, testEnvelope(), fmt.Sprint("k", i)); err == nil {
				refs = append(refs, Ref{ID: got.Lease.ID, Secret: got.Secret})
			}
		}
		wantCode(t, "acquire", err, fault.DiskFull)
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("got %v, which is no full disk", err)
		}
		if h.host.mu.Lock(); len(h.host.jails) != len(refs) {
			t.Errorf("%d jails for %d leases", len(h.host.jails), len(refs))
		}
		h.host.mu.Unlock()
		for _, ref := range refs { // some have room for their record, some not
			if _, err := h.sup.Release(t.Context(), owner, ref); err != nil && fault.CodeOf(err) != fault.DiskFull {
				t.Errorf("release: %v", err)
			}
		}
		if left := h.host.remains(); len(left) != 0 {
			t.Errorf("left on the host: %v", left)
		}
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		until(h.sup.cfg.RetryMost * 2)
		h.empty()
		h.verifyChain()
		h.crash()
		h.start()
		h.verifyChain()
	})
}
