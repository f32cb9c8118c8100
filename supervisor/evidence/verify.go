package evidence

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"

	"cordon/supervisor/envelope"
)

// The ways in which an entry can be wrong, in the order they are looked for.
var (
	ErrTooLarge     = errors.New("document is too large")
	ErrSyntax       = errors.New("not a JSON document")
	ErrDuplicateKey = errors.New("key given twice")
	ErrNumber       = errors.New("number is not an exact integer")
	ErrUnknownField = errors.New("unknown field")
	ErrFieldType    = errors.New("field has the wrong type")
	ErrNotCanonical = errors.New("bytes are not in canonical form")
	ErrVersion      = errors.New("unknown version")
	ErrKeyID        = errors.New("signed by another key")
	ErrDigest       = errors.New("record does not match its digest")
	ErrHead         = errors.New("head does not match the link")
	ErrSignature    = errors.New("signature is not valid")
	ErrContent      = errors.New("record contradicts itself")
	ErrSequence     = errors.New("sequence number does not follow")
	ErrPrevious     = errors.New("entry does not follow the one before")
	ErrHost         = errors.New("entry belongs to another host")
	ErrEmpty        = errors.New("no entries")
)

// maxEntry bounds what Verify reads. The largest record that supervisor
// builds is about a third of it.
const maxEntry = 16 << 20

// Verify checks one entry against the host's public key, offline and
// strictly: every byte of it is covered, either by the signature or because
// no other spelling is accepted. One newline at the end is allowed.
func Verify(entry []byte, pub ed25519.PublicKey) (Report, error) {
	e, rec, err := decode(bytes.TrimSuffix(entry, []byte{'\n'}))
	if err != nil {
		return Report{}, fmt.Errorf("verify record: %w", err)
	}
	if err := checkSeal(e, pub); err != nil {
		return Report{}, fmt.Errorf("verify record: %w", err)
	}
	if err := checkContent(e.Link, rec); err != nil {
		return Report{}, fmt.Errorf("verify record %q: %w", rec.Lease.ID, err)
	}
	r := Report{Link: e.Link, Head: e.Head, Record: rec}
	r.Statements = statements(r)
	return r, nil
}

// VerifyChain checks entries that follow one another, oldest first. They may
// start anywhere in a host's chain; the report says where. It is about the
// last entry, with statements about the whole.
func VerifyChain(entries [][]byte, pub ed25519.PublicKey) (Report, error) {
	if len(entries) == 0 {
		return Report{}, fmt.Errorf("verify chain: %w", ErrEmpty)
	}
	var first, last Report
	for i, raw := range entries {
		r, err := Verify(raw, pub)
		if err == nil && i > 0 {
			err = checkFollows(last.Link, last.Head, r.Link)
		}
		if err != nil {
			return Report{}, fmt.Errorf("verify chain: entry %d: %w", i+1, err)
		}
		if i == 0 {
			first = r
		}
		last = r
	}
	last.Statements = append(chainStatements(first, last), last.Statements...)
	return last, nil
}

// VerifyDocument checks what a file holds: one entry, or one a line.
func VerifyDocument(doc []byte, pub ed25519.PublicKey) (Report, error) {
	lines := bytes.Split(bytes.TrimRight(doc, "\n"), []byte{'\n'})
	if len(lines) == 1 {
		return Verify(doc, pub)
	}
	return VerifyChain(lines, pub)
}

// decode reads an entry and its record and refuses every spelling but one.
func decode(doc []byte) (Entry, Record, error) {
	var (
		e   Entry
		rec Record
	)
	if len(doc) > maxEntry {
		return e, rec, fmt.Errorf("%w: %d bytes, at most %d", ErrTooLarge, len(doc), maxEntry)
	}
	if err := scan(doc); err != nil {
		return e, rec, err
	}
	if err := unmarshal(doc, &e); err != nil {
		return e, rec, err
	}
	if err := unmarshal(e.Record, &rec); err != nil {
		return e, rec, fmt.Errorf("record: %w", err)
	}
	// Encoding again catches what a decoder forgives: another case of a
	// field's name, a missing field, spaces, escapes, order.
	raw, err := canonical(rec)
	if err != nil {
		return e, rec, fmt.Errorf("record: %w", err)
	}
	if !bytes.Equal(raw, e.Record) {
		return e, rec, fmt.Errorf("record: %w (first difference at byte %d)", ErrNotCanonical, firstDifference(raw, e.Record))
	}
	whole, err := canonical(e)
	if err != nil {
		return e, rec, err
	}
	if !bytes.Equal(whole, doc) {
		return e, rec, fmt.Errorf("entry: %w (first difference at byte %d)", ErrNotCanonical, firstDifference(whole, doc))
	}
	return e, rec, nil
}

