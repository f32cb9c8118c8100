package artifacts

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"strings"
)

// The tree digest, "sha256:" and 64 hex digits, is the SHA-256 of
//
//	string("cordon/tree/v1")
//	one record per entry, the root first:
//	  string(path)     relative, components joined by "/"; the root's is ""
//	  u64(type)        'd', 'f' or 'l'
//	  u64(mode)        permission bits, 0..0777; links 0777
//	  u64(uid) u64(gid)  as in the image, not as on disk
//	  u64(size)        files; otherwise 0
//	  u64(mtime)       files, in seconds; otherwise 0
//	  string(payload)  file: the 32 bytes of its SHA-256; link: its target;
//	                   directory: empty
//
// where u64 is 8 bytes big-endian and string is its length as u64 and its
// bytes. A directory's record comes before those of its entries, and entries
// are ordered by the bytes of their names. Every record delimits itself, so
// no two trees share a stream.
//
// A file's time is part of it because interpreters pair caches with sources
// by time: trees that differ in it behave differently. Times of directories
// and links, hard-link counts and inode numbers are not. Extended attributes
// are not either, because a tree that has any is refused.
const treeDomain = "cordon/tree/v1"

type entryKind byte

const (
	kindDir  entryKind = 'd'
	kindFile entryKind = 'f'
	kindLink entryKind = 'l'
)

// entry is one record.
type entry struct {
	path     string
	kind     entryKind
	mode     uint32
	uid, gid uint32
	size     int64
	mtime    int64
	payload  []byte
}

type treeHash struct {
	h   hash.Hash
	buf []byte
}

func newTreeHash() *treeHash {
	t := &treeHash{h: sha256.New()}
	t.str([]byte(treeDomain))
	t.flush()
	return t
}

func (t *treeHash) add(e entry) {
	t.str([]byte(e.path))
	for _, n := range []uint64{
		uint64(e.kind), uint64(e.mode), uint64(e.uid), uint64(e.gid),
		uint64(e.size), uint64(e.mtime),
	} {
		t.buf = binary.BigEndian.AppendUint64(t.buf, n)
	}
	t.str(e.payload)
	t.flush()
}

func (t *treeHash) str(b []byte) {
	t.buf = binary.BigEndian.AppendUint64(t.buf, uint64(len(b)))
	t.buf = append(t.buf, b...)
}

func (t *treeHash) flush() {
	t.h.Write(t.buf)
	t.buf = t.buf[:0]
}

func (t *treeHash) digest() string { return formatDigest(t.h.Sum(nil)) }

const digestPrefix = "sha256:"

func formatDigest(sum []byte) string { return digestPrefix + hex.EncodeToString(sum) }

// digestHex returns the hex digits of a well-formed digest.
func digestHex(digest string) (string, bool) {
	digits, ok := strings.CutPrefix(digest, digestPrefix)
	if !ok || len(digits) != 2*sha256.Size {
		return "", false
	}
	for _, c := range []byte(digits) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return "", false
		}
	}
	return digits, true
}
