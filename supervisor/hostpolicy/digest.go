package hostpolicy

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/gowebpki/jcs"
)

const digestDomain = "cordon host policy v1\n"

// digestOf hashes the RFC 8785 form of what a policy decides by. Lists are
// sorted by now; notes are not part of it.
func digestOf(p Policy) (string, error) {
	tenants := p.tenants
	if tenants == nil {
		tenants = []Tenant{}
	}
	plain, err := json.Marshal(struct {
		AllowHostImage bool     `json:"allow_host_image"`
		Budget         Amounts  `json:"budget"`
		IDBase         uint32   `json:"id_base"`
		IDCount        uint32   `json:"id_count"`
		Tenants        []Tenant `json:"tenants"`
	}{p.allowHostImage, p.budget, p.idBase, p.idCount, tenants})
	if err != nil {
		return "", fmt.Errorf("digest policy: %w", err)
	}
	body, err := jcs.Transform(plain)
	if err != nil {
		return "", fmt.Errorf("digest policy: %w", err)
	}
	sum := sha256.Sum256(append([]byte(digestDomain), body...))
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}
