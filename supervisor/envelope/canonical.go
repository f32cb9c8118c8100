package envelope

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"unicode/utf8"

	"github.com/gowebpki/jcs"
)

// digestDomain keeps an envelope's digest apart from that of any other
// document with the same bytes.
const digestDomain = "cordon envelope v1\n"

// mostExact bounds numbers to those that every JSON reader keeps exactly.
const mostExact = 1<<53 - 1

// Canonical is the completed envelope as RFC 8785 JSON: equal requests have
// equal bytes. It fails on what that form cannot carry: numbers from 2^53 on
// and text that is not UTF-8.
func Canonical(e Envelope) ([]byte, error) {
	e = Complete(e)
	if err := normalise(reflect.ValueOf(&e).Elem(), ""); err != nil {
		return nil, fmt.Errorf("canonical envelope: %w", err)
	}
	plain, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("canonical envelope: %w", err)
	}
	out, err := jcs.Transform(plain)
	if err != nil {
		return nil, fmt.Errorf("canonical envelope: %w", err)
	}
	return out, nil
}

// Digest is "sha256:" and the hex SHA-256 over a domain prefix and Canonical.
func Digest(e Envelope) (string, error) {
	body, err := Canonical(e)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append([]byte(digestDomain), body...))
	return digestPrefix + hex.EncodeToString(sum[:]), nil
}

// normalise makes nil lists empty, so that JSON writes [] and not null, and
// refuses what would change on the way. v must belong to the caller.
func normalise(v reflect.Value, path string) error {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if err := normalise(v.Field(i), path+"."+v.Type().Field(i).Name); err != nil {
				return err
			}
		}
	case reflect.Slice:
		if v.IsNil() {
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		}
		for i := range v.Len() {
			if err := normalise(v.Index(i), fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
	case reflect.String:
		if !utf8.ValidString(v.String()) {
			return fmt.Errorf("%s: not valid UTF-8", path[1:])
		}
	case reflect.Int64:
		if n := v.Int(); n > mostExact || n < -mostExact {
			return fmt.Errorf("%s: %d is not below 2^53", path[1:], n)
		}
	}
	return nil
}
