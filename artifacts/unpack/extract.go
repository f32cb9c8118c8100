package unpack

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"cordon/internal/fault"
)

// maxTime keeps times within what every file system stores (34 bits, ext4).
const maxTime = 1<<34 - 1

// extractor is the state of one run. The root is empty at the start, so dirs
// is the whole truth about directories: a name below anything that is not in
// it would lead through a link or a file, and is refused.
type extractor struct {
	root *os.Root
	lim  Limits
	own  bool // give entries their owner; needs CAP_CHOWN
	dirs map[string]dirMeta
	rep  Report
	buf  []byte
}

// dirMeta is applied at the end, deepest first: until then a directory is
// ours and writable, whatever mode the tar gives it.
type dirMeta struct {
	mode     fs.FileMode
	uid, gid int
}

// extract writes the tree of the tar r below root, which must be empty.
// On error the tree is left half-made, for the caller to throw away.
func extract(r io.Reader, root *os.Root, lim Limits, own bool) (Report, error) {
	x := &extractor{
		root: root, lim: lim, own: own,
		dirs: map[string]dirMeta{"": {mode: 0o755}},
		buf:  make([]byte, 256<<10),
	}
	in, err := openTar(r, lim)
	if err != nil {
		return x.rep, err
	}
	if err := x.entries(tar.NewReader(in)); err != nil {
		return x.rep, err
	}
	if err := in.finish(); err != nil {
		return x.rep, err
	}
	if err := x.checkShape(); err != nil {
		return x.rep, err
	}
	return x.rep, x.finishDirs()
}

func (x *extractor) entries(tr *tar.Reader) error {
	for {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if errors.Is(err, tar.ErrInsecurePath) {
			return hostile(hdr.Name, "name leads out of the root")
		}
		if err != nil {
			return badArchive(err)
		}
		if err := x.entry(hdr, tr); err != nil {
			return err
		}
	}
}

func (x *extractor) entry(hdr *tar.Header, content io.Reader) error {
	if hdr.Typeflag == tar.TypeXGlobalHeader {
		return x.count("global header") // git-archive writes one; it names no file
	}
	name, err := cleanName(hdr.Name)
	if err != nil {
		return err
	}
	if err := x.count(name); err != nil {
		return err
	}
	if err := checkOwner(hdr); err != nil {
		return err
	}
	if device(hdr) && name != "" && (name == "dev" || strings.HasPrefix(name, "dev/")) {
		x.rep.Stripped.Devices++ // every sandbox gets a /dev of its own
		return nil
	}
	x.countStripped(hdr)
	if hdr.Typeflag == tar.TypeDir {
		return x.directory(name, hdr)
	}
	if name == "" {
		return hostile(hdr.Name, "the root is not a directory")
	}
	if err := x.parents(name); err != nil {
		return err
	}
	switch hdr.Typeflag {
	case tar.TypeReg, tar.TypeGNUSparse:
		return x.regular(name, hdr, content)
	case tar.TypeSymlink:
		return x.symlink(name, hdr)
	case tar.TypeLink:
		return x.hardlink(name, hdr)
	}
	return hostile(hdr.Name, fmt.Sprintf("type %q is not a file, a directory or a link", hdr.Typeflag))
}

// count charges one entry, ignored ones too: they cost time.
func (x *extractor) count(name string) error {
	x.rep.Entries++
	if x.rep.Entries > x.lim.Files {
		return fault.New(fault.TooLarge, "tar",
			fmt.Sprintf("more than %d entries, at %s", x.lim.Files, quote(name)),
			"import a smaller tree or raise the host's image limit")
	}
	return nil
}

func (x *extractor) countStripped(hdr *tar.Header) {
	if hdr.Mode&0o7000 != 0 {
		x.rep.Stripped.SpecialBits++
	}
	for key := range hdr.PAXRecords {
		if strings.HasPrefix(key, "SCHILY.xattr.") || strings.HasPrefix(key, "LIBARCHIVE.xattr.") {
			x.rep.Stripped.Xattrs++
		}
	}
}

func checkOwner(hdr *tar.Header) error {
	for _, id := range []int{hdr.Uid, hdr.Gid} {
		if id < 0 || id > MaxID {
			return fault.New(fault.InvalidArgument, "tar",
				fmt.Sprintf("entry %s: owner %d is not within 0..%d", quote(hdr.Name), id, MaxID),
				"build the archive with owners below 65536, e.g. tar --owner=0 --group=0")
		}
	}
	return nil
}

func device(hdr *tar.Header) bool {
	return hdr.Typeflag == tar.TypeChar || hdr.Typeflag == tar.TypeBlock
}

// parents makes the directories above name that no entry has made yet.
func (x *extractor) parents(name string) error {
	dir := parentOf(name)
	if _, ok := x.dirs[dir]; ok {
		return nil
	}
	if err := x.parents(dir); err != nil {
		return err
	}
	return x.mkdir(dir, dirMeta{mode: 0o755})
}

func (x *extractor) directory(name string, hdr *tar.Header) error {
	meta := dirMeta{mode: fs.FileMode(hdr.Mode & 0o777), uid: hdr.Uid, gid: hdr.Gid}
	if _, ok := x.dirs[name]; ok {
		x.dirs[name] = meta // the last word on a directory counts
		return nil
	}
	if err := x.parents(name); err != nil {
		return err
	}
	return x.mkdir(name, meta)
}

