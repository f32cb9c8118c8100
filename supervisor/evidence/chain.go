package evidence

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/gowebpki/jcs"
)

// LinkVersion is the one version of Link and Entry there is.
const LinkVersion = 1

// The prefixes keep a signature or hash made for one purpose from being
// worth anything for another.
const (
	linkDomain = "cordon evidence link v1\n"
	headDomain = "cordon evidence head v1\n"
)

// noPrevious is what the first link of a chain follows.
var noPrevious = "sha256:" + strings.Repeat("0", 2*sha256.Size)

// Link is a record's place in its host's chain.
type Link struct {
	Version      int    `json:"version"`
	Sequence     int64  `json:"sequence"` // 1, 2, 3, ...
	Previous     string `json:"previous"` // head of the entry before
	RecordSHA256 string `json:"record_sha256"`
	KeyID        string `json:"key_id"`
	HostID       string `json:"host_id"`
}

// Entry is a signed record, as one canonical JSON document (RFC 8785). Head
// is SHA-256 of linkDomain and the canonical link; Signature is Ed25519 over
// headDomain and Head, in base64.
type Entry struct {
	Link      Link            `json:"link"`
	Record    json.RawMessage `json:"record"`
	Head      string          `json:"head"`
	Signature string          `json:"signature"`
}

// Position is the end of a chain: where the next record goes.
type Position struct {
	HostID   string
	Sequence int64  // of the last entry; 0 when there is none
	Head     string // of the last entry; empty when there is none
}

// Prepared is a record in canonical form, ready to be signed. Preparing is
// the slow part, and needs no place in the chain.
type Prepared struct {
	id     string
	raw    []byte
	digest string
}

// Prepare brings a record into canonical form.
func Prepare(rec Record) (Prepared, error) {
	raw, err := canonical(rec)
	if err != nil {
		return Prepared{}, fmt.Errorf("prepare record %s: %w", rec.Lease.ID, err)
	}
	return Prepared{id: rec.Lease.ID, raw: raw, digest: digest("", raw)}, nil
}

// Sign makes the chain's next entry out of a record and returns its bytes
// and the chain's new end.
func (p Prepared) Sign(at Position, key ed25519.PrivateKey) ([]byte, Position, error) {
	if len(key) != ed25519.PrivateKeySize || p.raw == nil {
		return nil, at, fmt.Errorf("sign record %s: key has %d bytes, record %d", p.id, len(key), len(p.raw))
	}
	pub := key.Public().(ed25519.PublicKey) //nolint:forcetypeassert // documented result of ed25519
	e := Entry{Record: p.raw, Link: Link{
		Version:      LinkVersion,
		Sequence:     at.Sequence + 1,
		Previous:     previousOf(at),
		RecordSHA256: p.digest,
		KeyID:        KeyID(pub),
		HostID:       at.HostID,
	}}
	out, err := seal(&e, key)
	if err != nil {
		return nil, at, fmt.Errorf("sign record %s: %w", p.id, err)
	}
	return out, Position{HostID: at.HostID, Sequence: e.Link.Sequence, Head: e.Head}, nil
}

// seal fills in head and signature and returns the entry's bytes.
func seal(e *Entry, key ed25519.PrivateKey) ([]byte, error) {
	link, err := canonical(e.Link)
	if err != nil {
		return nil, err
	}
	e.Head = digest(linkDomain, link)
	e.Signature = base64.StdEncoding.EncodeToString(ed25519.Sign(key, []byte(headDomain+e.Head)))
	// The canonical form of the whole, put together from canonical parts:
	// keys in order, and nothing in head and signature that needs an escape.
	out := make([]byte, 0, len(e.Record)+1<<10)
	out = append(out, `{"head":"`+e.Head+`","link":`...)
	out = append(append(out, link...), `,"record":`...)
	out = append(append(out, e.Record...), `,"signature":"`+e.Signature+`"}`...)
	if len(out) > maxEntry {
		return nil, fmt.Errorf("%w: %d bytes", ErrTooLarge, len(out))
	}
	return out, nil
}

func previousOf(at Position) string {
	if at.Sequence == 0 {
		return noPrevious
	}
	return at.Head
}

func digest(domain string, data []byte) string {
	h := sha256.New()
	h.Write([]byte(domain))
	h.Write(data)
	return "sha256:" + hex.EncodeToString(h.Sum(nil))
}

// canonical is v in RFC 8785 form. Numbers that a double cannot hold are
// refused, because the form would round them.
func canonical(v any) ([]byte, error) {
	plain, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	if err := scan(plain); err != nil {
		return nil, err
	}
	out, err := jcs.Transform(plain)
	if err != nil {
		return nil, fmt.Errorf("canonicalise: %w", err)
	}
	return out, nil
}
