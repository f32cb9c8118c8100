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
	"strings"

	"cordon/internal/fault"
	"cordon/supervisor/envelope"

	"golang.org/x/sys/unix"
)

// newLeasePrefix marks a lease's directory until it is complete. A lease id
// cannot begin with it.
const newLeasePrefix = ".new-"

// Attach gathers a lease's inputs into one directory, each under its name,
// and reads each digest's file once to verify it; together these may have
// Config.MaxInputBytes. The directory and the files are root's and read-only.
// Without inputs there is none, and the path is empty. Nothing is left on
// error.
func (s *Store) Attach(ctx context.Context, leaseID, tenant string, in []envelope.Input) (dir string, err error) {
	if err := checkLease(leaseID); err != nil {
		return "", err
	}
	if err := checkTenant(tenant); err != nil {
		return "", err
	}
	if len(in) == 0 {
		return "", nil
	}
	tmp, final, err := s.newLeaseDir(leaseID)
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tmp))
		}
	}()
	to, err := openDir(tmp)
	if err != nil {
		return "", err
	}
	defer to.Close()
	a := attachment{store: s, tenant: tenant, to: to, linked: map[string]string{}}
	for i, input := range in {
		if err := a.add(ctx, fmt.Sprintf("filesystem.inputs[%d]", i), input); err != nil {
			return "", err
		}
	}
	if err := to.Chmod(0o555); err != nil {
		return "", err
	}
	if err := os.Rename(tmp, final); err != nil {
		return "", storeFault("attach inputs", err)
	}
	return final, nil
}

// newLeaseDir makes the directory that becomes final once it is complete. Of
// two that race past the look at final, the later rename fails (ENOTEMPTY).
func (s *Store) newLeaseDir(leaseID string) (tmp, final string, err error) {
	tmp = s.path(inputsDir, leasesDir, newLeasePrefix+leaseID)
	final = s.path(inputsDir, leasesDir, leaseID)
	taken := fault.New(fault.Conflict, "lease_id", "lease "+leaseID+" has inputs attached already", "use a new lease")
	if _, err := os.Lstat(final); err == nil {
		return "", "", taken
	}
	err = os.Mkdir(tmp, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return "", "", taken
	}
	if err != nil {
		return "", "", storeFault("attach inputs", err)
	}
	return tmp, final, nil
}

// attachment is a lease's directory in the making.
type attachment struct {
	store  *Store
	tenant string
	to     *os.File
	linked map[string]string // first name by digest
	bytes  int64             // of the inputs, each once
}

// CheckInputs refuses inputs that the tenant has not put, at the price of one
// lookup each. Attach still verifies them.
func (s *Store) CheckInputs(tenant string, in []envelope.Input) error {
	for i, one := range in {
		field := fmt.Sprintf("filesystem.inputs[%d]", i)
		digits, ok := digestHex(one.Digest)
		if !ok || !envelope.IsName(tenant) {
			return unknownInput(field, tenant, one.Digest)
		}
		var st unix.Stat_t
		err := unix.Lstat(s.path(inputsDir, stagedDir, tenant, dirOf(digits)), &st)
		if errors.Is(err, fs.ErrNotExist) {
			return unknownInput(field, tenant, one.Digest)
		}
		if err != nil {
			return fmt.Errorf("look up input: %w", err)
		}
	}
	return nil
}

func unknownInput(field, tenant, digest string) error {
	return fault.New(fault.UnknownInput, field+".digest",
		fmt.Sprintf("tenant %s has no input %.100s", tenant, digest), "put the input first; unused ones expire")
}

// add puts one input into the directory. Only the first of those with the
// same digest is read: to hash it for each name would let one small request
// keep the host busy.
func (a *attachment) add(ctx context.Context, field string, in envelope.Input) error {
	digits, ok := digestHex(in.Digest)
	if !ok {
		return fault.New(fault.UnknownInput, field+".digest",
			fmt.Sprintf("%.100q is not a digest", in.Digest), "give sha256: and 64 hex digits")
	}
	name := in.Name
	if name == "" {
		name = digits
	}
	if name == "." || name == ".." || len(name) > unix.NAME_MAX || strings.ContainsAny(name, "/\x00") {
		return fault.New(fault.InvalidArgument, field+".name",
			fmt.Sprintf("%.100q is not a file name", name), "use a name without slashes")
	}
	if first, ok := a.linked[in.Digest]; ok {
		return linkInto(int(a.to.Fd()), first, a.to, name, field)
	}
	if err := a.first(ctx, digits, name, field, in.Digest); err != nil {
		return err
	}
	a.linked[in.Digest] = name
	return nil
}

