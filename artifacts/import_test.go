package artifacts

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cordon/internal/fault"

	"github.com/google/go-cmp/cmp"
)

// tarEntry is one entry of a test archive.
type tarEntry struct {
	tar.Header
	body string
}

func tarOf(t testing.TB, entries ...tarEntry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		e.Size = int64(len(e.body))
		err := w.WriteHeader(&e.Header)
		if err == nil {
			_, err = io.WriteString(w, e.body)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func file(name, body string) tarEntry {
	return tarEntry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, ModTime: time.Unix(1_700_000_000, 0)}, body}
}

func initFile(mode int64, body string) tarEntry {
	return tarEntry{tar.Header{Name: ".cordon/init", Typeflag: tar.TypeReg, Mode: mode, ModTime: time.Unix(0, 0)}, body}
}

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
	return tarEntry{tar.Header{Name: name, Typeflag: typ, Mode: 0o666, Devmajor: 1, Devminor: 3}, ""}
}

func TestImportImage(t *testing.T) {
	requireRoot(t)
	s := openStore(t, nil)
	su := tarEntry{tar.Header{
		Name: "usr/bin/su", Typeflag: tar.TypeReg, Mode: 0o4755, Uid: 3, Gid: 4,
		PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "capabilities"},
	}, "su"}
	var said []string
	info, err := s.ImportImage(t.Context(), "small", bytes.NewReader(tarOf(t,
		dir("etc"), file("etc/passwd", "x"), su, symlink("bin", "usr/bin"), symlink("out", "/etc/shadow"),
		hardlink("usr/bin/sudo", "usr/bin/su"), node("dev/null", tar.TypeChar),
		tarEntry{tar.Header{Name: "tmp", Typeflag: tar.TypeDir, Mode: 0o1777}, ""},
		// Directories that the worker itself may not enter once they are done.
		tarEntry{tar.Header{Name: "a", Typeflag: tar.TypeDir, Mode: 0, Uid: 5, Gid: 6}, ""},
		tarEntry{tar.Header{Name: "a/b", Typeflag: tar.TypeDir, Mode: 0, Uid: 5, Gid: 6}, ""},
		tarEntry{tar.Header{Name: "a/b/c", Typeflag: tar.TypeReg, Mode: 0, Uid: 7, Gid: 8}, "c"},
	)), func(m string) { said = append(said, m) })
	if err != nil {
		t.Fatal(err)
	}
	img, err := s.OpenImage(info.Digest)
	if err != nil || img.IDBase != testIDBase || img.Digest != info.Digest {
		t.Fatalf("got %+v, %v", img, err)
	}
	want := map[string]string{
		".": "drwxr-xr-x 0:0", "etc": "drwxr-xr-x 0:0", "etc/passwd": "-rw-r--r-- 0:0",
		"a": "d--------- 5:6", "a/b": "d--------- 5:6", "a/b/c": "---------- 7:8",
		"usr": "drwxr-xr-x 0:0", "usr/bin": "drwxr-xr-x 0:0",
		"usr/bin/su": "-rwxr-xr-x 3:4", "usr/bin/sudo": "-rwxr-xr-x 3:4",
		"bin": "Lrwxrwxrwx 0:0 usr/bin", "out": "Lrwxrwxrwx 0:0 /etc/shadow",
		"proc": "drwxr-xr-x 0:0", "sys": "drwxr-xr-x 0:0", "dev": "drwxr-xr-x 0:0", "tmp": "drwxrwxrwx 0:0",
		"run": "drwxr-xr-x 0:0", "workspace": "drwxr-xr-x 0:0", "inputs": "drwxr-xr-x 0:0",
		".cordon": "drwxr-xr-x 0:0", ".cordon/init": "-r-xr-xr-x 0:0",
	}
	if diff := cmp.Diff(want, listTree(t, img.Path)); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
	if got := s.List(); !cmp.Equal(got, []ImageInfo{info}) || info.Name != "small" || info.Files != int64(len(want)-1) {
		t.Errorf("got list %+v, info %+v", got, info)
	}
	if want := "unpacked 11 entries, dropped 2 special mode bits, 1 extended attributes, 1 device nodes"; !strings.Contains(strings.Join(said, "\n"), want) {
		t.Errorf("progress %q lacks %q", said, want)
	}
	assertOnlyImages(t, s, info)
}

