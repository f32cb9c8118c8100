package unpack

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// tarOf builds an archive; a header without a size gets its body's.
func tarOf(t testing.TB, entries ...tarEntry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if e.Typeflag == 0 {
			e.Typeflag = tar.TypeReg
		}
		if e.Mode == 0 && e.Typeflag != tar.TypeXGlobalHeader {
			e.Mode = 0o644
		}
		e.Size = int64(len(e.body))
		if err := w.WriteHeader(&e.Header); err != nil {
			t.Fatalf("write header %q: %v", e.Name, err)
		}
		if _, err := io.WriteString(w, e.body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type tarEntry struct {
	tar.Header
	body string
}

func file(name, body string) tarEntry { return tarEntry{tar.Header{Name: name}, body} }
func dir(name string) tarEntry {
	return tarEntry{tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}, ""}
}

func symlink(name, to string) tarEntry {
	return tarEntry{tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}, ""}
}

func hardlink(name, to string) tarEntry {
	return tarEntry{tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}, ""}
}

func node(name string, typ byte) tarEntry {
	return tarEntry{tar.Header{Name: name, Typeflag: typ, Devmajor: 1, Devminor: 3}, ""}
}

// sandbox makes an empty root with a sibling that must stay as it is.
func sandbox(t testing.TB) (root *os.Root, check func()) {
	t.Helper()
	top := t.TempDir()
	outside := filepath.Join(top, "outside")
	if err := os.WriteFile(outside, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(top, "root"), 0o700); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(filepath.Join(top, "root"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // without root, a read-only directory cannot be removed
		for name := range modes(t, root) {
			if fi, err := root.Lstat(name); err == nil && fi.IsDir() {
				_ = root.Chmod(name, 0o700)
			}
		}
		root.Close()
	})
	return root, func() {
		t.Helper()
		fi, err := os.Stat(outside)
		if err != nil || fi.Size() != int64(len("untouched")) || fi.Mode() != 0o600 {
			t.Fatalf("file outside the root was touched: %v %v", fi, err)
		}
		left, err := os.ReadDir(top)
		if err != nil || len(left) != 2 {
			t.Fatalf("entries beside the root: %v %v", left, err)
		}
	}
}

// modes lists the tree and fails on what an image must not hold.
func modes(t testing.TB, root *os.Root) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := fs.WalkDir(root.FS(), ".", func(p string, _ fs.DirEntry, err error) error {
		if err != nil || p == "." {
			return err
		}
		fi, err := root.Lstat(p)
		if err != nil {
			return err
		}
		if fi.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky|fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket) != 0 {
			t.Errorf("%q has mode %v", p, fi.Mode())
		}
		out[p] = fi.Mode().String()
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrPermission) { // a mode 0 directory, without root
		t.Fatal(err)
	}
	return out
}

func gzipOf(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(b)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func bomb(t testing.TB) []byte {
	return tarOf(t, file("zeros", string(make([]byte, 4<<20))))
}

func cut(b []byte, n int) []byte { return b[:len(b)-n] }

func flip(b []byte, at int) []byte {
	b[len(b)+at] ^= 0xff
	return b
}

// sparseTar is an old GNU sparse file: one real block, and a logical size.
func sparseTar(size int64) []byte {
	var h [512]byte
	octal := func(at, width int, v int64) {
		if width == 12 && v >= 1<<33 { // base-256, as GNU tar writes large numbers
			for i := range 11 {
				h[at+11-i] = byte(v >> (8 * i))
			}
			h[at] = 0x80
			return
		}
		copy(h[at:], leftPad(v, width-1))
	}
	copy(h[0:], "sparse")
	octal(100, 8, 0o644)
	octal(108, 8, 0)
	octal(116, 8, 0)
	octal(124, 12, 512) // stored bytes
	octal(136, 12, 0)
	h[156] = 'S'
	copy(h[257:], "ustar  \x00")
	octal(386, 12, size-512) // offset of the one block
	octal(398, 12, 512)
	octal(483, 12, size) // logical size
	copy(h[148:], "        ")
	var sum int64
	for _, c := range h {
		sum += int64(c)
	}
	copy(h[148:], leftPad(sum, 6)+"\x00 ")
	return append(append(h[:], make([]byte, 512)...), make([]byte, 1024)...)
}

func leftPad(v int64, width int) string {
	digits := make([]byte, width)
	for i := range digits {
		digits[width-1-i] = byte('0' + v>>(3*i)&7)
	}
	return string(digits)
}
