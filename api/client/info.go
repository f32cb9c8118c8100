package client

import (
	"context"

	cordonv1 "cordon/api/v1"
)

// Info is what a daemon and its host are and can do.
type Info struct {
	Version         string   `json:"version"`
	RuntimeRevision string   `json:"runtime_revision"`
	Kernel          string   `json:"kernel"`
	CgroupMode      string   `json:"cgroup_mode"` // v2 or hybrid
	Terms           []Term   `json:"terms"`
	RecordKey       string   `json:"record_key"` // the public key of records, base64
	Leases          uint32   `json:"leases"`
	Tenants         []string `json:"tenants"` // that the caller may speak for
}

// Term is one of the eight terms of the guarantee.
type Term struct {
	Letter   string `json:"letter"` // K P F N I R T C
	Name     string `json:"name"`
	Given    bool   `json:"given"`
	Proof    string `json:"proof"`     // what gives it here
	LeftOver string `json:"left_over"` // what is still trusted
}

// Info asks the daemon about itself. Everyone who can connect may.
func (c *Client) Info(ctx context.Context) (Info, error) {
	resp, err := c.rpc.Info(ctx, &cordonv1.InfoRequest{})
	if err != nil {
		return Info{}, answer(err)
	}
	info := Info{
		Version:         resp.GetVersion(),
		RuntimeRevision: resp.GetRuntimeRevision(),
		Kernel:          resp.GetKernel(),
		CgroupMode:      resp.GetCgroupMode(),
		RecordKey:       resp.GetRecordKey(),
		Leases:          resp.GetLeases(),
		Tenants:         resp.GetTenants(),
	}
	for _, t := range resp.GetTerms() {
		info.Terms = append(info.Terms, Term{
			Letter: t.GetLetter(), Name: t.GetName(), Given: t.GetGiven(),
			Proof: t.GetProof(), LeftOver: t.GetLeftOver(),
		})
	}
	return info, nil
}
