package artifacts

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"
)

// The stream is written out by hand, so that a change of the format cannot
// pass by changing code and expectation together.
func TestTreeHashStream(t *testing.T) {
	const stream = "" +
		"\x00\x00\x00\x00\x00\x00\x00\x0ecordon/tree/v1" +
		// the root, 0755 0:0
		"\x00\x00\x00\x00\x00\x00\x00\x00" +
		"\x00\x00\x00\x00\x00\x00\x00d" + "\x00\x00\x00\x00\x00\x00\x01\xed" +
		"\x00\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00" +
		"\x00\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00" +
		"\x00\x00\x00\x00\x00\x00\x00\x00" +
		// a/f, 0644 1:2, 3 bytes, time 4
		"\x00\x00\x00\x00\x00\x00\x00\x03a/f" +
		"\x00\x00\x00\x00\x00\x00\x00f" + "\x00\x00\x00\x00\x00\x00\x01\xa4" +
		"\x00\x00\x00\x00\x00\x00\x00\x01" + "\x00\x00\x00\x00\x00\x00\x00\x02" +
		"\x00\x00\x00\x00\x00\x00\x00\x03" + "\x00\x00\x00\x00\x00\x00\x00\x04" +
		"\x00\x00\x00\x00\x00\x00\x00\x02xy" +
		// a/l -> f
		"\x00\x00\x00\x00\x00\x00\x00\x03a/l" +
		"\x00\x00\x00\x00\x00\x00\x00l" + "\x00\x00\x00\x00\x00\x00\x01\xff" +
		"\x00\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00" +
		"\x00\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x00\x00\x00\x00\x00\x00" +
		"\x00\x00\x00\x00\x00\x00\x00\x01f"
	sum := sha256.Sum256([]byte(stream))
	want := "sha256:" + hex.EncodeToString(sum[:])

	h := newTreeHash()
	h.add(entry{path: "", kind: kindDir, mode: 0o755})
	h.add(entry{path: "a/f", kind: kindFile, mode: 0o644, uid: 1, gid: 2, size: 3, mtime: 4, payload: []byte("xy")})
	h.add(entry{path: "a/l", kind: kindLink, mode: 0o777, payload: []byte("f")})
	if got := h.digest(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestDigestHex(t *testing.T) {
	hex64 := "8801fb02f6a81a15afab051bcfb418d4b6a110db9ee40346d7862f6a2514f8ac"
	for in, want := range map[string]bool{
		"sha256:" + hex64: true, hex64: false, "sha256:" + hex64[1:]: false, "sha512:" + hex64: false,
		"sha256:" + hex64 + "0": false, "sha256:" + hex64[:63] + "A": false, "sha256:../" + hex64[3:]: false, "": false,
	} {
		if _, got := digestHex(in); got != want {
			t.Errorf("%q: got %v, want %v", in, got, want)
		}
	}
}
