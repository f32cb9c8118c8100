package supervisor

import "slices"

// tailBytes is what is kept of each stream for a later Attach.
const tailBytes = 256 << 10

// tail is the end of a stream.
type tail struct {
	total int64
	buf   []byte
}

func (t *tail) add(p []byte) {
	t.total += int64(len(p))
	t.buf = append(t.buf, p...)
	if len(t.buf) > 2*tailBytes { // moving rarely keeps it cheap
		t.buf = append([]byte(nil), t.buf[len(t.buf)-tailBytes:]...)
	}
}

// last is a copy of at most tailBytes.
func (t *tail) last() []byte {
	return slices.Clone(t.buf[max(0, len(t.buf)-tailBytes):])
}
