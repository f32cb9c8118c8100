package evidence

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// maxInteger is the largest integer that RFC 8785's numbers hold exactly.
const maxInteger = 1<<53 - 1

// maxDepth is far above what a record nests.
const maxDepth = 32

// scan reads one JSON document token by token, because encoding/json itself
// lets the last of two equal keys win. It refuses equal keys, numbers other
// than exact integers, deep nesting and trailing data.
func scan(doc []byte) error {
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	if err := scanValue(dec, 0); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: data after the document", ErrSyntax)
	}
	return nil
}

func scanValue(dec *json.Decoder, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: nested deeper than %d", ErrSyntax, maxDepth)
	}
	tok, err := dec.Token()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrSyntax, err)
	}
	switch t := tok.(type) {
	case json.Number:
		return scanNumber(t)
	case json.Delim:
		if t == '{' {
			return scanObject(dec, depth)
		}
		return scanArray(dec, depth)
	default:
		return nil
	}
}

func scanObject(dec *json.Decoder, depth int) error {
	seen := make(map[string]bool)
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return fmt.Errorf("%w: %w", ErrSyntax, err)
		}
		key, ok := tok.(string)
		if !ok {
			return fmt.Errorf("%w: key is not a string", ErrSyntax)
		}
		if seen[key] {
			return fmt.Errorf("%w: %q", ErrDuplicateKey, key)
		}
		seen[key] = true
		if err := scanValue(dec, depth+1); err != nil {
			return err
		}
	}
	return scanClose(dec)
}

func scanArray(dec *json.Decoder, depth int) error {
	for dec.More() {
		if err := scanValue(dec, depth+1); err != nil {
			return err
		}
	}
	return scanClose(dec)
}

func scanClose(dec *json.Decoder) error {
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf("%w: %w", ErrSyntax, err)
	}
	return nil
}

func scanNumber(n json.Number) error {
	v, err := strconv.ParseInt(n.String(), 10, 64)
	if err != nil || v > maxInteger || v < -maxInteger {
		return fmt.Errorf("%w: %s", ErrNumber, clip(n.String()))
	}
	return nil
}

// clip keeps a hostile document out of error texts.
func clip(s string) string {
	const most = 40
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}
