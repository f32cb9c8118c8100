package artifacts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"cordon/artifacts/unpack"
	"cordon/internal/fault"
	"cordon/internal/sys"

	"golang.org/x/sys/unix"
)

const (
	manifestFile   = "image.json"
	manifestSchema = "cordon.image/v1"
	maxManifest    = 64 << 10
)

// manifest is image.json.
type manifest struct {
	Schema string `json:"schema"`
	ImageInfo
	Source string `json:"source"` // host or import
	IDBase uint32 `json:"id_base"`
}

// stamp is what the cheap check compares.
type stamp struct{ rootfs, manifest inodeStamp }

type inodeStamp struct {
	dev, ino  uint64
	mode, uid uint32
	ctime     unix.Timespec
}

func stampOf(dir string) (stamp, error) {
	rootfs, err := inodeStampOf(filepath.Join(dir, rootfsDir))
	if err != nil {
		return stamp{}, err
	}
	m, err := inodeStampOf(filepath.Join(dir, manifestFile))
	return stamp{rootfs: rootfs, manifest: m}, err
}

func inodeStampOf(path string) (inodeStamp, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return inodeStamp{}, &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	return inodeStamp{dev: st.Dev, ino: st.Ino, mode: st.Mode, uid: st.Uid, ctime: st.Ctim}, nil
}

// loadImage reads a published image's manifest; its tree is verified at the
// first OpenImage.
func loadImage(dir string) (*image, error) {
	f, err := os.Open(filepath.Join(dir, manifestFile))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxManifest))
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	var m manifest
	if err := dec.Decode(&m); err != nil {
		return nil, fmt.Errorf("decode %s: %w", manifestFile, err)
	}
	digits, ok := digestHex(m.Digest)
	if !ok || m.Schema != manifestSchema || filepath.Base(dir) != dirOf(digits) {
		return nil, fmt.Errorf("decode %s: schema %q or digest %q does not fit", manifestFile, m.Schema, m.Digest)
	}
	return &image{info: m.ImageInfo, idBase: m.IDBase, dir: dir}, nil
}

func dirOf(digits string) string { return "sha256-" + digits }

// staging is an image in the making.
type staging struct{ dir, rootfs string }

// newStaging makes an empty image root that owner (a host id) may fill. The
// caller removes st.dir unless it was published.
func (s *Store) newStaging(owner uint32) (staging, error) {
	dir, err := os.MkdirTemp(s.path(imagesDir, stagingDir), "")
	if err != nil {
		return staging{}, storeFault("make staging directory", err)
	}
	st := staging{dir: dir, rootfs: filepath.Join(dir, rootfsDir)}
	if err = os.Mkdir(st.rootfs, 0o700); err == nil {
		err = os.Lchown(st.rootfs, int(owner), int(owner))
	}
	if err != nil {
		return staging{}, errors.Join(storeFault("make staging directory", err), os.RemoveAll(dir))
	}
	return st, nil
}

// finish turns a filled staging directory into a published image: mount
// points are made or checked, the tree is walked, everything is on disk
// before the rename that makes it visible. When the same tree is stored under
// the same name already, that one is returned.
func (s *Store) finish(ctx context.Context, st staging, name, source string) (ImageInfo, error) {
	tree, err := s.seal(ctx, st)
	if err != nil {
		return ImageInfo{}, err
	}
	m := manifest{
		Schema: manifestSchema,
		ImageInfo: ImageInfo{
			Digest: tree.Digest, Name: name, Bytes: tree.Bytes, Files: tree.Files,
			Created: s.cfg.Now().UTC().Truncate(time.Second),
		},
		Source: source,
		IDBase: s.cfg.ImageIDBase,
	}
	if err := writeManifest(st.dir, m); err != nil {
		return ImageInfo{}, err
	}
	if err := syncFS(st.dir); err != nil {
		return ImageInfo{}, err
	}
	if err := ctx.Err(); err != nil {
		return ImageInfo{}, err
	}
	return s.publishImage(st, m)
}

// seal fixes the root, adds the mount points and digests the result.
func (s *Store) seal(ctx context.Context, st staging) (Tree, error) {
	root, err := openDir(st.rootfs)
	if err != nil {
		return Tree{}, err
	}
	defer root.Close()
	if err := ensureMountPoints(root, s.cfg.ImageIDBase); err != nil {
		return Tree{}, err
	}
	return walkTree(ctx, root, s.cfg.ImageIDBase, s.cfg.limits())
}

