package initproc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFrameRoundTrip(t *testing.T) {
	want := ToStage{Setup: &Setup{Argv: [][]byte{[]byte("a\xff"), nil}, Env: [][]byte{[]byte("X=\x80")}, UID: 7, Filter: []byte{1, 2}}}
	var buf bytes.Buffer
	if err := WriteFrame(&buf, want); err != nil {
		t.Fatal(err)
	}
	var got ToStage
	if err := ReadFrame(&buf, MaxFrame, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if err := ReadFrame(&buf, MaxFrame, &got); !errors.Is(err, io.EOF) {
		t.Errorf("at the border: %v, want EOF", err)
	}
}

func TestReadFrameRefuses(t *testing.T) {
	frame := func(n uint32, body string) string {
		return string(binary.BigEndian.AppendUint32(nil, n)) + body
	}
	for name, in := range map[string]string{
		"too long":  frame(257, strings.Repeat(" ", 257)),
		"huge":      frame(1<<32-1, "{}"),
		"cut short": frame(10, "{}"),
		"half head": "\x00\x00",
		"not json":  frame(3, "{x}"),
	} {
		var m FromStage
		err := ReadFrame(strings.NewReader(in), 256, &m)
		if err == nil || errors.Is(err, io.EOF) {
			t.Errorf("%s: %v, want an error that is not a clean end", name, err)
		}
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02{}"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var m FromStage
		if err := ReadFrame(bytes.NewReader(in), 4096, &m); err != nil {
			return
		}
		var buf bytes.Buffer
		if err := WriteFrame(&buf, m); err != nil {
			t.Fatal(err)
		}
	})
}
