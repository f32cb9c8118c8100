package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// suite is what users have. The host's own sources must know it.
const suite = "bookworm"

// packages are what a host of Cordon needs, beside what every Debian has.
var packages = []string{
	"systemd", "systemd-sysv", "dbus", "udev", "kmod", "iproute2", "procps", "perl-base",
	"libseccomp2", "e2fsprogs", "ca-certificates", "linux-image-cloud-amd64",
}

const (
	rootLabel = "guest-root"
	diskLabel = "guest-disk" // guest/guest.service says it too
	rootSize  = "2500M"      // sparse
)

//go:embed guest/guest.service
var guestUnit []byte

// system is a root file system and what boots it.
type system struct{ root, kernel, initrd string }

// recipe is all that a root file system is made from. The time is not in it:
// an old image is made anew by removing it.
func recipe() string {
	return strings.Join([]string{suite, "minbase", strings.Join(packages, ","), rootLabel, rootSize, string(guestUnit)}, "\n")
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])[:16]
}

// cachedSystem returns the system of the recipe, made now if it is not there.
func cachedSystem(ctx context.Context, cache string) (_ system, err error) {
	dir := filepath.Join(cache, digest(recipe()))
	s := system{
		root: filepath.Join(dir, "root.ext4"), kernel: filepath.Join(dir, "vmlinuz"), initrd: filepath.Join(dir, "initrd.img"),
	}
	if _, err := os.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return s, fmt.Errorf("cache: %w", err)
	}
	build, err := os.MkdirTemp(cache, "build-")
	if err != nil {
		return s, fmt.Errorf("cache: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(build)) }()
	fmt.Println("vm: making a root file system; it is kept in", dir)
	if err := makeSystem(ctx, build); err != nil {
		return s, err
	}
	// Another run may have been faster; its result is as good.
	if err := os.Rename(filepath.Join(build, "out"), dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return s, fmt.Errorf("cache: %w", err)
	}
	return s, nil
}

// makeSystem leaves a system in build/out.
func makeSystem(ctx context.Context, build string) error {
	root, out := filepath.Join(build, "root"), filepath.Join(build, "out")
	if err := os.Mkdir(out, 0o755); err != nil {
		return fmt.Errorf("make system: %w", err)
	}
	lines, err := sources(ctx)
	if err != nil {
		return err
	}
	list := filepath.Join(build, "sources.list")
	if err := os.WriteFile(list, lines, 0o644); err != nil {
		return fmt.Errorf("make system: %w", err)
	}
	err = command(ctx, "mmdebstrap", "--quiet", "--variant=minbase", "--include="+strings.Join(packages, ","), suite, root, list)
	if err != nil {
		return err
	}
	if err := installUnit(root); err != nil {
		return err
	}
	for _, name := range []string{"vmlinuz", "initrd.img"} {
		if err := copyFile(filepath.Join(root, name), filepath.Join(out, name), 0o644); err != nil {
			return err
		}
	}
	return makeExt4(ctx, root, filepath.Join(out, "root.ext4"), rootLabel, rootSize)
}

// sources are this host's own lines for the suite, from apt itself, since
// they can be written in two formats and in many files.
func sources(ctx context.Context) ([]byte, error) {
	out, err := exec.CommandContext(ctx, "apt-get", "indextargets", "--format", "deb $(REPO_URI) $(RELEASE) $(COMPONENT)",
		"Created-By: Packages", "Origin: Debian", "Architecture: amd64").Output()
	if err != nil {
		return nil, fmt.Errorf("list package sources: %w", err)
	}
	var lines bytes.Buffer
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) == 4 && (f[2] == suite || strings.HasPrefix(f[2], suite+"-")) {
			lines.WriteString(line)
		}
	}
	if lines.Len() == 0 {
		return nil, fmt.Errorf("list package sources: none is for Debian %s [add one and run apt-get update]", suite)
	}
	return lines.Bytes(), nil
}

// installUnit has the guest run what is on its second disk.
func installUnit(root string) error {
	units := filepath.Join(root, "etc/systemd/system")
	wants := filepath.Join(units, "multi-user.target.wants")
	err := errors.Join(
		os.MkdirAll(wants, 0o755),
		os.WriteFile(filepath.Join(units, "guest.service"), guestUnit, 0o644),
		os.Symlink("../guest.service", filepath.Join(wants, "guest.service")),
		os.WriteFile(filepath.Join(root, "etc/hostname"), []byte("guest\n"), 0o644),
	)
	if err != nil {
		return fmt.Errorf("install unit: %w", err)
	}
	return nil
}

// makeExt4 makes an image of a directory.
func makeExt4(ctx context.Context, dir, image, label, size string) error {
	return command(ctx, "mke2fs", "-q", "-t", "ext4", "-L", label, "-m", "0", "-d", dir, image, size)
}

// command runs a program that says something only when it goes wrong.
func command(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, bytes.TrimSpace(out))
	}
	return nil
}

func copyFile(from, to string, mode fs.FileMode) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	if err := os.WriteFile(to, b, mode); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	return nil
}
