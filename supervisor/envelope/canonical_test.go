package envelope

import (
	"bytes"
	"flag"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// TestCanonicalGolden pins the bytes and digests: a change here changes the
// digest of every envelope there is, and needs a new domain prefix.
func TestCanonicalGolden(t *testing.T) {
	for _, tt := range []struct{ name, doc string }{{"minimal", minimal}, {"full", full}} {
		t.Run(tt.name, func(t *testing.T) {
			e, err := Read([]byte(tt.doc))
			if err != nil {
				t.Fatal(err)
			}
			body, err := Canonical(e)
			if err != nil {
				t.Fatal(err)
			}
			digest, err := Digest(e)
			if err != nil {
				t.Fatal(err)
			}
			got := string(body) + "\n" + digest + "\n"
			path := "testdata/canonical-" + tt.name + ".txt"
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func TestCanonicalForms(t *testing.T) {
	same := func(a, b Envelope) bool {
		x, errX := Canonical(a)
		y, errY := Canonical(b)
		if errX != nil || errY != nil {
			t.Fatal(errX, errY)
		}
		return bytes.Equal(x, y)
	}
	base, err := Parse([]byte(minimal))
	if err != nil {
		t.Fatal(err)
	}
	if !same(base, Complete(base)) {
		t.Error("completing changes the canonical form")
	}
	empty := base
	empty.Filesystem.Inputs, empty.Filesystem.Devices = []Input{}, []string{}
	empty.NetworkEgress.AllowedDestinations, empty.NetworkEgress.Methods = []string{}, []string{}
	empty.Artifacts.Allow = []string{}
	empty.Repeatability.DependencyLocks, empty.Repeatability.NetworkFixtures = []Lock{}, []string{}
	if !same(base, empty) {
		t.Error("empty and nil lists differ")
	}
	if body, _ := Canonical(base); bytes.Contains(body, []byte("null")) {
		t.Errorf("null in %s", body)
	}
}

// TestDigestTellsEveryFieldApart changes each leaf of an envelope in turn.
func TestDigestTellsEveryFieldApart(t *testing.T) {
	seen := map[string]string{}
	base, err := Digest(fullEnvelope())
	if err != nil {
		t.Fatal(err)
	}
	seen[base] = "unchanged"
	leaves(reflect.ValueOf(fullEnvelope()), "", func(path string, index []int) {
		e := fullEnvelope()
		v := reflect.ValueOf(&e).Elem()
		for _, i := range index {
			if v.Kind() == reflect.Slice {
				v = v.Index(i)
			} else {
				v = v.Field(i)
			}
		}
		change(v)
		got, err := Digest(e)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("changing %s gives the digest of %s", path, other)
		}
		seen[got] = path
	})
	if len(seen) < 40 {
		t.Errorf("only %d leaves were changed", len(seen))
	}
}

func change(v reflect.Value) {
	switch {
	case v.Kind() == reflect.String:
		v.SetString(v.String() + "x")
	case v.Kind() == reflect.Bool:
		v.SetBool(!v.Bool())
	case v.Kind() == reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case v.CanUint():
		v.SetUint(v.Uint() + 1)
	default:
		v.SetInt(v.Int() + 1)
	}
}

// leaves calls fn for each scalar and each empty list below v.
func leaves(v reflect.Value, path string, fn func(path string, index []int)) {
	var walk func(v reflect.Value, path string, index []int)
	walk = func(v reflect.Value, path string, index []int) {
		index = slices.Clip(index)
		switch {
		case v.Kind() == reflect.Struct:
			for i := range v.NumField() {
				walk(v.Field(i), path+"."+v.Type().Field(i).Name, append(index, i))
			}
		case v.Kind() == reflect.Slice && v.Len() != 0:
			for i := range v.Len() {
				walk(v.Index(i), path+"[]", append(index, i))
			}
		default:
			fn(path, index)
		}
	}
	walk(v, path, nil)
}

func TestCanonicalRefuses(t *testing.T) {
	tests := []struct {
		name, want string
		change     func(*Envelope)
	}{
		{"number too large", "Resources.MemoryBytes", func(e *Envelope) { e.Resources.MemoryBytes = 1 << 53 }},
		{"number too small", "NetworkEgress.MaxBytes", func(e *Envelope) { e.NetworkEgress.MaxBytes = -1 << 53 }},
		{"time too long", "Resources.WallClock", func(e *Envelope) { e.Resources.WallClock = 1 << 53 * time.Nanosecond }},
		{"broken text", "Artifacts.Allow[0]", func(e *Envelope) { e.Artifacts.Allow[0] = "\xff" }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := fullEnvelope()
			tt.change(&e)
			if _, err := Canonical(e); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Canonical: %v, want an error about %s", err, tt.want)
			}
			if d, err := Digest(e); err == nil || d != "" {
				t.Errorf("Digest = %q, %v", d, err)
			}
		})
	}
	e := fullEnvelope()
	e.Resources.MemoryBytes = 1<<53 - 1
	if body, err := Canonical(e); err != nil || !bytes.Contains(body, []byte("9007199254740991")) {
		t.Errorf("2^53-1 is not kept: %s, %v", body, err)
	}
}
