package artifacts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"cordon/internal/sys"

	"golang.org/x/sys/unix"
)

// copyStep is how many files go between two progress lines.
const copyStep = 2000

// HostSource says what host to take the snapshot of.
type HostSource struct {
	// Root is the host's root directory; default "/".
	Root string
	// Packages replaces the built-in list of packages that are wanted beside
	// the essential and required ones; default nil, the built-in list.
	Packages []string
}

// SnapshotHost makes the image "host" out of the host's package database and
// files, or returns the one there is. Calls at the same time make one. The
// database and the files are the operator's and trusted; a file that changes
// while it is read ends the snapshot. progress may be nil. Nothing is left on
// error.
func (s *Store) SnapshotHost(ctx context.Context, src HostSource, progress func(string)) (info ImageInfo, err error) {
	if info, ok := s.ByName(HostImage); ok {
		return info, nil
	}
	select {
	case s.snapshot <- struct{}{}:
		defer func() { <-s.snapshot }()
	case <-ctx.Done():
		return ImageInfo{}, ctx.Err()
	}
	if info, ok := s.ByName(HostImage); ok { // made while we waited
		return info, nil
	}
	if src.Root == "" {
		src.Root = "/"
	}
	if src.Packages == nil {
		src.Packages = hostPackages
	}
	release, err := s.reserveImage()
	if err != nil {
		return ImageInfo{}, err
	}
	defer release()
	st, err := s.newStaging(s.cfg.ImageIDBase)
	if err != nil {
		return ImageInfo{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(st.dir)) }()
	say := speaker(progress)
	if err := s.copyHost(ctx, src, st.rootfs, say); err != nil {
		return ImageInfo{}, err
	}
	say("computing the digest")
	return s.finish(ctx, st, HostImage, "host")
}

func (s *Store) copyHost(ctx context.Context, src HostSource, rootfs string, say func(string, ...any)) error {
	host, err := openDir(src.Root)
	if err != nil {
		return fmt.Errorf("open host root: %w", err)
	}
	defer host.Close()
	out, err := os.OpenRoot(rootfs)
	if err != nil {
		return err
	}
	defer out.Close()
	before, err := statusStamp(host)
	if err != nil && !notThere(err) {
		return err
	}
	say("reading the package database")
	facts, err := readHost(host)
	if err != nil {
		return err
	}
	packages := facts.db.closure(src.Packages, hostSkip)
	if err := facts.readLists(host, packages); err != nil {
		return err
	}
	c := newHostCopier(ctx, host, out, s.cfg.ImageIDBase, s.cfg.limits())
	if err := c.all(facts, packages, say); err != nil {
		return err
	}
	// A package that came or went meanwhile leaves a mix of two states.
	if after, err := statusStamp(host); err != nil || after != before {
		return errors.Join(hostChanged("the package database"), err)
	}
	return nil
}

func (c *hostCopier) all(facts hostFacts, packages []*dpkgPackage, say func(string, ...any)) error {
	plan := planHost(facts, packages)
	for i, item := range plan {
		if i%copyStep == 0 {
			say("copied %d of %d files of %d packages, %d MiB", i, len(plan), len(packages), c.bytes>>20)
		}
		if err := c.copy(item); err != nil {
			return err
		}
	}
	files := syntheticFiles()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := c.write(name, files[name]); err != nil {
			return err
		}
	}
	for _, l := range append(planLinks(facts, c.has), syntheticLinks(c.has)...) {
		if err := c.link(l); err != nil {
			return err
		}
	}
	say("copied %d MiB; left out: %d files not there, %d not readable by everyone, %d of other types",
		c.bytes>>20, c.skips.missing, c.skips.private, c.skips.special)
	return nil
}

func statusStamp(host *os.File) (inodeStamp, error) {
	f, err := sys.OpenInRoot(host, dpkgDir+"status", unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return inodeStamp{}, err
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return inodeStamp{}, &os.PathError{Op: "fstat", Path: f.Name(), Err: err}
	}
	return inodeStamp{dev: st.Dev, ino: st.Ino, mode: st.Mode, uid: st.Uid, ctime: st.Ctim}, nil
}
