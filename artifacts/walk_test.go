package artifacts

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cordon/artifacts/unpack"
	"cordon/internal/fault"

	"golang.org/x/sys/unix"
)

// makeTree makes a small image tree and returns its directory.
func makeTree(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "rootfs")
	for _, step := range []error{
		os.Mkdir(dir, 0o755),
		os.Mkdir(filepath.Join(dir, "d"), 0o755),
		os.WriteFile(filepath.Join(dir, "d", "f"), []byte("hello"), 0o644),
		os.Symlink("d/f", filepath.Join(dir, "l")),
		os.Link(filepath.Join(dir, "d", "f"), filepath.Join(dir, "h")),
		os.Chtimes(filepath.Join(dir, "h"), time.Unix(5, 0), time.Unix(5, 0)),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	for _, p := range []string{".", "d", "d/f", "l"} {
		if err := os.Lchown(filepath.Join(dir, p), testIDBase, testIDBase); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestDigestTreeSeesChanges(t *testing.T) {
	requireRoot(t)
	for _, tt := range []struct {
		name   string
		change func(dir string) error
		same   bool
	}{
		{"nothing", func(string) error { return nil }, true},
		{"time of a directory", func(d string) error { return os.Chtimes(d+"/d", time.Unix(9, 0), time.Unix(9, 0)) }, true},
		{"content of the same size", func(d string) error {
			return errors.Join(os.WriteFile(d+"/h", []byte("hellO"), 0o644), os.Chtimes(d+"/h", time.Unix(5, 0), time.Unix(5, 0)))
		}, false},
		{"mode of a file", func(d string) error { return os.Chmod(d+"/h", 0o600) }, false},
		{"mode of a directory", func(d string) error { return os.Chmod(d+"/d", 0o700) }, false},
		{"mode of the root", func(d string) error { return os.Chmod(d, 0o700) }, false},
		{"owner", func(d string) error { return os.Lchown(d+"/h", testIDBase+1, testIDBase) }, false},
		{"group of a link", func(d string) error { return os.Lchown(d+"/l", testIDBase, testIDBase+1) }, false},
		{"time of a file", func(d string) error { return os.Chtimes(d+"/h", time.Unix(6, 0), time.Unix(6, 0)) }, false},
		{"target of a link", func(d string) error {
			return errors.Join(os.Remove(d+"/l"), os.Symlink("d/g", d+"/l"), os.Lchown(d+"/l", testIDBase, testIDBase))
		}, false},
		{"name", func(d string) error { return os.Rename(d+"/h", d+"/i") }, false},
		{"removal", func(d string) error { return os.Remove(d + "/h") }, false},
		{"an empty directory", func(d string) error {
			return errors.Join(os.Mkdir(d+"/e", 0o755), os.Lchown(d+"/e", testIDBase, testIDBase))
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := makeTree(t)
			before, err := DigestTree(t.Context(), dir, testIDBase)
			if err != nil {
				t.Fatal(err)
			}
			if before.Bytes != 5 || before.Files != 4 {
				t.Errorf("got %+v, want 5 bytes (the hard link once) in 4 entries", before)
			}
			if err := tt.change(dir); err != nil {
				t.Fatal(err)
			}
			after, err := DigestTree(t.Context(), dir, testIDBase)
			if err != nil {
				t.Fatal(err)
			}
			if same := before.Digest == after.Digest; same != tt.same {
				t.Errorf("same digest: %v, want %v", same, tt.same)
			}
		})
	}
}

func TestDigestTreeRefuses(t *testing.T) {
	requireRoot(t)
	for _, tt := range []struct {
		name   string
		spoil  func(dir string) error
		reason string
	}{
		{"setuid", func(d string) error { return os.Chmod(d+"/h", 0o755|os.ModeSetuid) }, "mode bits 04000"},
		{"setgid directory", func(d string) error { return os.Chmod(d+"/d", 0o755|os.ModeSetgid) }, "mode bits 02000"},
		{"sticky root", func(d string) error { return os.Chmod(d, 0o755|os.ModeSticky) }, "mode bits 01000"},
		{"owner root", func(d string) error { return os.Lchown(d+"/h", 0, testIDBase) }, "foreign owner"},
		{"group above the range", func(d string) error { return os.Lchown(d+"/l", testIDBase, testIDBase+65536) }, "foreign owner"},
		{"fifo", func(d string) error { return unix.Mkfifo(d+"/p", 0o644) }, "type"},
		{"device", func(d string) error { return unix.Mknod(d+"/n", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))) }, "type"},
		{"socket", func(d string) error { return makeSocket(d + "/s") }, "type"},
		{"file capability", func(d string) error {
			return unix.Setxattr(d+"/h", "security.capability", []byte("\x01\x00\x00\x02\xff\xff\xff\xff\x00\x00\x00\x00\xff\x00\x00\x00\x00\x00\x00\x00"), 0)
		}, "extended attribute"},
		{"overlay attribute", func(d string) error { return unix.Setxattr(d+"/d", "trusted.overlay.opaque", []byte("y"), 0) }, "extended attribute"},
		{"many attributes", func(d string) (err error) {
			for i := range 20 {
				err = errors.Join(err, unix.Setxattr(d+"/h", fmt.Sprintf("user.attribute-%d", i), []byte("y"), 0))
			}
			return err
		}, "extended attribute"},
		{"deep", func(d string) error { return makeDeep(d) }, "directories deep"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := makeTree(t)
			if err := tt.spoil(dir); errors.Is(err, unix.EOPNOTSUPP) {
				t.Skip("needs a file system with extended attributes")
			} else if err != nil {
				t.Fatal(err)
			}
			_, err := DigestTree(t.Context(), dir, testIDBase)
			if fault.CodeOf(err) != fault.HostileImage || !strings.Contains(err.Error(), tt.reason) {
				t.Errorf("got %v, want hostile_image with %q", err, tt.reason)
			}
		})
	}
}

