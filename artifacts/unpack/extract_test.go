package unpack

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"os"
	"strings"
	"testing"
	"time"

	"cordon/internal/fault"

	"github.com/google/go-cmp/cmp"
)

var testLimits = Limits{Bytes: 1 << 20, Files: 200}

func TestExtractHostile(t *testing.T) {
	many := make([]tarEntry, 0, 201)
	for range cap(many) {
		many = append(many, dir("same/"))
	}
	long := strings.Repeat("d/", maxDepth+1)
	for _, tt := range []struct {
		name    string
		entries []tarEntry
		want    fault.Code
		text    string // of the error
	}{
		{"dot dot", []tarEntry{file("../outside", "x")}, fault.HostileImage, "has a .. component"},
		{"dot dot inside", []tarEntry{file("a/../../outside", "x")}, fault.HostileImage, "has a .. component"},
		{"dot dot that stays in", []tarEntry{file("a/../b", "x")}, fault.HostileImage, "has a .. component"},
		{"absolute", []tarEntry{file("/etc/passwd", "x")}, fault.HostileImage, "name is absolute"},
		{"write through link", []tarEntry{symlink("a", ".."), file("a/outside", "x")}, fault.HostileImage, `"a": is a directory in one entry and a link`},
		{"write through absolute link", []tarEntry{symlink("a", "/tmp"), file("a/b/c", "x")}, fault.HostileImage, `"a": is a directory in one entry`},
		{"write through link that stays in", []tarEntry{dir("b"), symlink("a", "b"), file("a/c", "x")}, fault.HostileImage, `"a": is a directory in one entry`},
		{"directory over link", []tarEntry{symlink("a", ".."), dir("a"), file("a/outside", "x")}, fault.HostileImage, `"a": is a directory in one entry`},
		{"link over directory", []tarEntry{dir("a"), symlink("a", "..")}, fault.HostileImage, "two entries"},
		{"file over link", []tarEntry{symlink("a", "../outside"), file("a", "x")}, fault.HostileImage, "two entries"},
		{"below a file", []tarEntry{file("a", ""), file("a/b", "")}, fault.HostileImage, `"a": is a directory in one entry`},
		{"duplicate file", []tarEntry{file("a", "1"), file("./a", "2")}, fault.HostileImage, "two entries"},
		{"hard link out", []tarEntry{hardlink("a", "../outside")}, fault.HostileImage, ".. component"},
		{"hard link absolute", []tarEntry{hardlink("a", "/etc/shadow")}, fault.HostileImage, "absolute"},
		{"hard link through link", []tarEntry{symlink("l", ".."), hardlink("a", "l/outside")}, fault.HostileImage, "no earlier entry"},
		{"hard link to link", []tarEntry{symlink("l", "../outside"), hardlink("a", "l")}, fault.HostileImage, "not a file"},
		{"hard link to directory", []tarEntry{dir("d"), hardlink("a", "d")}, fault.HostileImage, "not a file"},
		{"hard link to later file", []tarEntry{hardlink("a", "b"), file("b", "")}, fault.HostileImage, "no earlier entry"},
		{"hard link over file", []tarEntry{file("a", ""), file("b", ""), hardlink("b", "a")}, fault.HostileImage, "two entries"},
		{"block device", []tarEntry{node("disk", tar.TypeBlock)}, fault.HostileImage, "type '4'"},
		{"device called dev", []tarEntry{node("devel/null", tar.TypeChar)}, fault.HostileImage, "type '3'"},
		{"device as root", []tarEntry{node(".", tar.TypeChar)}, fault.HostileImage, "the root is not a directory"},
		{"fifo", []tarEntry{node("dev/fifo", tar.TypeFifo)}, fault.HostileImage, "type '6'"},
		{"unknown type", []tarEntry{node("s", 'Z')}, fault.HostileImage, "type 'Z'"},
		{"root as link", []tarEntry{symlink(".", "/")}, fault.HostileImage, "the root is not"},
		{"empty link", []tarEntry{symlink("a", "")}, fault.HostileImage, "link target"},
		{"deep", []tarEntry{dir(long)}, fault.HostileImage, "directories deep"},
		{"long component", []tarEntry{file(strings.Repeat("n", 256), "")}, fault.HostileImage, "component is longer"},
		{"long name", []tarEntry{file(strings.Repeat("n/", 2048)+"n", "")}, fault.HostileImage, "name is longer"},
		{"owner too high", []tarEntry{{tar.Header{Name: "a", Uid: 65536}, ""}}, fault.InvalidArgument, "owner 65536"},
		{"owner negative", []tarEntry{{tar.Header{Name: "a", Gid: -1, Format: tar.FormatGNU}, ""}}, fault.InvalidArgument, "owner -1"},
		{"whiteout", []tarEntry{file("etc/.wh.passwd", "")}, fault.InvalidArgument, "flatten"},
		{"opaque whiteout", []tarEntry{file("etc/.wh..wh..opq", "")}, fault.InvalidArgument, "flatten"},
		{"layer image", []tarEntry{file("manifest.json", "[]"), file("blobs/sha256/0", "")}, fault.InvalidArgument, "flatten"},
		{"oci layout", []tarEntry{file("oci-layout", "{}")}, fault.InvalidArgument, "flatten"},
		{"too many", many, fault.TooLarge, "more than 200 entries"},
		{"too big", []tarEntry{file("a", strings.Repeat("x", 1<<19)), file("b", strings.Repeat("x", 1<<19+1))}, fault.TooLarge, "more than 1048576 bytes"},
		{"empty", nil, fault.InvalidArgument, "no entries"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root, check := sandbox(t)
			_, err := extract(bytes.NewReader(tarOf(t, tt.entries...)), root, testLimits, false)
			check()
			if fault.CodeOf(err) != tt.want || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %s with %q", err, tt.want, tt.text)
			}
		})
	}
}

