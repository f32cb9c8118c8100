package main

import (
	"math"
	"testing"
	"time"
	"unicode"
)

func TestParseBytes(t *testing.T) {
	for in, want := range map[string]int64{
		"1": 1, "1048576": 1 << 20, "512M": 512 << 20, "512MB": 512 << 20, "512MiB": 512 << 20,
		"1K": 1 << 10, "3G": 3 << 30, "2T": 2 << 40, "9223372036854775807": math.MaxInt64,
	} {
		if got, err := parseBytes(in); err != nil || got != want {
			t.Errorf("parseBytes(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", "0", "0M", "-1", "+1", "1.5G", "1m", "1 M", "M", "0x10", "1e3", "1PiB", "1Mi",
		"9223372036854775808", "8388608T", "99999999999999999999",
	} {
		if got, err := parseBytes(in); err == nil {
			t.Errorf("parseBytes(%q) = %d, want an error", in, got)
		}
	}
}

func FuzzParseBytes(f *testing.F) {
	for _, s := range []string{"1", "512M", "8388607T", "0", "1.5G"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := parseBytes(s); err == nil && n <= 0 {
			t.Errorf("parseBytes(%q) = %d", s, n)
		}
	})
}

func TestParseLength(t *testing.T) {
	if got, err := parseLength("1h30m"); err != nil || time.Duration(got) != 90*time.Minute {
		t.Errorf("parseLength = %d, %v", got, err)
	}
	for _, in := range []string{"", "10", "-1s", "0s", "ten"} {
		if got, err := parseLength(in); err == nil {
			t.Errorf("parseLength(%q) = %d, want an error", in, got)
		}
	}
}

func TestFormat(t *testing.T) {
	for in, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 512 << 20: "512 MiB",
		1<<30 - 1: "1 GiB", 150 << 20: "150 MiB", math.MaxInt64: "8 EiB",
	} {
		if got := formatBytes(in); got != want {
			t.Errorf("formatBytes(%d) = %q, want %q", in, got, want)
		}
	}
	for in, want := range map[time.Duration]string{
		0: "0s", 1500 * time.Nanosecond: "2µs", 31416 * time.Microsecond: "31.4ms", 1234 * time.Millisecond: "1.23s",
		10 * time.Minute: "10m", 2 * time.Hour: "2h", time.Hour + 30*time.Second: "1h0m30s",
	} {
		if got := formatLength(in); got != want {
			t.Errorf("formatLength(%d) = %q, want %q", in, got, want)
		}
	}
}

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{
		"plain ä":         "plain ä",
		"a\nb\tc":         `a\nb\tc`,
		"\x1b[31m\u202e":  `\x1b[31m\u202e`,
		"bad \xff end":    `bad \xff end`,
		"real \ufffd one": "real \ufffd one",
	} {
		if got := plain(in); got != want {
			t.Errorf("plain(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzPlain(f *testing.F) {
	f.Add("a\x1b]0;x\a\xff\u2028")
	f.Fuzz(func(t *testing.T, s string) {
		for _, c := range plain(s) {
			if !unicode.IsPrint(c) {
				t.Errorf("plain(%q) lets %q through", s, c)
			}
		}
	})
}

func TestWrap(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []string
	}{
		{"", []string{""}},
		{"aa bb cc", []string{"aa bb", "cc"}},
		{"unbreakable x", []string{"unbreakable", "x"}},
		{"ää öö ü", []string{"ää öö", "ü"}},
	} {
		got := wrap(c.in, 5)
		if len(got) != len(c.want) {
			t.Errorf("wrap(%q) = %q, want %q", c.in, got, c.want)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("wrap(%q) = %q, want %q", c.in, got, c.want)
			}
		}
	}
}
