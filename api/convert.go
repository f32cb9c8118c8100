package api

import (
	"strings"

	cordonv1 "cordon/api/v1"
	"cordon/api/wire"
	"cordon/supervisor"
)

func leaseInfo(l supervisor.LeaseInfo) *cordonv1.Lease {
	out := &cordonv1.Lease{
		Id:             l.ID,
		State:          wire.State(l.State.String()),
		Tenant:         l.Tenant,
		RunId:          l.RunID,
		AttemptId:      l.AttemptID,
		ImageDigest:    l.ImageDigest,
		EnvelopeDigest: l.EnvelopeDigest,
		PlanDigest:     l.PlanDigest,
		AcquiredAt:     wire.Time(l.AcquiredAt),
		ExpiresAt:      wire.Time(l.ExpiresAt),
		MaxExpiresAt:   wire.Time(l.MaxExpiresAt),
		Fencing:        l.Fencing,
		OwnerUid:       l.OwnerUID,
		End:            maybeEnd(l.End),
	}
	for _, x := range l.Execs {
		out.Execs = append(out.Execs, &cordonv1.ExecInfo{
			Id: x.ID, Argv: validList(x.Argv), Running: x.Running, End: maybeEnd(x.End),
		})
	}
	return out
}

// maybeEnd is nil for what has not ended.
func maybeEnd(e supervisor.End) *cordonv1.End {
	if e.Cause == 0 {
		return nil
	}
	return end(e)
}

func end(e supervisor.End) *cordonv1.End {
	u := e.Usage
	return &cordonv1.End{
		Cause:            wire.Cause(e.Cause.String()),
		ExitCode:         int32(e.ExitCode),
		Signal:           int32(e.Signal),
		Detail:           valid(e.Detail),
		Witness:          e.Witness,
		DescendantsAlive: uint32(max(e.Descendants, 0)),
		StartCode:        int32(e.StartCode),
		Usage: &cordonv1.Usage{
			CpuUser:         wire.Duration(u.CPUUser),
			CpuSystem:       wire.Duration(u.CPUSystem),
			MemoryPeakBytes: u.MemoryPeak,
			PidsRefused:     u.PidsRefused,
			OomKills:        u.OOMKills,
			Wall:            wire.Duration(u.Wall),
			OutputBytes:     uint64(max(u.OutputBytes, 0)),
		},
	}
}

func signedRecord(r supervisor.SignedRecord) *cordonv1.SignedRecord {
	return &cordonv1.SignedRecord{Json: r.JSON, Head: r.Head, State: wire.State(r.State.String())}
}

// valid makes text of what a tenant may have chosen: a string that is not
// UTF-8 would fail the whole message.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func validList(in []string) []string {
	out := make([]string, len(in))
	for i, s := range in {
		out[i] = valid(s)
	}
	return out
}

func validMap(in map[string]string) map[string]string {
	out := make(map[string]string, len(in))
	for k, v := range in {
		out[valid(k)] = valid(v)
	}
	return out
}
