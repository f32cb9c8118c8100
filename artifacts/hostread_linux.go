package artifacts

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"cordon/internal/fault"
	"cordon/internal/sys"

	"golang.org/x/sys/unix"
)

const dpkgDir = "var/lib/dpkg/"

// readHost reads the package database of the host below root.
func readHost(root *os.File) (hostFacts, error) {
	f := hostFacts{lists: map[string][]string{}, current: map[string]string{}, merged: map[string]string{}}
	err := withFile(root, dpkgDir+"status", func(r io.Reader) (err error) {
		f.db, err = parseStatus(r)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return f, fault.Wrap(err, fault.MissingFeature, "host", "host has no package database (/var/lib/dpkg/status)",
			"import an image with cordon image import")
	}
	if err != nil {
		return f, err
	}
	err = withFile(root, dpkgDir+"diversions", func(r io.Reader) (err error) {
		f.diversions, err = parseDiversions(r)
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	for _, read := range []func(*os.File) error{f.readMerged, f.readAlternatives, f.readCerts} {
		if err := read(root); err != nil {
			return f, err
		}
	}
	return f, nil
}

// readLists reads the file lists of packages.
func (f *hostFacts) readLists(root *os.File, packages []*dpkgPackage) error {
	for _, p := range packages {
		add := func(file string) { f.lists[p.id()] = append(f.lists[p.id()], file) }
		err := withFile(root, dpkgDir+"info/"+p.id()+".list", func(r io.Reader) error { return parseFileList(r, add) })
		if errors.Is(err, fs.ErrNotExist) { // only Multi-Arch: same packages have the architecture in the name
			err = withFile(root, dpkgDir+"info/"+p.name+".list", func(r io.Reader) error { return parseFileList(r, add) })
		}
		if err != nil {
			return fmt.Errorf("read files of package %s: %w", p.id(), err)
		}
	}
	return nil
}

func (f *hostFacts) readMerged(root *os.File) error {
	for _, top := range mergedDirs {
		target, err := readlinkat(root, top)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, fs.ErrNotExist) {
			continue // a real directory, or none
		}
		if err != nil {
			return err
		}
		if f.merged[top], err = mergedTarget(top, target); err != nil {
			return err
		}
	}
	return nil
}

func (f *hostFacts) readAlternatives(root *os.File) error {
	names, err := listDir(root, dpkgDir+"alternatives")
	if err != nil {
		return err
	}
	for _, name := range names {
		err := withFile(root, dpkgDir+"alternatives/"+name, func(r io.Reader) error {
			alt, err := parseAlternative(name, r)
			f.alternatives = append(f.alternatives, alt)
			return err
		})
		if err != nil {
			return err
		}
	}
	links, err := readLinks(root, "etc/alternatives")
	for _, l := range links {
		f.current[strings.TrimPrefix(l.path, "etc/alternatives/")] = l.target
	}
	return err
}

func (f *hostFacts) readCerts(root *os.File) (err error) {
	f.certs, err = readLinks(root, "etc/ssl/certs")
	return err
}

// readLinks lists the links of a directory; none when there is no directory.
func readLinks(root *os.File, dir string) ([]hostLink, error) {
	names, err := listDir(root, dir)
	if err != nil || names == nil {
		return nil, err
	}
	d, err := sys.OpenInRoot(root, dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	var links []hostLink
	for _, name := range names {
		target, err := readlinkat(d, name)
		if errors.Is(err, unix.EINVAL) {
			continue // not a link
		}
		if err != nil {
			return nil, err
		}
		links = append(links, hostLink{path: dir + "/" + name, target: target})
	}
	return links, nil
}

func listDir(root *os.File, dir string) ([]string, error) {
	d, err := sys.OpenInRoot(root, dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

func withFile(root *os.File, path string, fn func(io.Reader) error) error {
	f, err := sys.OpenInRoot(root, path, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	return fn(f)
}
