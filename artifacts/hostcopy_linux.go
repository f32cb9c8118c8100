package artifacts

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"time"

	"cordon/artifacts/unpack"
	"cordon/internal/fault"
	"cordon/internal/sys"

	"golang.org/x/sys/unix"
)

// hostCopier copies planned files of the host into an image. What the host
// does not show to every local user (a file without o+r, a directory without
// o+x above it) is left out: a sandbox must not be the way to it.
type hostCopier struct {
	ctx  context.Context
	host *os.File
	out  *os.Root
	base int
	lim  unpack.Limits

	made   map[string]bool      // destinations that exist
	linked map[[2]uint64]string // destination by device and inode, of files with several links
	open   map[string]bool      // source directories that everyone may search
	bytes  int64
	skips  hostSkips
}

// hostSkips counts what was planned and not copied.
type hostSkips struct {
	missing int // listed but not there, or behind a link
	private int // not readable by everyone
	special int // neither file, directory nor link
}

func newHostCopier(ctx context.Context, host *os.File, out *os.Root, idBase uint32, lim unpack.Limits) *hostCopier {
	return &hostCopier{
		ctx: ctx, host: host, out: out, base: int(idBase), lim: lim,
		made: map[string]bool{".": true}, linked: map[[2]uint64]string{}, open: map[string]bool{".": true},
	}
}

func (c *hostCopier) has(p string) bool { return c.made[p] }

func (c *hostCopier) copy(item hostItem) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	f, err := sys.OpenInRoot(c.host, item.src, unix.O_PATH|unix.O_NOFOLLOW)
	if notThere(err) {
		c.skips.missing++
		return nil
	}
	if err != nil {
		return fmt.Errorf("open host file: %w", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &os.PathError{Op: "fstat", Path: item.src, Err: err}
	}
	isOpen, err := c.searchable(path.Dir(item.src))
	if err != nil {
		return err
	}
	if !isOpen {
		c.skips.private++
		return nil
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		return c.mkdirAll(item.dst)
	case unix.S_IFLNK:
		target, err := readlinkat(f, "")
		if err != nil {
			return err
		}
		return c.link(hostLink{path: item.dst, target: target})
	case unix.S_IFREG:
		return c.file(item, &st)
	}
	c.skips.special++
	return nil
}

// searchable reports whether everyone may search dir and all above it.
func (c *hostCopier) searchable(dir string) (bool, error) {
	if known, ok := c.open[dir]; ok {
		return known, nil
	}
	above, err := c.searchable(path.Dir(dir))
	if err != nil {
		return false, err
	}
	d, err := sys.OpenInRoot(c.host, dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return false, fmt.Errorf("open host directory: %w", err)
	}
	defer d.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(d.Fd()), &st); err != nil {
		return false, &os.PathError{Op: "fstat", Path: dir, Err: err}
	}
	c.open[dir] = above && st.Mode&0o001 != 0
	return c.open[dir], nil
}

func (c *hostCopier) file(item hostItem, st *unix.Stat_t) error {
	if st.Mode&0o004 == 0 {
		c.skips.private++
		return nil
	}
	if err := c.mkdirAll(path.Dir(item.dst)); err != nil {
		return err
	}
	id := [2]uint64{st.Dev, st.Ino}
	if first, ok := c.linked[id]; ok {
		if err := c.out.Link(first, item.dst); err != nil {
			return storeFault("copy host file", err)
		}
		return c.charge(item.dst, 0)
	}
	if err := c.charge(item.dst, st.Size); err != nil {
		return err
	}
	if err := c.content(item, st); err != nil {
		return err
	}
	if st.Nlink > 1 {
		c.linked[id] = item.dst
	}
	return nil
}

// content copies the bytes of a file that must not change meanwhile.
func (c *hostCopier) content(item hostItem, st *unix.Stat_t) error {
	in, err := sys.OpenInRoot(c.host, item.src, unix.O_RDONLY|unix.O_NOFOLLOW)
	if err != nil {
		return fmt.Errorf("open host file: %w", err)
	}
	defer in.Close()
	out, err := c.out.OpenFile(item.dst, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return storeFault("copy host file", err)
	}
	defer out.Close()
	n, err := io.Copy(out, in)
	if err != nil {
		return storeFault("copy host file "+item.src, err)
	}
	var after unix.Stat_t
	if err := unix.Fstat(int(in.Fd()), &after); err != nil {
		return &os.PathError{Op: "fstat", Path: item.src, Err: err}
	}
	if n != st.Size || after.Ino != st.Ino || after.Dev != st.Dev || after.Size != st.Size ||
		after.Mtim != st.Mtim || after.Ctim != st.Ctim {
		return hostChanged("/" + item.src)
	}
	// No special bits, no write permission but the owner's.
	if err := out.Chmod(fs.FileMode(st.Mode & 0o755)); err != nil {
		return err
	}
	if err := out.Chown(c.base, c.base); err != nil {
		return err
	}
	mtime := time.Unix(max(st.Mtim.Sec, 0), 0)
	return c.out.Chtimes(item.dst, mtime, mtime)
}

// write makes a file of the image's own.
func (c *hostCopier) write(name, text string) error {
	if err := c.mkdirAll(path.Dir(name)); err != nil {
		return err
	}
	if err := c.charge(name, int64(len(text))); err != nil {
		return err
	}
	f, err := c.out.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return storeFault("write "+name, err)
	}
	defer f.Close()
	if _, err := io.WriteString(f, text); err != nil {
		return storeFault("write "+name, err)
	}
	if err := own(f, uint32(c.base), 0o644); err != nil {
		return err
	}
	return c.out.Chtimes(name, time.Unix(0, 0), time.Unix(0, 0))
}

func (c *hostCopier) link(l hostLink) error {
	if err := c.mkdirAll(path.Dir(l.path)); err != nil {
		return err
	}
	if err := c.charge(l.path, 0); err != nil {
		return err
	}
	if err := c.out.Symlink(l.target, l.path); err != nil {
		return storeFault("make link", err)
	}
	return c.out.Lchown(l.path, c.base, c.base)
}

// mkdirAll makes a directory and those above it. All get mode 0755: what is
// below a directory that is not everyone's was left out.
func (c *hostCopier) mkdirAll(dir string) error {
	if c.made[dir] {
		return nil
	}
	if err := c.mkdirAll(path.Dir(dir)); err != nil {
		return err
	}
	if err := c.charge(dir, 0); err != nil {
		return err
	}
	if err := c.out.Mkdir(dir, 0o755); err != nil {
		return storeFault("make directory", err)
	}
	if err := c.out.Chmod(dir, 0o755); err != nil { // whatever the umask is
		return err
	}
	return c.out.Lchown(dir, c.base, c.base)
}

// charge counts an entry that is about to be made.
func (c *hostCopier) charge(p string, size int64) error {
	c.made[p] = true
	c.bytes += size
	if c.bytes > c.lim.Bytes || int64(len(c.made)) > c.lim.Files {
		return tooLarge(fmt.Sprintf("host image is above %d bytes or %d entries, at %+q", c.lim.Bytes, c.lim.Files, "/"+p))
	}
	return nil
}

func notThere(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

func hostChanged(what string) error {
	return fault.New(fault.WrongState, "host", what+" changed while the snapshot was made",
		"try again once no package is being installed")
}