func (s *Store) publishImage(st staging, m manifest) (ImageInfo, error) {
	s.publish.Lock()
	defer s.publish.Unlock()
	old, err := s.conflict(m.ImageInfo)
	if err != nil {
		return ImageInfo{}, err
	}
	if old != nil {
		return old.info, nil
	}
	digits, _ := digestHex(m.Digest)
	dir := s.path(imagesDir, dirOf(digits))
	if err := os.Rename(st.dir, dir); err != nil {
		return ImageInfo{}, storeFault("publish image", err)
	}
	if err := syncDir(s.path(imagesDir)); err != nil {
		return ImageInfo{}, errors.Join(err, os.RemoveAll(dir))
	}
	img := &image{info: m.ImageInfo, idBase: m.IDBase, dir: dir}
	// This process just read the whole tree; it counts as the verification.
	if seen, err := stampOf(dir); err == nil {
		img.verified, img.seen = true, seen
	}
	s.mu.Lock()
	s.images[m.Digest] = img
	s.mu.Unlock()
	return m.ImageInfo, nil
}

// conflict looks for an image that want would collide with: nil, nil when
// there is none; the image when it is the same under the same name.
func (s *Store) conflict(want ImageInfo) (*image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.images[want.Digest]; old != nil {
		if old.info.Name == want.Name {
			return old, nil
		}
		return nil, fault.New(fault.Conflict, "name",
			"this tree is stored already, under the name "+old.info.Name, "use that name or the digest "+want.Digest)
	}
	for _, old := range s.images {
		if old.info.Name == want.Name {
			return nil, fault.New(fault.Conflict, "name",
				"image "+want.Name+" exists and is another tree, "+old.info.Digest, "choose another name")
		}
	}
	return nil, nil
}

func writeManifest(dir string, m manifest) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return fmt.Errorf("encode manifest: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, manifestFile), append(text, '\n'), 0o600); err != nil {
		return storeFault("write manifest", err)
	}
	return nil
}

// ensureMountPoints gives the tree what a sandbox mounts on, and refuses one
// where such a place is a link or something else: a mount there would land
// elsewhere (CVE-2019-19921, CVE-2023-27561, CVE-2023-28642).
func ensureMountPoints(root *os.File, idBase uint32) error {
	if err := own(root, idBase, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"proc", "sys", "dev", "tmp", "run", "workspace", "inputs", "etc", ".cordon"} {
		if err := ensureDir(root, name, idBase); err != nil {
			return err
		}
	}
	dir, err := sys.OpenBeneath(root, ".cordon", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer dir.Close()
	return ensureEmptyFile(dir, "init", idBase)
}

func ensureDir(root *os.File, name string, idBase uint32) error {
	err := unix.Mkdirat(int(root.Fd()), name, 0o755)
	made := err == nil
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return storeFault("make mount point", &os.PathError{Op: "mkdirat", Path: name, Err: err})
	}
	dir, err := sys.OpenBeneath(root, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return hostileTree(name, "is not a directory, but a place that a sandbox mounts on")
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	if !made {
		return nil
	}
	return own(dir, idBase, 0o755)
}

// ensureEmptyFile makes the mount point of the sandbox's PID 1.
func ensureEmptyFile(dir *os.File, name string, idBase uint32) error {
	f, err := sys.OpenBeneath(dir, name, unix.O_PATH|unix.O_NOFOLLOW)
	if errors.Is(err, fs.ErrNotExist) {
		return makeEmptyFile(dir, name, idBase)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &os.PathError{Op: "fstat", Path: name, Err: err}
	}
	if st.Mode != unix.S_IFREG|0o555 || st.Size != 0 || st.Nlink != 1 {
		return hostileTree(".cordon/init", "is not an empty file with mode 0555, but a place that a sandbox mounts on")
	}
	return nil
}

func makeEmptyFile(dir *os.File, name string, idBase uint32) error {
	fd, err := unix.Openat(int(dir.Fd()), name,
		unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o555)
	if err != nil {
		return storeFault("make mount point", &os.PathError{Op: "openat", Path: name, Err: err})
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if err := own(f, idBase, 0o555); err != nil {
		return err
	}
	// A fixed time, so that the digest depends on the tree alone.
	return os.NewSyscallError("futimes", unix.Futimes(fd, make([]unix.Timeval, 2)))
}

// own sets owner and mode, whatever the umask made of the latter.
func own(f *os.File, idBase uint32, mode fs.FileMode) error {
	if err := f.Chown(int(idBase), int(idBase)); err != nil {
		return err
	}
	return f.Chmod(mode)
}

// syncFS writes out the file system that holds dir: one call instead of an
// fsync for each of some ten thousand files.
func syncFS(dir string) error {
	f, err := openDir(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return storeFault("sync image", os.NewSyscallError("syncfs", err))
	}
	return nil
}

func syncDir(dir string) error {
	f, err := openDir(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}

// storeFault names a full disk; any other cause stays what it is.
func storeFault(op string, err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fault.Wrap(err, fault.DiskFull, "image and input store", op+": no space left",
			"free space under the daemon's state directory")
	}
	return fmt.Errorf("%s: %w", op, err)
}

// workerOwner is the host id that the unpack worker works as.
func (s *Store) workerOwner() uint32 { return s.cfg.ImageIDBase + unpack.WorkerID }