// unmarshal decodes doc twice, because encoding/json has no typed error for
// an unknown field: what only the stricter run refuses is one.
func unmarshal(doc []byte, into any) error {
	if len(doc) == 0 {
		return fmt.Errorf("%w: missing", ErrFieldType)
	}
	if err := json.Unmarshal(doc, into); err != nil {
		return fmt.Errorf("%w: %s", ErrFieldType, clip(err.Error()))
	}
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("%w: %s", ErrUnknownField, clip(err.Error()))
	}
	return nil
}

func firstDifference(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

// checkSeal checks what binds the record: version, key, digest, head and
// signature.
func checkSeal(e Entry, pub ed25519.PublicKey) error {
	if e.Link.Version != LinkVersion {
		return fmt.Errorf("%w: link version %d, this program knows %d", ErrVersion, e.Link.Version, LinkVersion)
	}
	if len(pub) != ed25519.PublicKeySize {
		return fmt.Errorf("%w: the given key has %d bytes", ErrKeyID, len(pub))
	}
	if id := KeyID(pub); e.Link.KeyID != id {
		return fmt.Errorf("%w: entry names %q, the given key is %s", ErrKeyID, clip(e.Link.KeyID), id)
	}
	if got := digest("", e.Record); got != e.Link.RecordSHA256 {
		return fmt.Errorf("%w: it has %s, the link says %q", ErrDigest, got, clip(e.Link.RecordSHA256))
	}
	link, err := canonical(e.Link)
	if err != nil {
		return err
	}
	head := digest(linkDomain, link)
	if head != e.Head {
		return fmt.Errorf("%w: it has %s, the entry says %q", ErrHead, head, clip(e.Head))
	}
	// Strict: without it, unused bits of the last base64 digit could differ.
	sig, err := base64.StdEncoding.Strict().DecodeString(e.Signature)
	if err != nil || !ed25519.Verify(pub, []byte(headDomain+head), sig) {
		return fmt.Errorf("%w for key %s", ErrSignature, KeyID(pub))
	}
	return nil
}

// checkContent checks what a correct signer never writes.
func checkContent(l Link, rec Record) error {
	switch {
	case rec.Schema != Schema:
		return fmt.Errorf("%w: schema %q, this program knows %q", ErrVersion, clip(rec.Schema), Schema)
	case l.Sequence < 1:
		return fmt.Errorf("%w: sequence %d", ErrContent, l.Sequence)
	case l.Sequence == 1 && l.Previous != noPrevious:
		return fmt.Errorf("%w: the first entry follows %q", ErrPrevious, clip(l.Previous))
	case rec.Cleanup.Clean != cleanItems(rec.Cleanup):
		return fmt.Errorf("%w: cleanup says clean %v, its items say otherwise", ErrContent, rec.Cleanup.Clean)
	case rec.Cleanup.Clean != (rec.State == "closed"):
		return fmt.Errorf("%w: state %q with cleanup clean %v", ErrContent, clip(rec.State), rec.Cleanup.Clean)
	case rec.Digests.Image != rec.Envelope.ImageDigest:
		return fmt.Errorf("%w: image digest differs from the envelope's", ErrContent)
	}
	want, err := envelope.Digest(rec.Envelope)
	if err != nil || rec.Digests.Envelope != want {
		return fmt.Errorf("%w: envelope digest %q is not that of the envelope", ErrContent, clip(rec.Digests.Envelope))
	}
	return nil
}

// cleanItems reports whether a cleanup found nothing and had no error.
func cleanItems(c Cleanup) bool {
	for _, it := range c.Items {
		if len(it.Leftovers) != 0 {
			return false
		}
	}
	return len(c.Items) != 0 && len(c.Errors) == 0
}

func checkFollows(prev Link, head string, next Link) error {
	switch {
	case next.HostID != prev.HostID:
		return fmt.Errorf("%w: %q after %q", ErrHost, clip(next.HostID), clip(prev.HostID))
	case next.Sequence != prev.Sequence+1:
		return fmt.Errorf("%w: %d after %d", ErrSequence, next.Sequence, prev.Sequence)
	case next.Previous != head:
		return fmt.Errorf("%w: it names %q, the one before is %s", ErrPrevious, clip(next.Previous), head)
	}
	return nil
}
