package unpack

import (
	"archive/tar"
	"bytes"
	"testing"
)

// FuzzExtract feeds the extractor anything. Whatever it answers, nothing
// beside the root changes, nothing special is in it, and the limits hold.
func FuzzExtract(f *testing.F) {
	f.Add(tarOf(f, file("a/b", "hello"), dir("c"), symlink("c/l", "../.."), hardlink("h", "a/b")))
	f.Add(tarOf(f, symlink("a", ".."), file("a/outside", "x")))
	f.Add(tarOf(f, file("../outside", "x")))
	f.Add(tarOf(f, hardlink("a", "../outside")))
	f.Add(tarOf(f, node("dev/null", tar.TypeChar), node("x", tar.TypeFifo)))
	f.Add(tarOf(f, tarEntry{tar.Header{Name: "s", Mode: 0o7777, PAXRecords: map[string]string{"SCHILY.xattr.a": "b"}}, "x"}))
	f.Add(gzipOf(f, tarOf(f, file("a", "hello"))))
	f.Add(sparseTar(1 << 50))
	f.Add(sparseTar(4096))
	lim := Limits{Bytes: 64 << 10, Files: 20}
	f.Fuzz(func(t *testing.T, in []byte) {
		root, check := sandbox(t)
		rep, err := extract(bytes.NewReader(in), root, lim, false)
		check()
		tree := modes(t, root)
		if err == nil && (rep.Entries > lim.Files || rep.Bytes > lim.Bytes) {
			t.Errorf("report %+v is above %+v", rep, lim)
		}
		// Every entry makes itself and the directories above it.
		if most := int(lim.Files) * (maxDepth + 1); len(tree) > most {
			t.Errorf("%d entries in the tree", len(tree))
		}
		var sum int64
		for name := range tree {
			if fi, err := root.Lstat(name); err == nil && fi.Mode().IsRegular() {
				sum += fi.Size() // hard links count again
			}
		}
		if sum > lim.Bytes*lim.Files {
			t.Errorf("%d bytes in the tree", sum)
		}
	})
}
