package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"cordon/internal/fault"
)

// target is a local file that a result goes to.
type target struct {
	path  string
	force bool // an existing file is replaced
}

// newTarget looks at where name leads before there is anything to write:
// refused are files that exist, unless force, and what is no file at all. A
// directory gets a file called base; an empty name is base here.
func newTarget(name, base string, force bool) (target, error) {
	if name == "" {
		name = base
	}
	info, err := os.Stat(name)
	if (err == nil && info.IsDir()) || strings.HasSuffix(name, "/") {
		name = filepath.Join(name, base)
	}
	t := target{path: name, force: force}
	return t, t.check()
}

func (t target) check() error {
	info, err := os.Lstat(t.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		_, err := os.Stat(filepath.Dir(t.path))
		return err
	case err != nil:
		return err
	case !info.Mode().IsRegular() && info.Mode().Type() != fs.ModeSymlink:
		// Replacing a device or a pipe is never what was meant.
		return fault.New(fault.Conflict, t.path, "exists and is not a file", "choose another name, or - for standard output")
	case !t.force:
		return fault.New(fault.Conflict, t.path, "exists already", "choose another name, or use --force")
	}
	return nil
}

// write lets fill write the file, which appears under its name only when it
// is whole: it is written beside it first. Nothing stays of one that failed.
func (t target) write(fill func(io.Writer) error) (err error) {
	// The same directory, so that the rename cannot leave the file system; an
	// ordinary mode, so that the umask decides.
	tmp := filepath.Join(filepath.Dir(t.path), "."+filepath.Base(t.path)+"."+rand.Text()[:10])
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666) //nolint:gosec // as any program's output: the umask decides
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(tmp))
		}
	}()
	err = fill(f)
	if serr := f.Sync(); err == nil && !errors.Is(serr, errors.ErrUnsupported) {
		err = serr
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return t.publish(tmp)
}

// publish gives the finished file its name, and leaves an existing one alone
// unless force: a link fails where a rename would replace.
func (t target) publish(tmp string) error {
	if err := t.check(); err != nil {
		return err
	}
	if t.force {
		return os.Rename(tmp, t.path)
	}
	err := os.Link(tmp, t.path)
	switch {
	case err == nil:
		_ = os.Remove(tmp) // the result is there; a second name of it is no failure
		return nil
	case errors.Is(err, fs.ErrExist):
		return t.check()
	}
	// A file system without links: the check above has to do.
	return os.Rename(tmp, t.path)
}

// readBounded reads a small file whole, and no other kind of thing at length.
func readBounded(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > most {
		return nil, fault.New(fault.TooLarge, path, fmt.Sprintf("has more than %s", formatBytes(most)), "choose the right file")
	}
	return data, nil
}