func TestExtractBadStream(t *testing.T) {
	good := tarOf(t, file("a", "hello"), file("b", strings.Repeat("x", 5000)))
	for _, tt := range []struct {
		name string
		in   []byte
		want fault.Code
		text string
	}{
		{"cut in content", good[:3000], fault.InvalidArgument, "not a readable tar"},
		{"cut in padding", good[:700], fault.InvalidArgument, "unexpected EOF"},
		{"cut in header", good[:1100], fault.InvalidArgument, "not a readable tar"},
		{"cut between entries", good[:1024], fault.InvalidArgument, "unexpected EOF"},
		{"cut in the end mark", good[:len(good)-512], fault.InvalidArgument, "unexpected EOF"},
		{"text", []byte(strings.Repeat("this is no archive ", 100)), fault.InvalidArgument, "not a readable tar"},
		{"data after the end", append(bytes.Clone(good), "more"...), fault.HostileImage, "data follows"},
		{"second archive after the end", append(bytes.Clone(good), good...), fault.HostileImage, "data follows"},
		{"zeros after the end", append(bytes.Clone(good), make([]byte, 9000)...), "", ""},
		{"zstd", []byte("\x28\xb5\x2f\xfd rest"), fault.InvalidArgument, "zstd -dc"},
		{"xz", []byte("\xfd7zXZ\x00 rest"), fault.InvalidArgument, "xz -dc"},
		{"bzip2", []byte("BZh91AY"), fault.InvalidArgument, "bzip2 -dc"},
		{"zip", []byte("PK\x03\x04...."), fault.InvalidArgument, "make a tar"},
		{"gzip header only", []byte("\x1f\x8b\x08\x00"), fault.InvalidArgument, "not a readable tar"},
		{"gzip", gzipOf(t, good), "", ""},
		{"gzip cut before its sum", cut(gzipOf(t, good), 8), fault.InvalidArgument, "unexpected EOF"},
		{"gzip with a wrong sum", flip(gzipOf(t, good), -6), fault.InvalidArgument, "checksum"},
		{"gzip in two members", append(gzipOf(t, good[:2048]), gzipOf(t, good[2048:])...), "", ""},
		{"gzip bomb in a file", gzipOf(t, bomb(t)), fault.TooLarge, "more than"},
		{"gzip bomb after the end", gzipOf(t, append(bytes.Clone(good), make([]byte, 8<<20)...)), fault.TooLarge, "longer than the limit"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root, check := sandbox(t)
			_, err := extract(bytes.NewReader(tt.in), root, testLimits, false)
			check()
			if fault.CodeOf(err) != tt.want || tt.want == "" && err != nil {
				t.Fatalf("got %v, want code %q", err, tt.want)
			}
			if err != nil && !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want text %q", err, tt.text)
			}
		})
	}
}