func (x *extractor) mkdir(name string, meta dirMeta) error {
	err := x.root.Mkdir(name, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return hostile(name, "is a directory in one entry and a link or a file in another")
	}
	if err != nil {
		return writeFault("make directory", name, err)
	}
	x.dirs[name] = meta
	return nil
}

func (x *extractor) regular(name string, hdr *tar.Header, content io.Reader) error {
	if hdr.Size > x.lim.Bytes-x.rep.Bytes {
		return fault.New(fault.TooLarge, "tar",
			fmt.Sprintf("more than %d bytes, at %s", x.lim.Bytes, quote(name)),
			"import a smaller tree or raise the host's image limit")
	}
	x.rep.Bytes += hdr.Size
	f, err := x.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return existsFault("create file", name, err)
	}
	defer f.Close()
	// The wrapper keeps io.Copy from choosing a path of its own.
	n, err := io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{content}, x.buf)
	if err != nil {
		return copyFault(name, err)
	}
	if n != hdr.Size {
		return badArchive(fmt.Errorf("entry %s: %d of %d bytes", quote(name), n, hdr.Size))
	}
	if err := f.Chmod(fs.FileMode(hdr.Mode & 0o777)); err != nil {
		return writeFault("set mode", name, err)
	}
	mtime := time.Unix(min(max(hdr.ModTime.Unix(), 0), maxTime), 0)
	if err := x.root.Chtimes(name, mtime, mtime); err != nil {
		return writeFault("set time", name, err)
	}
	if err := f.Close(); err != nil {
		return writeFault("close file", name, err)
	}
	return x.chown(name, hdr.Uid, hdr.Gid)
}

func (x *extractor) symlink(name string, hdr *tar.Header) error {
	// Any target will do: it is resolved inside a sandbox, whose root is this
	// tree, and never by the host.
	if hdr.Linkname == "" || len(hdr.Linkname) > maxName {
		return hostile(hdr.Name, "link target is empty or too long")
	}
	if err := x.root.Symlink(hdr.Linkname, name); err != nil {
		return existsFault("make link", name, err)
	}
	return x.chown(name, hdr.Uid, hdr.Gid)
}

func (x *extractor) hardlink(name string, hdr *tar.Header) error {
	target, err := cleanName(hdr.Linkname)
	if err != nil {
		return err
	}
	if _, ok := x.dirs[parentOf(target)]; !ok {
		return hostile(hdr.Name, "hard link to a file that no earlier entry made")
	}
	fi, err := x.root.Lstat(target)
	if errors.Is(err, fs.ErrNotExist) {
		return hostile(hdr.Name, "hard link to a file that no earlier entry made")
	}
	if err != nil {
		return writeFault("look at link target", name, err)
	}
	if !fi.Mode().IsRegular() {
		return hostile(hdr.Name, "hard link to something that is not a file")
	}
	if err := x.root.Link(target, name); err != nil {
		return existsFault("make hard link", name, err)
	}
	return nil
}

func (x *extractor) chown(name string, uid, gid int) error {
	if !x.own {
		return nil
	}
	if err := x.root.Lchown(name, uid, gid); err != nil {
		return writeFault("set owner", name, err)
	}
	return nil
}

// setMode goes through a handle of the directory: os.Root.Chmod needs
// fchmodat2(2), which is new in Linux 6.6.
func (x *extractor) setMode(name string, mode fs.FileMode) error {
	dir, err := x.root.Open(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Chmod(mode)
}

// finishDirs gives directories their mode and owner, children before parents.
// The root's are the store's business.
func (x *extractor) finishDirs() error {
	names := make([]string, 0, len(x.dirs))
	for name := range x.dirs {
		if name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Backward(names) {
		meta := x.dirs[name]
		if err := x.setMode(name, meta.mode); err != nil {
			return writeFault("set mode", name, err)
		}
		if err := x.chown(name, meta.uid, meta.gid); err != nil {
			return err
		}
	}
	return nil
}

// checkShape refuses what unpacks well and still is no root file system.
func (x *extractor) checkShape() error {
	if x.rep.Entries == 0 {
		return fault.New(fault.InvalidArgument, "tar", "archive has no entries",
			"give a tar of a root file system")
	}
	if _, err := x.root.Lstat("oci-layout"); err == nil {
		return fault.New(fault.InvalidArgument, "tar", "archive is an OCI layout, not a root file system",
			"flatten the image first: export a container's file system, not its layers")
	}
	_, hasEtc := x.dirs["etc"]
	_, hasUsr := x.dirs["usr"]
	if _, err := x.root.Lstat("manifest.json"); err == nil && !hasEtc && !hasUsr {
		return fault.New(fault.InvalidArgument, "tar", "archive is a saved layer image, not a root file system",
			"flatten the image first: export a container's file system, not its layers")
	}
	return nil
}

// copyFault tells a broken archive from a full disk.
func copyFault(name string, err error) error {
	if _, ok := errors.AsType[*fs.PathError](err); ok {
		return writeFault("write file", name, err)
	}
	return badArchive(err)
}

func existsFault(op, name string, err error) error {
	if errors.Is(err, fs.ErrExist) {
		return hostile(name, "two entries have this name")
	}
	return writeFault(op, name, err)
}
