package strictyaml

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type refusal struct {
	name, doc string
	want      []string // each problem: place, path, and the start of its cause
}

func nest(n int) string {
	return "box: {name: " + strings.Repeat("[", n) + strings.Repeat("]", n) + "}"
}

const number = " is not a whole number in plain decimal digits"

// refusals is the table of TestDecodeRefuses and the seed of FuzzDecode.
var refusals = []refusal{
	{"empty", "", []string{"the document is empty"}},
	{"only a comment", "# nothing\n", []string{"the document is empty"}},
	{"empty document", "---\n", []string{"the document is empty"}},
	{"null document", "null\n", []string{"line 1 column 1: a single value where a group of fields belongs"}},
	{"nothing at the very end", "box:\n  - &a", []string{
		"line 2 column 3: box: a list where", "line 2 column 5: box[0]: the anchor \"a\"",
	}},
	{"list document", "- a\n", []string{"line 1 column 1: a list where a group of fields belongs"}},
	{"two documents", "box: {}\n---\nbox: {}\n", []string{"line 2 column 1: a second document starts here"}},
	{"text after the end", "box: {}\n...\nx\n", []string{"line 3: not readable as YAML: did not find expected <document start>"}},
	{"another top key", "bx: {}\n", []string{
		"line 1 column 1: bx: unknown field bx", "line 1 column 1: box: missing",
	}},
	{"a second top key", "box: {}\nother: 1\n", []string{"line 2 column 1: other: unknown field other"}},
	{"top key without value", "box:\n", []string{"line 1 column 5: box: has no value"}},
	{"top key text", "box: x\n", []string{"line 1 column 6: box: a single value where a group"}},

	{"unknown field", "box:\n  memory_byte: 1\n", []string{"line 2 column 3: box.memory_byte: unknown field memory_byte"}},
	{"unknown field in a list", "box:\n  items:\n    - digest: a\n    - digst: b\n", []string{
		"line 4 column 7: box.items[1].digst: unknown field digst",
	}},
	{"field in another case", "box: {Name: a}", []string{"line 1 column 7: box.Name: unknown field Name"}},
	{"hostile field name", "box: {\"a\\nb\": 1}", []string{`line 1 column 7: box."a\nb": unknown field "a\nb"`}},
	{"duplicate key", "box:\n  name: a\n  small: 1\n  name: b\n", []string{
		"line 4 column 3: box.name: duplicate key; it is first on line 2",
	}},
	{"duplicate key below an unknown field", "box:\n  what: {a: 1, a: 2}\n", []string{
		"line 2 column 3: box.what: unknown field what", "line 2 column 16: box.what.a: duplicate key",
	}},
	{"duplicate key, one quoted", "box: {name: a, \"name\": b}", []string{"line 1 column 16: box.name: duplicate key"}},
	{"duplicate top key", "box: {}\nbox: {}\n", []string{"line 2 column 1: box: duplicate key"}},

	{"anchor and alias", "box:\n  name: &a x\n  words: [*a]\n", []string{
		"line 2 column 9: box.name: the anchor \"a\"", "line 3 column 11: box.words[0]: the alias \"a\"",
	}},
	{"anchor on a mapping", "box: &a\n  name: x\n", []string{"line 1 column 6: box: the anchor"}},
	{"anchor on a key", "box: {&a name: x}\n", []string{"line 1 column 7: box.name: the anchor"}},
	{"merge key", "box:\n  <<: {name: a}\n", []string{"line 2 column 3: box: a merge key (<<)"}},
	{"quoted merge key is a field", "box: {\"<<\": {name: a}}", []string{`line 1 column 7: box."<<": unknown field "<<"`}},
	{"tag", "box: {name: !!str 5}", []string{"line 1 column 13: box.name: an explicit tag"}},
	{"local tag", "box: {name: !x a}", []string{"line 1 column 13: box.name: an explicit tag"}},
	{"bare tag", "box: {memory_bytes: ! 5}", []string{"line 1 column 21: box.memory_bytes: an explicit tag"}},
	{"bare tag on a mapping", "box: !\n  name: a\n", []string{"line 1 column 6: box: an explicit tag"}},
	{"binary tag", "box: {name: !!binary aGk=}", []string{"line 1 column 13: box.name: an explicit tag"}},
	{"number key", "box: {1: a}", []string{"line 1 column 7: box: a key that is not text"}},
	{"truth key", "box: {true: a}", []string{"line 1 column 7: box: a key that is not text"}},
	{"null key", "box: {~: a}", []string{"line 1 column 7: box: a key that is not text"}},
	{"list key", "box:\n  ? [a]\n  : b\n", []string{"line 2 column 5: box: a key that is not text"}},

	{"null", "box:\n  name:\n  small: 1\n", []string{"line 2 column 8: box.name: has no value"}},
	{"null word", "box: {words: null}", []string{"line 1 column 14: box.words: has no value"}},
	{"tilde", "box: {name: ~}", []string{"line 1 column 13: box.name: has no value"}},
	{"null item", "box:\n  words:\n  - a\n  -\n", []string{"line 4 column 4: box.words[1]: has no value"}},
	{"mapping for text", "box: {name: {a: b}}", []string{"line 1 column 13: box.name: a group of fields where a single value"}},
	{"list for text", "box: {name: [a]}", []string{"line 1 column 13: box.name: a list where a single value"}},
	{"text for list", "box: {words: a}", []string{"line 1 column 14: box.words: a single value where a list"}},
	{"mapping for list", "box: {items: {digest: a}}", []string{"line 1 column 14: box.items: a group of fields where a list"}},
	{"text for mapping", "box: {nested: a}", []string{"line 1 column 15: box.nested: a single value where a group"}},
	{"list for mapping", "box: {nested: {deep: [a]}}", []string{"line 1 column 22: box.nested.deep: a list where a group"}},

	{"number for text", "box: {name: 85}", []string{`line 1 column 13: box.name: "85" without quotes is a number`}},
	{"float for text", "box: {name: 1e3}", []string{`line 1 column 13: box.name: "1e3" without quotes is a number`}},
	{"truth for text", "box: {name: true}", []string{`line 1 column 13: box.name: "true" without quotes is a truth value`}},
	{"norway", "box: {name: NO}", []string{`line 1 column 13: box.name: "NO" without quotes is a truth value`}},
	{"merge sign for text", "box: {name: <<}", []string{`line 1 column 13: box.name: "<<" without quotes is a merge sign`}},
	{"NUL by escape", `box: {name: "a\0"}`, []string{"line 1 column 13: box.name: text with a NUL"}},
	{"yes", "box: {on_off: yes}", []string{`line 1 column 15: box.on_off: "yes" where true or false`}},
	{"True", "box: {on_off: True}", []string{`line 1 column 15: box.on_off: "True" where true or false`}},
	{"quoted true", `box: {on_off: "true"}`, []string{`line 1 column 15: box.on_off: "true" where true or false`}},
	{"1 for truth", "box: {on_off: 1}", []string{`line 1 column 15: box.on_off: "1" where true or false`}},

	{"quoted int", `box: {memory_bytes: "5"}`, []string{`line 1 column 21: box.memory_bytes: "5" in quotes is text`}},
	{"float", "box: {memory_bytes: 5.0}", []string{`line 1 column 21: box.memory_bytes: "5.0"` + number}},
	{"exponent", "box: {memory_bytes: 1e3}", []string{`line 1 column 21: box.memory_bytes: "1e3"` + number}},
	{"octal", "box: {memory_bytes: 010}", []string{`line 1 column 21: box.memory_bytes: "010"` + number}},
	{"new octal", "box: {memory_bytes: 0o10}", []string{`line 1 column 21: box.memory_bytes: "0o10"` + number}},
	{"hex", "box: {memory_bytes: 0x10}", []string{`line 1 column 21: box.memory_bytes: "0x10"` + number}},
	{"binary", "box: {memory_bytes: 0b1}", []string{`line 1 column 21: box.memory_bytes: "0b1"` + number}},
	{"underscore", "box: {memory_bytes: 1_000}", []string{`line 1 column 21: box.memory_bytes: "1_000"` + number}},
	{"plus", "box: {memory_bytes: +1}", []string{`line 1 column 21: box.memory_bytes: "+1"` + number}},
	{"minus zero", "box: {memory_bytes: -0}", []string{`line 1 column 21: box.memory_bytes: "-0"` + number}},
	{"sexagesimal", "box: {memory_bytes: 1:30}", []string{`line 1 column 21: box.memory_bytes: "1:30"` + number}},
	{"unit", "box: {memory_bytes: 4GiB}", []string{`line 1 column 21: box.memory_bytes: "4GiB"` + number}},
	{"date", "box: {memory_bytes: 2026-01-01}", []string{`line 1 column 21: box.memory_bytes: "2026-01-01"` + number}},
	{"int64 overflow", "box: {memory_bytes: 9223372036854775808}", []string{"line 1 column 21: box.memory_bytes: \"9223372036854775808\" is out of range"}},
	{"int8 overflow", "box: {byte: 128}", []string{`line 1 column 13: box.byte: "128" is out of range`}},
	{"uint32 overflow", "box: {small: 4294967296}", []string{`line 1 column 14: box.small: "4294967296" is out of range`}},
	{"uint32 negative", "box: {small: -1}", []string{`line 1 column 14: box.small: "-1" is out of range`}},
	{"pointer to int", "box: {maybe: x}", []string{`line 1 column 14: box.maybe: "x"` + number}},

	{"time without unit", "box: {time: 10}", []string{`line 1 column 13: box.time: "10" is not a time`}},
	{"time of zero", "box: {time: 0s}", []string{`line 1 column 13: box.time: "0s" is no time at all`}},
	{"time negative", "box: {time: -1m}", []string{`line 1 column 13: box.time: "-1m" is not a time`}},
	{"time in days", "box: {time: 1d}", []string{`line 1 column 13: box.time: "1d" is not a time`}},
	{"time with space", "box: {time: 1 m}", []string{`line 1 column 13: box.time: "1 m" is not a time`}},
	{"time too long", "box: {time: 9999999h}", []string{`line 1 column 13: box.time: "9999999h" is out of range`}},
	{"no cpu", "box: {cpu: 0}", []string{`line 1 column 12: box.cpu: "0" is no cpu at all`}},
	{"cpu in milli", "box: {items: [{cpu: 1}, {cpu: 500m}]}", []string{`line 1 column 31: box.items[1].cpu: "500m" is not a number of cores`}},

	{"NUL", "box: {name: a\x00}", []string{"line 1 column 14: a NUL character"}},
	{"broken UTF-8", "box:\n  name: é\xff\xff\n", []string{"line 2 column 10: not valid UTF-8"}},
	{"UTF-16", "\xff\xfeb\x00", []string{"line 1 column 1: not valid UTF-8", "line 1 column 4: a NUL character"}},
	{"byte order mark", "\ufeffbox: {}", []string{"line 1 column 1: a byte order mark"}},
	{"odd line break", "box: {name: a\u2028b}", []string{"line 1 column 14: the line break U+2028"}},
	{"lone carriage return", "box:\r  name: a", []string{"line 1 column 5: the line break U+000D"}},
	{"too long", "box: {name: " + strings.Repeat("a", MaxBytes) + "}", []string{"the document has 65549 bytes; at most 65536"}},
	{"as deep as allowed", nest(MaxDepth - 2), []string{"line 1 column 13: box.name: a list where"}},
	{"too deep", nest(MaxDepth - 1), []string{
		"line 1 column 13: box.name: a list where",
		"line 1 column 27: box.name[0][0][0][0][0][0][0][0][0][0][0][0][0][0]: nested more than 16 deep",
	}},

	{"tab", "box:\n  name: a\n\tsmall: 1\n", []string{"line 3: not readable as YAML: found a tab character"}},
	{"bad indent", "box:\n  words:\n    - b\n   name: d\n", []string{"line 4: not readable as YAML: did not find expected"}},
	{"missing colon", "box:\n  name\n  small: 1\n", []string{"line 3: not readable as YAML: mapping values are not allowed"}},
	{"colon in a value", "box:\n  words: [\n    a,\n    b ]\n  name: a: b\n", []string{"line 5: not readable as YAML: mapping values"}},
	{"open bracket", "box:\n  name: a\n  words: [a,\n  small: 1\n", []string{"line 3: not readable as YAML: did not find expected"}},
	{"open quote", "box:\n  name: \"a\n  small: 1\n", []string{"line 2: not readable as YAML: found unexpected end of stream"}},
	{"surrogate escape", `box: {name: "\ud800"}`, []string{"line 1: not readable as YAML: found invalid Unicode"}},

	{"everything at once", "box:\n  nam: a\n  small: -1\n  on_off: yes\n  items:\n    - {digest: 5}\n    - {digest: a, digest: b}\nx: 1\n", []string{
		"line 2 column 3: box.nam: unknown field",
		"line 3 column 10: box.small: \"-1\" is out of range",
		"line 4 column 11: box.on_off: \"yes\"",
		"line 6 column 16: box.items[0].digest: \"5\" without quotes",
		"line 7 column 19: box.items[1].digest: duplicate key",
		"line 8 column 1: x: unknown field x",
	}},
}

func TestDecodeRefuses(t *testing.T) {
	for _, tt := range refusals {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			if _, err := decoder().Decode([]byte(tt.doc), &sample{}); err != nil {
				got = strings.Split(err.Error(), "\n")
			}
			for i := range min(len(got), len(tt.want)) {
				if strings.HasPrefix(got[i], tt.want[i]) {
					got[i] = tt.want[i]
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("wrong problems (-want +got):\n%s", diff)
			}
		})
	}
}