// first verifies a staged input and links it under name.
func (a *attachment) first(ctx context.Context, digits, name, field, digest string) error {
	s := a.store
	path := s.path(inputsDir, stagedDir, a.tenant, dirOf(digits))
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return unknownInput(field, a.tenant, digest)
	}
	if err != nil {
		return fmt.Errorf("open input: %w", err)
	}
	defer f.Close()
	if err := a.grow(f, field); err != nil {
		return err
	}
	if err := touch(f, s.cfg.Now()); err != nil { // or it might expire while it is read
		return err
	}
	if err := verify(ctx, f, digest, field); err != nil {
		return err
	}
	s.inputs.Lock()
	defer s.inputs.Unlock()
	return linkSame(f, path, a.to, name, field)
}

// grow bounds what one lease makes the host read.
func (a *attachment) grow(f *os.File, field string) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if most := a.store.cfg.MaxInputBytes; fi.Size() > most-a.bytes {
		return fault.New(fault.TooLarge, field+".digest",
			fmt.Sprintf("inputs up to this one have %d bytes together, above the limit of %d", a.bytes+fi.Size(), most),
			"use fewer or smaller inputs")
	}
	a.bytes += fi.Size()
	return nil
}

func verify(ctx context.Context, f *os.File, digest, field string) error {
	h := sha256.New()
	if _, err := io.Copy(h, ctxReader{ctx, f}); err != nil {
		return fmt.Errorf("read input: %w", err)
	}
	if got := formatDigest(h.Sum(nil)); got != digest {
		return fault.New(fault.DigestMismatch, field+".digest",
			"stored input has digest "+got+", not "+digest, "put the input again once no lease uses it")
	}
	return nil
}

// linkInto links path, below the directory from, into to.
func linkInto(from int, path string, to *os.File, name, field string) error {
	err := unix.Linkat(from, path, int(to.Fd()), name, 0)
	if errors.Is(err, fs.ErrExist) {
		return fault.New(fault.InvalidArgument, field+".name",
			fmt.Sprintf("two inputs are named %q", name), "give each input a name of its own")
	}
	if err != nil {
		return storeFault("attach input", &os.LinkError{Op: "linkat", Old: path, New: name, Err: err})
	}
	return nil
}

// linkSame links path into to, and makes sure that it is the file f, whose
// bytes were verified.
func linkSame(f *os.File, path string, to *os.File, name, field string) error {
	if err := linkInto(unix.AT_FDCWD, path, to, name, field); err != nil {
		return err
	}
	var a, b unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &a); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if err := unix.Fstatat(int(to.Fd()), name, &b, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return os.NewSyscallError("fstatat", err)
	}
	if a.Dev != b.Dev || a.Ino != b.Ino {
		return fault.New(fault.Conflict, field+".digest", "input was put again while it was attached", "try again")
	}
	return nil
}

// Detach removes what Attach made for the lease; it is idempotent. The inputs
// themselves stay until they expire.
func (s *Store) Detach(leaseID string) error {
	if err := checkLease(leaseID); err != nil {
		return err
	}
	var errs []error
	for _, name := range []string{leaseID, newLeasePrefix + leaseID} {
		errs = append(errs, os.RemoveAll(s.path(inputsDir, leasesDir, name)))
	}
	return errors.Join(errs...)
}

// Attached lists the leases that have inputs attached.
func (s *Store) Attached() ([]string, error) {
	entries, err := os.ReadDir(s.path(inputsDir, leasesDir))
	if err != nil {
		return nil, fmt.Errorf("list leases with inputs: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), newLeasePrefix) {
			ids = append(ids, filepath.Base(e.Name()))
		}
	}
	return ids, nil
}

func checkLease(id string) error {
	if !plainName(id, 128) {
		return fault.New(fault.InvalidArgument, "lease_id", fmt.Sprintf("%.100q is not a lease id", id),
			"use the id that Acquire returned")
	}
	return nil
}