func TestImportImageIsRepeatable(t *testing.T) {
	requireRoot(t)
	in := tarOf(t, file("etc/passwd", "x"), symlink("a", "b"))
	var zipped bytes.Buffer
	w := gzip.NewWriter(&zipped)
	if _, err := w.Write(in); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, nil)
	first, err := s.ImportImage(t.Context(), "one", bytes.NewReader(in), nil)
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.ImportImage(t.Context(), "one", &zipped, nil)
	if err != nil || again != first {
		t.Errorf("same tree, same name: got %+v, %v; want %+v", again, err, first)
	}
	if _, err := s.ImportImage(t.Context(), "two", bytes.NewReader(in), nil); fault.CodeOf(err) != fault.Conflict {
		t.Errorf("same tree, other name: got %v, want conflict", err)
	}
	if _, err := s.ImportImage(t.Context(), "one", bytes.NewReader(tarOf(t, file("x", ""))), nil); fault.CodeOf(err) != fault.Conflict {
		t.Errorf("other tree, same name: got %v, want conflict", err)
	}
	other := openStore(t, func(c *Config) { c.ImageIDBase = testIDBase + 1<<20 })
	elsewhere, err := other.ImportImage(t.Context(), "three", bytes.NewReader(in), nil)
	if err != nil || elsewhere.Digest != first.Digest {
		t.Errorf("with another id base: got %+v, %v; want digest %s", elsewhere, err, first.Digest)
	}
	assertOnlyImages(t, s, first)
}

func TestImportImageRefuses(t *testing.T) {
	requireRoot(t)
	half := strings.Repeat("x", 600<<10)
	for _, tt := range []struct {
		name string
		in   []byte
		want fault.Code
		text string
	}{
		{"dot dot", tarOf(t, file("../x", "")), fault.HostileImage, ".. component"},
		{"through a link", tarOf(t, symlink("a", "/"), file("a/x", "")), fault.HostileImage, "link"},
		{"hard link out", tarOf(t, hardlink("a", "/etc/shadow")), fault.HostileImage, "absolute"},
		{"device", tarOf(t, node("disk", tar.TypeBlock)), fault.HostileImage, "type"},
		{"not a tar", []byte("hello"), fault.InvalidArgument, "not a readable tar"},
		{"nothing", nil, fault.InvalidArgument, "cut short|unexpected EOF|no entries"},
		{"too big", tarOf(t, file("a", half), file("b", half)), fault.TooLarge, "more than"},
		{"proc is a link", tarOf(t, symlink("proc", "etc")), fault.HostileImage, `"/proc" is not a directory`},
		{"sys is a link to nowhere", tarOf(t, symlink("sys", "nowhere")), fault.HostileImage, `"/sys" is not a directory`},
		{"dev is a link out", tarOf(t, symlink("dev", "/dev")), fault.HostileImage, `"/dev" is not a directory`},
		{"tmp is a file", tarOf(t, file("tmp", "")), fault.HostileImage, `"/tmp" is not a directory`},
		{"etc is a link", tarOf(t, symlink("etc", "usr")), fault.HostileImage, `"/etc" is not a directory`},
		{"workspace is a link", tarOf(t, symlink("workspace", "/")), fault.HostileImage, `"/workspace" is not a directory`},
		{"inputs is a file", tarOf(t, file("inputs", "")), fault.HostileImage, `"/inputs" is not a directory`},
		{"run is a link", tarOf(t, symlink("run", "tmp")), fault.HostileImage, `"/run" is not a directory`},
		{".cordon is a link", tarOf(t, symlink(".cordon", "usr")), fault.HostileImage, `"/.cordon" is not a directory`},
		{"init is a link", tarOf(t, symlink(".cordon/init", "/bin/sh")), fault.HostileImage, `"/.cordon/init" is not an empty file`},
		{"init is a directory", tarOf(t, dir(".cordon/init")), fault.HostileImage, `"/.cordon/init" is not an empty file`},
		{"init has content", tarOf(t, initFile(0o555, "x")), fault.HostileImage, `"/.cordon/init" is not an empty file`},
		{"init has another mode", tarOf(t, initFile(0o755, "")), fault.HostileImage, `"/.cordon/init" is not an empty file`},
		{"init has two names", tarOf(t, initFile(0o555, ""), hardlink("x", ".cordon/init")), fault.HostileImage, `"/.cordon/init" is not an empty file`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := openStore(t, func(c *Config) { c.MaxImageBytes = 1 << 20 })
			info, err := s.ImportImage(t.Context(), "bad", bytes.NewReader(tt.in), nil)
			if fault.CodeOf(err) != tt.want || !containsAny(err.Error(), tt.text) {
				t.Errorf("got %+v, %v; want %s with %q", info, err, tt.want, tt.text)
			}
			assertOnlyImages(t, s)
		})
	}
}