// A header can announce any size; nothing may be written or reserved for it.
func TestExtractHugeHeaders(t *testing.T) {
	var huge bytes.Buffer
	if err := tar.NewWriter(&huge).WriteHeader(&tar.Header{
		Name: "huge", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1 << 60, Format: tar.FormatGNU,
	}); err != nil {
		t.Fatal(err)
	}
	for name, in := range map[string][]byte{
		"exbibyte file": huge.Bytes(),
		"sparse file":   sparseTar(1 << 50),
	} {
		t.Run(name, func(t *testing.T) {
			root, check := sandbox(t)
			_, err := extract(bytes.NewReader(in), root, testLimits, false)
			check()
			if fault.CodeOf(err) != fault.TooLarge {
				t.Errorf("got %v, want too_large", err)
			}
			if left, err := fs.ReadDir(root.FS(), "."); err != nil || len(left) != 0 {
				t.Errorf("left %v, %v", left, err)
			}
		})
	}
}

func TestExtractTree(t *testing.T) {
	mtime := time.Unix(1_700_000_000, 0)
	root, check := sandbox(t)
	rep, err := extract(bytes.NewReader(tarOf(t,
		tarEntry{tar.Header{Name: "pax_global_header", Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "c"}}, ""},
		tarEntry{tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o1777}, ""},
		tarEntry{tar.Header{Name: "./ro/", Typeflag: tar.TypeDir, Mode: 0o555}, ""},
		tarEntry{tar.Header{Name: "./ro/su", Mode: 0o6755, ModTime: mtime, PAXRecords: map[string]string{
			"SCHILY.xattr.security.capability": "x", "SCHILY.xattr.user.overlay.opaque": "y",
		}}, "body"},
		hardlink("ro/also", "./ro/su"),
		node("dev/null", tar.TypeChar), node("dev", tar.TypeBlock),
		file("made/by/need", ""),
		symlink("out", "/etc/shadow"), symlink("up", "../../.."),
		file("odd \n\x1b[31m name", "x"),
	)), root, testLimits, false)
	if err != nil {
		t.Fatal(err)
	}
	check()
	want := Report{Entries: 11, Bytes: 5, Stripped: Stripped{SpecialBits: 2, Xattrs: 2, Devices: 2}}
	if diff := cmp.Diff(want, rep); diff != "" {
		t.Errorf("report (-want +got):\n%s", diff)
	}
	wantTree := map[string]string{
		"ro": "dr-xr-xr-x", "ro/su": "-rwxr-xr-x", "ro/also": "-rwxr-xr-x",
		"made": "drwxr-xr-x", "made/by": "drwxr-xr-x", "made/by/need": "-rw-r--r--",
		"out": "Lrwxrwxrwx", "up": "Lrwxrwxrwx", "odd \n\x1b[31m name": "-rw-r--r--",
	}
	if diff := cmp.Diff(wantTree, modes(t, root)); diff != "" {
		t.Errorf("tree (-want +got):\n%s", diff)
	}
	fi, err := root.Stat("ro/also")
	if err != nil || !fi.ModTime().Equal(mtime) || fi.Size() != 4 {
		t.Errorf("hard link: %v %v", fi, err)
	}
}

func TestExtractOwners(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: gives files away")
	}
	root, _ := sandbox(t)
	_, err := extract(bytes.NewReader(tarOf(t,
		tarEntry{tar.Header{Name: "d", Typeflag: tar.TypeDir, Mode: 0o500, Uid: 7, Gid: 8}, ""},
		tarEntry{tar.Header{Name: "d/f", Uid: 65535, Gid: 9}, "x"},
		tarEntry{tar.Header{Name: "d/h", Typeflag: tar.TypeLink, Linkname: "d/f", Uid: 1}, ""},
		tarEntry{tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "d/f", Uid: 5, Gid: 6}, ""},
	)), root, testLimits, true)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][2]uint32{}
	for _, name := range []string{"d", "d/f", "d/h", "l"} {
		got[name] = ownerOf(t, root, name)
	}
	want := map[string][2]uint32{"d": {7, 8}, "d/f": {65535, 9}, "d/h": {65535, 9}, "l": {5, 6}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
}
