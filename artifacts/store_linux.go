package artifacts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"cordon/internal/fault"
	"cordon/jail"

	"golang.org/x/sys/unix"
)

// The layout below Config.Dir. Everything is root's and 0700 but what is in
// rootfs/, which belongs to the image ids.
//
//	images/sha256-<hex>/rootfs/       the tree
//	images/sha256-<hex>/image.json    its manifest
//	images/.staging/<random>/         images in the making
//	inputs/staged/<tenant>/sha256-<hex>
//	inputs/incoming/<random>          inputs on their way in
//	inputs/leases/<lease>/<name>      hard links of staged files
const (
	imagesDir   = "images"
	stagingDir  = ".staging"
	rootfsDir   = "rootfs"
	inputsDir   = "inputs"
	stagedDir   = "staged"
	incomingDir = "incoming"
	leasesDir   = "leases"
)

// maxImports bounds the worker processes at a time.
const maxImports = 2

// ImageInfo describes one stored image.
type ImageInfo struct {
	Digest  string    `json:"digest"`
	Name    string    `json:"name"`
	Bytes   int64     `json:"bytes"` // of its files, hard links once
	Files   int64     `json:"files"` // entries of every kind
	Created time.Time `json:"created"`
}

// Store holds images and inputs. Make one with Open.
type Store struct {
	cfg Config

	imports  chan struct{} // a slot per running worker
	snapshot chan struct{} // held while the host image is made
	publish  sync.Mutex    // orders the last step of two new images

	mu     sync.Mutex
	images map[string]*image // by digest; guarded by mu
	making int               // images in the making; guarded by mu

	inputs sync.Mutex       // held to link, place or remove a staged file
	stock  map[string]stock // by tenant; guarded by inputs
}

// image is one published image. Its fields but the verification state never
// change.
type image struct {
	info   ImageInfo
	idBase uint32
	dir    string

	verify   sync.Mutex // one verification at a time
	verified bool       // guarded by verify
	seen     stamp      // guarded by verify
	bad      error      // a verification that failed; guarded by verify
}

// Open makes the directories that are missing, drops what an earlier daemon
// left half-made, reads the manifests of the images and counts the inputs. Precondition: the
// caller holds the lock on the state directory.
func Open(cfg Config) (*Store, error) {
	cfg.fill()
	if err := cfg.check(); err != nil {
		return nil, err
	}
	s := &Store{
		cfg:     cfg,
		imports: make(chan struct{}, maxImports), snapshot: make(chan struct{}, 1),
		images: make(map[string]*image), stock: make(map[string]stock),
	}
	if err := s.makeDirs(); err != nil {
		return nil, err
	}
	if err := s.dropHalfMade(); err != nil {
		return nil, err
	}
	if err := s.load(); err != nil {
		return nil, err
	}
	if err := s.loadStock(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.cfg.Dir}, elem...)...)
}

func (s *Store) makeDirs() error {
	if err := os.MkdirAll(s.cfg.Dir, 0o711); err != nil {
		return fmt.Errorf("make state directory: %w", err)
	}
	for _, dir := range [][]string{
		{imagesDir},
		{imagesDir, stagingDir},
		{inputsDir},
		{inputsDir, stagedDir},
		{inputsDir, incomingDir},
		{inputsDir, leasesDir},
	} {
		path := s.path(dir...)
		if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make store directory: %w", err)
		}
		if err := checkPrivate(path); err != nil {
			return err
		}
	}
	return nil
}

// checkPrivate refuses a store directory that someone else could write or
// replace.
func checkPrivate(path string) error {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return fmt.Errorf("check store directory %s: not a directory of ours with mode 0700 [remove it]", path)
	}
	return nil
}

// dropHalfMade removes what only a crash leaves.
func (s *Store) dropHalfMade() error {
	var errs []error
	for _, dir := range []string{s.path(imagesDir, stagingDir), s.path(inputsDir, incomingDir)} {
		errs = append(errs, removeEntries(dir, func(string) bool { return true }))
	}
	// A lease that was being attached; finished ones wait for Detach.
	errs = append(errs, removeEntries(s.path(inputsDir, leasesDir), func(name string) bool {
		return strings.HasPrefix(name, newLeasePrefix)
	}))
	return errors.Join(errs...)
}

func removeEntries(dir string, match func(name string) bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list store directory: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if match(e.Name()) {
			errs = append(errs, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

func (s *Store) load() error {
	entries, err := os.ReadDir(s.path(imagesDir))
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	for _, e := range entries {
		if e.Name() == stagingDir {
			continue
		}
		img, err := loadImage(s.path(imagesDir, e.Name()))
		if err != nil {
			return fmt.Errorf("load image %s: %w [remove the directory]", e.Name(), err)
		}
		s.images[img.info.Digest] = img
	}
	return nil
}

// OpenImage returns the image with this digest. The first call for an image
// in a daemon's life reads its whole tree and compares the digest; later ones
// compare the root directory's and the manifest's inode, mode, owner and
// change time with those of then, and read all again when one differs. What
// root changes below the top directory in between is not noticed.
func (s *Store) OpenImage(digest string) (jail.Image, error) {
	if _, ok := digestHex(digest); !ok {
		return jail.Image{}, fault.New(fault.UnknownImage, "image_digest",
			fmt.Sprintf("%.100q is not a digest (sha256: and 64 hex digits)", digest), "see cordon image ls")
	}
	s.mu.Lock()
	img := s.images[digest]
	s.mu.Unlock()
	if img == nil {
		return jail.Image{}, fault.New(fault.UnknownImage, "image_digest",
			"no image "+digest+" on this host", "see cordon image ls")
	}
	if err := img.check(); err != nil {
		return jail.Image{}, err
	}
	return jail.Image{
		Digest: digest,
		Path:   filepath.Join(img.dir, rootfsDir),
		IDBase: img.idBase,
	}, nil
}

func (img *image) check() error {
	img.verify.Lock()
	defer img.verify.Unlock()
	if img.bad != nil {
		return img.bad
	}
	now, err := stampOf(img.dir)
	if err != nil {
		return fmt.Errorf("open image %s: %w", img.info.Digest, err)
	}
	if img.verified && now == img.seen {
		return nil
	}
	// Not the caller's context: a client that leaves must not make the next
	// one start over.
	tree, err := DigestTree(context.Background(), filepath.Join(img.dir, rootfsDir), img.idBase)
	if err != nil && fault.CodeOf(err) == "" {
		return fmt.Errorf("verify image %s: %w", img.info.Digest, err)
	}
	if err != nil || tree.Digest != img.info.Digest {
		got := "a tree that no image may hold"
		if err == nil {
			got = tree.Digest
		}
		// It stays refused until the daemon starts anew: a store that changes
		// under us is not to be asked again.
		img.bad = fault.Wrap(err, fault.DigestMismatch, "image_digest",
			fmt.Sprintf("image %s on disk is %s", img.info.Digest, got),
			"remove "+img.dir+", restart the daemon and make the image again")
		return img.bad
	}
	img.verified, img.seen = true, now
	return nil
}

// List returns the images, oldest first.
func (s *Store) List() []ImageInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	infos := make([]ImageInfo, 0, len(s.images))
	for _, img := range s.images {
		infos = append(infos, img.info)
	}
	slices.SortFunc(infos, func(a, b ImageInfo) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
	})
	return infos
}

// ByName returns the image with this name.
func (s *Store) ByName(name string) (ImageInfo, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, img := range s.images {
		if img.info.Name == name {
			return img.info, true
		}
	}
	return ImageInfo{}, false
}