// What is mounted over a part of the tree is not the tree.
func TestDigestTreeRefusesMounts(t *testing.T) {
	requireRoot(t)
	dir := makeTree(t)
	if err := unix.Mount("cordon-test", dir+"/d", "tmpfs", 0, ""); err != nil {
		t.Skipf("needs tmpfs: %v", err)
	}
	defer func() {
		if err := unix.Unmount(dir+"/d", 0); err != nil {
			t.Error(err)
		}
	}()
	if _, err := DigestTree(t.Context(), dir, testIDBase); fault.CodeOf(err) != fault.HostileImage {
		t.Errorf("got %v", err)
	}
}

func TestWalkLimits(t *testing.T) {
	requireRoot(t)
	dir := makeTree(t)
	for _, tt := range []struct {
		name string
		lim  unpack.Limits
		want fault.Code
	}{
		{"enough", unpack.Limits{Bytes: 5, Files: 4}, ""},
		{"bytes", unpack.Limits{Bytes: 4, Files: 4}, fault.TooLarge},
		{"files", unpack.Limits{Bytes: 5, Files: 3}, fault.TooLarge},
	} {
		root, err := openDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		_, err = walkTree(t.Context(), root, testIDBase, tt.lim)
		root.Close()
		if fault.CodeOf(err) != tt.want || tt.want == "" && err != nil {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.want)
		}
	}
}

func TestWalkEndsWithContext(t *testing.T) {
	requireRoot(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := DigestTree(ctx, makeTree(t), testIDBase); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// A link in place of the tree itself must not be walked either.
func TestDigestTreeFollowsNoLink(t *testing.T) {
	requireRoot(t)
	dir := makeTree(t)
	if err := os.Symlink(dir, dir+"-link"); err != nil {
		t.Fatal(err)
	}
	if tree, err := DigestTree(t.Context(), dir+"-link", testIDBase); err == nil {
		t.Errorf("got %+v, want an error", tree)
	}
}

func makeSocket(path string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	return l.Close()
}

func makeDeep(dir string) error {
	for range maxWalkDepth + 2 {
		dir += "/n"
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Lchown(dir, testIDBase, testIDBase)); err != nil {
			return err
		}
	}
	return nil
}
