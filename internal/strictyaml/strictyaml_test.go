package strictyaml

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cordon/internal/fault"
)

type sample struct {
	Name   string        `yaml:"name"`
	Count  int64         `yaml:"memory_bytes"`
	Small  uint32        `yaml:"small"`
	Byte   int8          `yaml:"byte"`
	On     bool          `yaml:"on_off"`
	Time   time.Duration `yaml:"time"`
	Milli  int64         `yaml:"cpu"`
	Words  []string      `yaml:"words"`
	Items  []item        `yaml:"items"`
	Nested nested        `yaml:"nested"`
	Maybe  *uint32       `yaml:"maybe"`
}

type item struct {
	Digest string `yaml:"digest"`
	Milli  int64  `yaml:"cpu"`
}

type nested struct {
	Deep item `yaml:"deep"`
}

func decoder() Decoder {
	return Decoder{Root: "box", Forms: map[string]Form{"box.cpu": MilliCores, "box.items[].cpu": MilliCores}}
}

func TestDecodeReads(t *testing.T) {
	zero := uint32(0)
	tests := []struct {
		name, doc string
		want      sample
	}{
		{"empty mapping", "box: {}", sample{}},
		{"text plain", "box: {name: run_85a}", sample{Name: "run_85a"}},
		{"text quoted number", `box: {name: "5"}`, sample{Name: "5"}},
		{"text quoted null", `box: {name: 'null'}`, sample{Name: "null"}},
		{"text empty quoted", `box: {name: ""}`, sample{}},
		{"text timestamp keeps its letters", "box: {name: 2026-08-07T18:30:00Z}", sample{Name: "2026-08-07T18:30:00Z"}},
		{"text digest", "box: {name: sha256:00ff}", sample{Name: "sha256:00ff"}},
		{"text block", "box:\n  name: |-\n    a\n    b\n", sample{Name: "a\nb"}},
		{"ints", "box: {memory_bytes: -12, small: 4294967295, byte: -128}", sample{Count: -12, Small: 4294967295, Byte: -128}},
		{"zero", "box: {memory_bytes: 0}", sample{}},
		{"int64 limits", "box: {memory_bytes: 9223372036854775807}", sample{Count: 9223372036854775807}},
		{"bool", "box: {on_off: true}", sample{On: true}},
		{"duration", "box: {time: 1h30m}", sample{Time: 90 * time.Minute}},
		{"duration quoted", `box: {time: "1.5s"}`, sample{Time: 1500 * time.Millisecond}},
		{"cores", "box: {cpu: 2}", sample{Milli: 2000}},
		{"cores fraction", "box: {cpu: 0.5}", sample{Milli: 500}},
		{"cores quoted", `box: {cpu: "0.125"}`, sample{Milli: 125}},
		{"form in a list", "box: {items: [{cpu: 1}, {cpu: 0.25}]}", sample{Items: []item{{Milli: 1000}, {Milli: 250}}}},
		{"empty list is nil", "box: {words: []}", sample{}},
		{"list", "box:\n  words:\n  - a\n  - b\n", sample{Words: []string{"a", "b"}}},
		{"list with a comma at its end", "box: {words: [a, ]}", sample{Words: []string{"a"}}},
		{"nested", "box: {nested: {deep: {digest: d}}}", sample{Nested: nested{Deep: item{Digest: "d"}}}},
		{"pointer tells zero from absent", "box: {maybe: 0}", sample{Maybe: &zero}},
		{"quoted field name", `box: {"name": a}`, sample{Name: "a"}},
		{"document start and end", "---\nbox: {name: a}\n...\n", sample{Name: "a"}},
		{"carriage returns", "box:\r\n  name: a\r\n", sample{Name: "a"}},
		{"comment", "# a\nbox: # b\n  name: a # c\n", sample{Name: "a"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got sample
			if _, err := decoder().Decode([]byte(tt.doc), &got); err != nil {
				t.Fatalf("Decode: %v", err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("wrong value (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeKeepsAbsentFields(t *testing.T) {
	got := sample{Name: "kept", On: true, Words: []string{"kept"}, Nested: nested{Deep: item{Digest: "kept"}}}
	want := got
	want.Count, want.Nested.Deep.Milli = 7, 0
	if err := Decode([]byte("box: {memory_bytes: 7, nested: {deep: {cpu: 0}}}"), "box", &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("wrong value (-want +got):\n%s", diff)
	}
}

func TestDecodeLeavesOutUntouchedOnError(t *testing.T) {
	got := sample{Name: "kept", Words: []string{"kept"}}
	want := sample{Name: "kept", Words: []string{"kept"}}
	if err := Decode([]byte("box: {name: new, words: [x], memory_bytes: x}"), "box", &got); err == nil {
		t.Fatal("accepted a word for a number")
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("out changed (-want +got):\n%s", diff)
	}
}

func TestDecodePositions(t *testing.T) {
	var got sample
	seen, err := decoder().Decode([]byte("box:\n  name: a\n  items:\n    - digest: é\n    - {digest: d, cpu: 1}\n"), &got)
	if err != nil {
		t.Fatal(err)
	}
	want := Positions{
		"box": {2, 3}, "box.name": {2, 9}, "box.items": {4, 5},
		"box.items[0]": {4, 7}, "box.items[0].digest": {4, 15},
		"box.items[1]": {5, 7}, "box.items[1].digest": {5, 16}, "box.items[1].cpu": {5, 24},
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("wrong positions (-want +got):\n%s", diff)
	}
}

func TestPositionsPlace(t *testing.T) {
	p := Positions{"box": {1, 2}, "box.items": {3, 4}, "box.items[1]": {5, 6}}
	for path, want := range map[string]string{
		"box.items[1]": "line 5 column 6: x", "box.items[1].digest": "line 5 column 6: x",
		"box.items[0].digest": "line 3 column 4: x", "box.name": "line 1 column 2: x", "other": "x", "": "x",
	} {
		if got := p.Place(path, "x"); got != want {
			t.Errorf("Place(%q) = %q, want %q", path, got, want)
		}
	}
}

func TestDecodeWithoutRoot(t *testing.T) {
	var got item
	if err := Decode([]byte("digest: d\n"), "", &got); err != nil || got.Digest != "d" {
		t.Errorf("got %+v, %v", got, err)
	}
	err := Decode([]byte("digets: d\n"), "", &got)
	if want := "line 1 column 1: digets: unknown field digets [did you mean digest?]"; err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func TestDecodeRefusesBadTargets(t *testing.T) {
	var noTag struct{ A string }
	var float struct {
		A float64 `yaml:"a"`
	}
	var nilPointer *sample
	for _, out := range []any{sample{}, nilPointer, new(string), &noTag, &float, &map[string]string{}} {
		err := Decode([]byte("a: b"), "", out)
		var list *Error
		if err == nil || errors.As(err, &list) {
			t.Errorf("%T: got %v, want an error about the program", out, err)
		}
	}
}

func TestFaults(t *testing.T) {
	err := Decode([]byte("box:\n  nam: a\n  small: x\n"), "box", &sample{})
	err = Faults(err, fault.InvalidPolicy)
	want := "box.nam: line 2 column 3: unknown field nam [did you mean name?]\n" +
		`box.small: line 3 column 10: "x" is not a whole number in plain decimal digits [write digits only, such as 1048576]`
	if err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if code := fault.CodeOf(err); code != fault.InvalidPolicy {
		t.Errorf("code %q", code)
	}
	other := errors.New("other")
	if got := Faults(other, fault.InvalidPolicy); !errors.Is(got, other) {
		t.Errorf("another error became %v", got)
	}
}

func TestMilliCores(t *testing.T) {
	for text, want := range map[string]int64{"1": 1000, "0.5": 500, "0.001": 1, "0.05": 50, "64": 64000, "1.250": 1250} {
		got, err := MilliCores(text)
		if err != nil || got != want {
			t.Errorf("MilliCores(%q) = %d, %v; want %d", text, got, err, want)
		}
		back, err := MilliCores(FormatMilliCores(want))
		if err != nil || back != want {
			t.Errorf("FormatMilliCores(%d) = %q does not read back", want, FormatMilliCores(want))
		}
	}
	for _, text := range []string{"", "0", "0.0", "-1", "+1", "01", "1.", ".5", "1e3", "0x1", "1_0", "1.2345", "500m", "inf", "nan", " 1", "99999999999"} {
		if got, err := MilliCores(text); err == nil {
			t.Errorf("MilliCores(%q) = %d, want an error", text, got)
		}
	}
}

func TestNearest(t *testing.T) {
	names := []string{"memory_bytes", "open_files", "cpu", "scan", "hash"}
	tests := map[string]string{
		"memory_byte": "memory_bytes", "memory-bytes": "memory_bytes", "MemoryBytes": "memory_bytes",
		"mmeory_bytes": "memory_bytes", "cpus": "cpu", "hsah": "hash", "zzz": "", "": "",
		strings.Repeat("memory_bytes", 10): "",
	}
	for word, want := range tests {
		if got := nearest(word, names); got != want {
			t.Errorf("nearest(%q) = %q, want %q", word, got, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, tt := range refusals {
		f.Add([]byte(tt.doc))
	}
	f.Add([]byte("box:\n  items: [{digest: a, cpu: 0.5}]\n  nested: {deep: {digest: \"\\u263a\"}}\n"))
	f.Fuzz(func(t *testing.T, doc []byte) {
		var got sample
		seen, err := decoder().Decode(doc, &got)
		if err == nil {
			if _, ok := seen["box"]; !ok {
				t.Fatal("accepted without its top key")
			}
			return
		}
		var list *Error
		if !errors.As(err, &list) || len(list.Problems) == 0 {
			t.Fatalf("error without problems: %v", err)
		}
		lines := strings.Count(string(doc), "\n") + 1
		for _, p := range list.Problems {
			if p.Cause == "" || p.Remedy == "" || p.Line > lines || strings.ContainsAny(p.Error(), "\x00\n") {
				t.Fatalf("bad problem %+v in a document of %d lines", p, lines)
			}
		}
	})
}

func ExampleDecode() {
	var out struct {
		MemoryBytes int64 `yaml:"memory_bytes"`
		Scan        bool  `yaml:"scan"`
	}
	fmt.Println(Decode([]byte("memory_byte: 1\nscan: yes\n"), "", &out))
	// Output:
	// line 1 column 1: memory_byte: unknown field memory_byte [did you mean memory_bytes?]
	// line 2 column 7: scan: "yes" where true or false belongs [write true or false, in lower case and without quotes]
}
