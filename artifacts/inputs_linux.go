package artifacts

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"cordon/internal/cleanup"
	"cordon/internal/fault"

	"golang.org/x/sys/unix"
)

// PutInput stores size bytes of r as an input of tenant and returns their
// digest. When digest is given the bytes must have it. The input is kept for
// Config.StagedTTL, and as long as a lease uses it; putting it again starts
// that time anew. r is read in the caller's goroutine to its end, one byte
// past size at most; its Read must return once ctx is done. When it gives
// nothing for Config.IdleTimeout the input is dropped and its room free at
// once, but PutInput returns only when Read does. Nothing is left on error,
// except that an input whose directory cannot be synced stays until it
// expires.
func (s *Store) PutInput(ctx context.Context, tenant string, size int64, digest string, r io.Reader) (string, error) {
	if err := checkTenant(tenant); err != nil {
		return "", err
	}
	if _, ok := digestHex(digest); digest != "" && !ok {
		return "", fault.New(fault.InvalidArgument, "digest",
			fmt.Sprintf("%.100q is not a digest", digest), "give sha256: and 64 hex digits, or nothing")
	}
	if err := s.reserve(tenant, size); err != nil {
		return "", err
	}
	most := io.LimitReader(r, size+1)
	return relay(ctx, s.cfg.IdleTimeout, most, func(r io.Reader) (string, error) {
		return s.putReserved(ctx, tenant, size, digest, r)
	})
}

// putReserved is PutInput once the input is charged to the tenant.
func (s *Store) putReserved(ctx context.Context, tenant string, size int64, digest string, r io.Reader) (string, error) {
	var undo cleanup.Stack
	defer func() { _ = undo.Run() }() // errors dropped: Open removes what is left in incoming/
	undo.Push(func() error { s.release(tenant, size); return nil })
	f, err := os.CreateTemp(s.path(inputsDir, incomingDir), "")
	if err != nil {
		return "", storeFault("store input", err)
	}
	undo.Push(func() error { return os.Remove(f.Name()) })
	undo.Push(f.Close)
	got, err := copyExactly(ctx, f, r, size)
	if err != nil {
		return "", err
	}
	if digest != "" && got != digest {
		return "", fault.New(fault.DigestMismatch, "digest",
			"input has digest "+got+", not "+digest, "send the file that the digest was made of")
	}
	moved, err := s.stage(tenant, got, f)
	if err != nil {
		return "", err
	}
	if !moved {
		return got, nil // it was there and is in use; the copy goes
	}
	_ = f.Close() // synced already
	undo.Disarm() // the staged file keeps the charge
	if err := syncDir(s.path(inputsDir, stagedDir, tenant)); err != nil {
		return "", storeFault("store input", err)
	}
	return got, nil
}

// copyExactly copies size bytes from r, which must hold no more and no less,
// and returns their digest.
func copyExactly(ctx context.Context, w io.Writer, r io.Reader, size int64) (string, error) {
	h := sha256.New()
	in := ctxReader{ctx, r}
	n, err := io.Copy(io.MultiWriter(w, h), io.LimitReader(in, size))
	if err != nil {
		return "", storeFault("store input", err)
	}
	if n != size {
		return "", fault.New(fault.InvalidArgument, "size",
			fmt.Sprintf("input ended after %d of %d bytes", n, size), "give the size of what is sent")
	}
	var one [1]byte
	switch n, err := io.ReadFull(in, one[:]); {
	case n > 0:
		return "", fault.New(fault.InvalidArgument, "size",
			fmt.Sprintf("input is longer than the %d bytes announced", size), "give the size of what is sent")
	case !errors.Is(err, io.EOF):
		return "", storeFault("store input", err)
	}
	return formatDigest(h.Sum(nil)), nil
}

// stage makes f, whose bytes have digest, an input of tenant; the caller
// syncs the directory. It reports whether f was moved, see place.
func (s *Store) stage(tenant, digest string, f *os.File) (moved bool, err error) {
	if err := f.Chmod(0o444); err != nil {
		return false, err
	}
	if err := touch(f, s.cfg.Now()); err != nil {
		return false, err
	}
	if err := f.Sync(); err != nil {
		return false, storeFault("store input", err)
	}
	dir := s.path(inputsDir, stagedDir, tenant)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, storeFault("store input", err)
	}
	digits, _ := digestHex(digest)
	return s.place(tenant, f.Name(), filepath.Join(dir, dirOf(digits)))
}

// Expire removes inputs that no lease uses and whose time is over, and
// returns how many. The daemon calls it now and then.
func (s *Store) Expire() (int, error) {
	tenants, err := os.ReadDir(s.path(inputsDir, stagedDir))
	if err != nil {
		return 0, fmt.Errorf("list inputs: %w", err)
	}
	var count int
	var errs []error
	for _, t := range tenants {
		n, err := s.expireTenant(t.Name())
		count += n
		errs = append(errs, err)
	}
	return count, errors.Join(errs...)
}

func (s *Store) expireTenant(tenant string) (int, error) {
	dir := s.path(inputsDir, stagedDir, tenant)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, fmt.Errorf("list inputs: %w", err)
	}
	oldest := s.cfg.Now().Add(-s.cfg.StagedTTL)
	var count int
	var errs []error
	for _, e := range entries {
		removed, err := s.removeUnused(tenant, filepath.Join(dir, e.Name()), oldest)
		errs = append(errs, err)
		if removed {
			count++
		}
	}
	// The tenant's directory stays: a PutInput may be about to rename into it.
	return count, errors.Join(errs...)
}

// checkTenant admits what is a directory name and nothing more.
func checkTenant(tenant string) error {
	if !plainName(tenant, 128) {
		return fault.New(fault.InvalidArgument, "tenant", fmt.Sprintf("%.100q is not a tenant", tenant),
			"use up to 128 letters, digits, . _ - and begin with a letter or a digit")
	}
	return nil
}

func plainName(s string, limit int) bool {
	for i, c := range []byte(s) {
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return s != "" && len(s) <= limit
}

// touch sets the time that Expire goes by. A lease's link shares the inode, so
// a sandbox sees it as the file's time.
func touch(f *os.File, t time.Time) error {
	tv := unix.NsecToTimeval(t.UnixNano())
	return os.NewSyscallError("futimes", unix.Futimes(int(f.Fd()), []unix.Timeval{tv, tv}))
}
