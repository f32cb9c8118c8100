package artifacts

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"cordon/artifacts/unpack"
	"cordon/internal/fault"
	"cordon/internal/sys"

	"golang.org/x/sys/unix"
)

// maxWalkDepth is above what the worker makes; each level holds a descriptor.
const maxWalkDepth = 160

// Tree is what a walk found.
type Tree struct {
	Digest string
	Bytes  int64 // of regular files, each inode once
	Files  int64 // entries of every kind, the root not counted
}

// DigestTree walks the image tree at dir and returns its digest. On-disk
// owners are taken relative to idBase. Anything an image must not hold (other
// file types, foreign owners, special mode bits, extended attributes, other
// file systems) is a hostile_image fault.
func DigestTree(ctx context.Context, dir string, idBase uint32) (Tree, error) {
	root, err := openDir(dir)
	if err != nil {
		return Tree{}, err
	}
	defer root.Close()
	return walkTree(ctx, root, idBase, unpack.Limits{Bytes: 1<<63 - 1, Files: 1<<63 - 1})
}

// openDir opens a directory of the store's own; its parents are trusted.
func openDir(dir string) (*os.File, error) {
	return os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

type walker struct {
	ctx    context.Context
	idBase uint32
	lim    unpack.Limits
	hash   *treeHash
	tree   Tree
	seen   map[uint64]bool // inodes with more than one link
	buf    []byte
}

func walkTree(ctx context.Context, root *os.File, idBase uint32, lim unpack.Limits) (Tree, error) {
	w := &walker{
		ctx: ctx, idBase: idBase, lim: lim,
		hash: newTreeHash(), seen: make(map[uint64]bool), buf: make([]byte, 256<<10),
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(root.Fd()), &st); err != nil {
		return Tree{}, &os.PathError{Op: "fstat", Path: root.Name(), Err: err}
	}
	if err := w.dir(root, "", &st, 0); err != nil {
		return Tree{}, err
	}
	w.tree.Digest = w.hash.digest()
	return w.tree, nil
}

// dir adds the directory f and everything below it. It borrows f.
func (w *walker) dir(f *os.File, path string, st *unix.Stat_t, depth int) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if depth > maxWalkDepth {
		return hostileTree(path, fmt.Sprintf("more than %d directories deep", maxWalkDepth))
	}
	if err := w.add(f, path, kindDir, st, nil); err != nil {
		return err
	}
	names, err := w.names(f, path)
	if err != nil {
		return err
	}
	for _, name := range names {
		child := name
		if path != "" {
			child = path + "/" + name
		}
		if err := w.child(f, name, child, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// names lists a directory in digest order, in steps, so that a directory past
// the limit is refused before it fills memory.
func (w *walker) names(f *os.File, path string) ([]string, error) {
	var names []string
	for {
		some, err := f.Readdirnames(4096)
		names = append(names, some...)
		if int64(len(names)) > w.lim.Files {
			return nil, tooLarge(fmt.Sprintf("more than %d entries in %+q", w.lim.Files, path))
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("list %+q: %w", path, err)
		}
	}
	slices.Sort(names)
	return names, nil
}

// child adds one entry of dir. Each step is a single component below an open
// directory and follows nothing.
func (w *walker) child(dir *os.File, name, path string, depth int) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return &os.PathError{Op: "fstatat", Path: path, Err: err}
	}
	if w.tree.Files++; w.tree.Files > w.lim.Files {
		return tooLarge(fmt.Sprintf("more than %d entries, at %+q", w.lim.Files, path))
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		target, err := readlinkat(dir, name)
		if err != nil {
			return err
		}
		return w.add(nil, path, kindLink, &st, []byte(target))
	case unix.S_IFREG, unix.S_IFDIR:
	default:
		return hostileTree(path, fmt.Sprintf("is of type %#o, not a file, a directory or a link", st.Mode&unix.S_IFMT))
	}
	flags := unix.O_RDONLY | unix.O_NOFOLLOW
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		flags |= unix.O_DIRECTORY
	}
	f, err := sys.OpenBeneath(dir, name, flags)
	if errors.Is(err, unix.EXDEV) {
		return hostileTree(path, "is a mount point in use")
	}
	if err != nil {
		return fmt.Errorf("open %+q: %w", path, err)
	}
	defer f.Close()
	// What was opened counts, not what was looked at before.
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &os.PathError{Op: "fstat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return w.dir(f, path, &st, depth)
	}
	return w.file(f, path, &st)
}