// An image that was exported from a sandbox holds our own mount points.
func TestImportImageWithOwnMountPoints(t *testing.T) {
	requireRoot(t)
	s := openStore(t, nil)
	with, err := s.ImportImage(t.Context(), "with", bytes.NewReader(tarOf(t,
		dir("proc"), dir("sys"), dir("dev"), dir("tmp"), dir("run"), dir("workspace"), dir("inputs"), dir("etc"),
		dir(".cordon"), initFile(0o555, ""))), nil)
	if err != nil {
		t.Fatal(err)
	}
	other := openStore(t, nil)
	without, err := other.ImportImage(t.Context(), "without", bytes.NewReader(tarOf(t, dir("etc"))), nil)
	if err != nil || with.Digest != without.Digest {
		t.Errorf("got %s and %s, %v; want the same tree", with.Digest, without.Digest, err)
	}
}

func TestImportImageNames(t *testing.T) {
	requireRoot(t)
	s := openStore(t, nil)
	for _, name := range []string{"", "host", "Debian", "../x", "a/b", ".hidden", "-x", "a b", "ä", strings.Repeat("n", 65)} {
		_, err := s.ImportImage(t.Context(), name, bytes.NewReader(nil), nil)
		if fault.CodeOf(err) != fault.InvalidArgument || !strings.Contains(err.Error(), "name") {
			t.Errorf("%q: got %v", name, err)
		}
	}
}

// A client that goes away must not be taken for the end of its tar.
func TestImportImageBrokenStream(t *testing.T) {
	requireRoot(t)
	s := openStore(t, nil)
	gone := errors.New("client gone")
	whole := tarOf(t, file("etc/passwd", "x"))
	_, err := s.ImportImage(t.Context(), "x", io.MultiReader(bytes.NewReader(whole), errReader{gone}), nil)
	if !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
	assertOnlyImages(t, s)
}

func TestImportImageCancelled(t *testing.T) {
	requireRoot(t)
	s := openStore(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	pr, pw := io.Pipe()
	go func() {
		_, _ = pw.Write(tarOf(t, file("etc/passwd", "x"))[:1024])
		cancel()
		pw.CloseWithError(ctx.Err()) // as a stream does when its context ends
	}()
	if _, err := s.ImportImage(ctx, "x", pr, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	assertOnlyImages(t, s)
}

// A worker that cannot be had is a clear error, not a hang.
func TestImportImageBrokenWorker(t *testing.T) {
	requireRoot(t)
	noexec := filepath.Join(t.TempDir(), "worker")
	if err := os.WriteFile(noexec, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		argv []string
		text string
	}{
		{"missing", []string{"/nonexistent/cordond", "unpack"}, "no such file"},
		{"not executable", []string{noexec}, "executable for everyone"},
		{"says nothing", []string{"/bin/true"}, "parse worker report"},
		{"fails", []string{"/bin/false"}, "parse worker report"},
		{"talks too much", []string{"/bin/sh", "-c", "exec /usr/bin/yes >&1 2>&1 | head -c 10000000"}, "parse worker report"},
		{"dies", []string{"/bin/sh", "-c", "echo oops >&2; kill -SEGV $$; exit 3"}, "oops"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := openStore(t, func(c *Config) { c.UnpackCommand = tt.argv })
			_, err := s.ImportImage(t.Context(), "x", bytes.NewReader(tarOf(t, file("a", ""))), nil)
			if err == nil || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want text %q", err, tt.text)
			}
			assertOnlyImages(t, s)
		})
	}
}

type errReader struct{ err error }

func (e errReader) Read([]byte) (int, error) { return 0, e.err }

func containsAny(s, alternatives string) bool {
	for alt := range strings.SplitSeq(alternatives, "|") {
		if strings.Contains(s, alt) {
			return true
		}
	}
	return false
}

// assertOnlyImages checks that the store holds these images and not a trace
// of anything else.
func assertOnlyImages(t *testing.T, s *Store, want ...ImageInfo) {
	t.Helper()
	if got := s.List(); len(got) != len(want) {
		t.Errorf("store lists %+v, want %+v", got, want)
	}
	wantDirs := []string{stagingDir}
	for _, info := range want {
		digits, _ := digestHex(info.Digest)
		wantDirs = append(wantDirs, dirOf(digits))
	}
	if diff := cmp.Diff(wantDirs, namesIn(t, s.path(imagesDir))); diff != "" {
		t.Errorf("images directory (-want +got):\n%s", diff)
	}
	if left := namesIn(t, s.path(imagesDir, stagingDir)); len(left) != 0 {
		t.Errorf("staging directory holds %v", left)
	}
}

func namesIn(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// listTree maps paths to mode, in-image owner and link target.
func listTree(t *testing.T, dir string) map[string]string {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	out := map[string]string{}
	err = fs.WalkDir(root.FS(), ".", func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := root.Lstat(p)
		if err != nil {
			return err
		}
		out[p] = fi.Mode().String() + " " + imageOwner(fi)
		if fi.Mode()&fs.ModeSymlink != 0 {
			to, err := root.Readlink(p)
			if err != nil {
				return err
			}
			out[p] += " " + to
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
