package artifacts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"cordon/internal/fault"

	"golang.org/x/sys/unix"
)

// blockSize is what the smallest file takes of the usual file systems.
const blockSize = 4096

// room is the disk that a file of size bytes takes.
func room(size int64) int64 { return (size + blockSize - 1) / blockSize * blockSize }

// stock is what a tenant has of inputs, staged or on their way in.
type stock struct{ bytes, files int64 }

// reserve charges an input of size bytes to the tenant, or refuses it. The
// charge stays with the file once it is staged; release takes it back.
func (s *Store) reserve(tenant string, size int64) error {
	if size < 0 {
		return fault.New(fault.InvalidArgument, "size", "size is negative", "give the size in bytes")
	}
	if size > s.cfg.MaxInputBytes {
		return fault.New(fault.TooLarge, "size",
			fmt.Sprintf("input of %d bytes is above the limit of %d", size, s.cfg.MaxInputBytes), "split or shrink the input")
	}
	s.inputs.Lock()
	defer s.inputs.Unlock()
	have := s.stock[tenant]
	// In this order nothing overflows: size is below MaxInputBytes.
	if room(size) > s.cfg.MaxStagedBytes-have.bytes {
		return fault.New(fault.TooLarge, "size",
			fmt.Sprintf("tenant %s would have more than %d bytes of inputs stored", tenant, s.cfg.MaxStagedBytes),
			"release leases and wait until unused inputs expire")
	}
	if have.files >= s.cfg.MaxStagedFiles {
		return fault.New(fault.TooLarge, "inputs",
			fmt.Sprintf("tenant %s has %d inputs stored, which is the most", tenant, s.cfg.MaxStagedFiles),
			"release leases and wait until unused inputs expire, or put many small files into one")
	}
	s.charge(tenant, room(size), 1)
	return nil
}

// release takes back what reserve charged for a file that was not staged.
func (s *Store) release(tenant string, size int64) {
	s.inputs.Lock()
	defer s.inputs.Unlock()
	s.charge(tenant, -room(size), -1)
}

// charge needs s.inputs.
func (s *Store) charge(tenant string, bytes, files int64) {
	have := s.stock[tenant]
	have.bytes += bytes
	have.files += files
	s.stock[tenant] = have
	if have == (stock{}) {
		delete(s.stock, tenant)
	}
}

// place makes from the staged file to, and reports whether it did: a file
// that leases use stays as it is, so that each input is on disk once and
// charged once. One that no lease uses is replaced, because its bytes may
// have gone bad.
func (s *Store) place(tenant, from, to string) (bool, error) {
	s.inputs.Lock()
	defer s.inputs.Unlock()
	var old unix.Stat_t
	err := unix.Lstat(to, &old)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, &os.PathError{Op: "lstat", Path: to, Err: err}
	}
	if err == nil && old.Nlink > 1 {
		now := s.cfg.Now()
		return false, os.Chtimes(to, now, now)
	}
	replaced := err == nil
	if err := os.Rename(from, to); err != nil {
		return false, storeFault("store input", err)
	}
	if replaced {
		s.charge(tenant, -room(old.Size), -1)
	}
	return true, nil
}

// removeUnused removes a staged file that no lease uses and that was not
// touched after oldest, and reports whether it did.
func (s *Store) removeUnused(tenant, path string, oldest time.Time) (bool, error) {
	s.inputs.Lock()
	defer s.inputs.Unlock()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return false, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	// A second link is a lease's.
	if st.Nlink > 1 || time.Unix(st.Mtim.Unix()).After(oldest) {
		return false, nil
	}
	if err := os.Remove(path); err != nil {
		return false, err
	}
	s.charge(tenant, -room(st.Size), -1)
	return true, nil
}

// loadStock counts what an earlier daemon staged. A lease's links need no
// count of their own: the staged file stays as long as there is one.
func (s *Store) loadStock() error {
	tenants, err := os.ReadDir(s.path(inputsDir, stagedDir))
	if err != nil {
		return fmt.Errorf("list inputs: %w", err)
	}
	s.inputs.Lock()
	defer s.inputs.Unlock()
	for _, t := range tenants {
		entries, err := os.ReadDir(filepath.Join(s.path(inputsDir, stagedDir), t.Name()))
		if err != nil {
			return fmt.Errorf("list inputs: %w", err)
		}
		for _, e := range entries {
			fi, err := e.Info()
			if err != nil {
				return fmt.Errorf("list inputs: %w", err)
			}
			s.charge(t.Name(), room(fi.Size()), 1)
		}
	}
	return nil
}