func (w *walker) file(f *os.File, path string, st *unix.Stat_t) error {
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return hostileTree(path, "changed its type while it was read")
	}
	if st.Nlink == 1 || !w.seen[st.Ino] {
		w.tree.Bytes += st.Size
		if st.Nlink > 1 {
			w.seen[st.Ino] = true
		}
	}
	if w.tree.Bytes > w.lim.Bytes {
		return tooLarge(fmt.Sprintf("more than %d bytes, at %+q", w.lim.Bytes, path))
	}
	h := sha256.New()
	n, err := io.CopyBuffer(h, ctxReader{w.ctx, f}, w.buf)
	if err != nil {
		return fmt.Errorf("read %+q: %w", path, err)
	}
	if n != st.Size {
		return hostileTree(path, "changed its size while it was read")
	}
	return w.add(f, path, kindFile, st, h.Sum(nil))
}

// add checks what every entry must satisfy and hashes its record. f is nil
// for links.
func (w *walker) add(f *os.File, path string, kind entryKind, st *unix.Stat_t, payload []byte) error {
	uid, gid := st.Uid-w.idBase, st.Gid-w.idBase // wraps below the base
	if uid > unpack.MaxID || gid > unpack.MaxID {
		return hostileTree(path, fmt.Sprintf("has the foreign owner %d:%d", st.Uid, st.Gid))
	}
	if kind != kindLink && st.Mode&0o7000 != 0 {
		return hostileTree(path, fmt.Sprintf("has mode bits %#o", st.Mode&0o7000))
	}
	if f != nil {
		if err := checkXattrs(f, path); err != nil {
			return err
		}
	}
	e := entry{path: path, kind: kind, mode: st.Mode & 0o777, uid: uid, gid: gid, payload: payload}
	if kind == kindFile {
		e.size, e.mtime = st.Size, st.Mtim.Sec
	}
	w.hash.add(e)
	return nil
}

// checkXattrs refuses every attribute but the labels that a security module
// puts on each file by itself: attributes carry capabilities, access lists
// and overlayfs instructions.
func checkXattrs(f *os.File, path string) error {
	buf := make([]byte, 256)
	n, err := unix.Flistxattr(int(f.Fd()), buf)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	if errors.Is(err, unix.ERANGE) {
		return hostileTree(path, "has extended attributes")
	}
	if err != nil {
		return &os.PathError{Op: "flistxattr", Path: path, Err: err}
	}
	for _, name := range splitNul(buf[:n]) {
		if name != "security.selinux" && name != "security.SMACK64" {
			return hostileTree(path, fmt.Sprintf("has the extended attribute %+q", name))
		}
	}
	return nil
}

func readlinkat(dir *os.File, name string) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(dir.Fd()), name, buf)
	if err != nil {
		return "", &os.PathError{Op: "readlinkat", Path: name, Err: err}
	}
	return string(buf[:n]), nil
}

func hostileTree(path, cause string) error {
	return fault.New(fault.HostileImage, "image", fmt.Sprintf("%+q %s", "/"+path, cause),
		"build the image again without it")
}

func tooLarge(cause string) error {
	return fault.New(fault.TooLarge, "image", cause,
		"use a smaller tree or raise the store's image limit")
}

// ctxReader ends a long read when ctx does.
type ctxReader struct {
	ctx context.Context
	r   io.Reader
}

func (c ctxReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

func splitNul(b []byte) []string {
	var out []string
	for len(b) > 0 {
		i := slices.Index(b, 0)
		if i < 0 {
			i = len(b)
		}
		out = append(out, string(b[:i]))
		b = b[min(i+1, len(b)):]
	}
	return out
}
