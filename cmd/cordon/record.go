package main

import (
	"fmt"
	"strings"
	"time"

	"cordon/api/client"
	"cordon/supervisor/envelope"
	"cordon/supervisor/evidence"
)

// recordText is a verified record on one screen.
func recordText(r evidence.Report) string {
	var p page
	rec := r.Record
	p.line("lease", "%s, %s after %s: %s", rec.Lease.ID, rec.State,
		formatLength(rec.Lease.ClosedAt.Sub(rec.Lease.RequestedAt)), recordEnd(rec.End))
	p.line("for", "tenant %s, run %s, attempt %s, owner uid %d",
		rec.Identity.Tenant, rec.Identity.RunID, rec.Identity.AttemptID, rec.Lease.OwnerUID)
	if id := rec.Identity; id.Principal != "" || id.DelegatedActor != "" {
		p.line("by", "%s", authority(id))
	}
	p.line("image", "%s, plan %s", shortDigest(rec.Digests.Image), shortDigest(orNone(rec.Digests.Plan)))
	p.items("inputs", inputTexts(rec.Inputs))
	p.line("limits", "%s", limitsText(rec.Envelope))
	p.items("held", heldTexts(rec))
	p.line("used", "%s", usageText(rec.Usage))
	p.items("network", networkTexts(rec.Network))
	p.items("commands", commandTexts(rec))
	p.items("exports", exportTexts(rec.Exports))
	p.items("cleanup", cleanupTexts(rec))
	p.items("unseen", rec.Remanence.NotChecked)
	p.items("gaps", rec.Gaps)
	if rec.Supersedes != "" {
		p.line("replaces", "%s", rec.Supersedes)
	}
	p.line("chain", "entry %d of host %s, after %s", r.Link.Sequence, r.Link.HostID, shortDigest(r.Link.Previous))
	p.line("head", "%s", r.Head)
	p.line("signed", "valid, by %s", r.Link.KeyID)
	return p.String()
}

func authority(id evidence.Identity) string {
	text := "principal " + orNone(id.Principal)
	if id.DelegatedActor != "" {
		text += ", delegated to " + id.DelegatedActor
	}
	if id.AuthorityExpiry != "" {
		text += ", until " + id.AuthorityExpiry
	}
	return text
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func inputTexts(in []evidence.Input) []string {
	var out []string
	for _, i := range in {
		out = append(out, i.Name+" "+shortDigest(i.Digest))
	}
	return out
}

func limitsText(e envelope.Envelope) string {
	r := e.Resources
	return fmt.Sprintf("%s cpu, %s memory, %d processes, %s disk, %d files, %s",
		formatCores(r.CPUMilli), formatBytes(r.MemoryBytes), r.ProcessCount, formatBytes(r.DiskBytes),
		r.OpenFiles, formatLength(r.WallClock))
}

// heldTexts is what the kernel confirmed, and every fact that it did not.
func heldTexts(rec evidence.Record) []string {
	held := 0
	var bad []string
	for _, c := range rec.ReadBack {
		if c.OK {
			held++
			continue
		}
		bad = append(bad, fmt.Sprintf("NOT %s: wanted %s, the kernel said %s", c.Name, c.Want, c.Got))
	}
	if len(rec.ReadBack) == 0 {
		return []string{"nothing was read back: the sandbox never became active"}
	}
	return append([]string{fmt.Sprintf("%d of %d facts, read back from kernel %s (cgroup %s)",
		held, len(rec.ReadBack), rec.Host.Kernel, rec.Host.CgroupMode)}, bad...)
}

func usageText(u evidence.Usage) string {
	text := fmt.Sprintf("%s cpu, %s memory at most, %s output",
		formatLength(micros(u.CPUUserUS+u.CPUSystemUS)), formatBytes(u.MemoryPeakBytes), formatBytes(u.OutputBytes))
	if u.PidsRefused != 0 {
		text += fmt.Sprintf(", %d forks refused", u.PidsRefused)
	}
	if u.OOMKills != 0 {
		text += fmt.Sprintf(", %d killed for memory", u.OOMKills)
	}
	return text
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

func networkTexts(n evidence.Network) []string {
	if n.Denied == 0 && len(n.Destinations) == 0 {
		return []string{"nothing was tried"}
	}
	out := []string{fmt.Sprintf("%d attempts refused", n.Denied)}
	for _, d := range n.Destinations {
		host := d.Address
		if strings.Contains(host, ":") {
			host = "[" + host + "]"
		}
		text := fmt.Sprintf("%s %s:%d %s %s", d.Proto, host, d.Port, d.Verdict, d.Errno)
		if d.Count != 1 {
			text += fmt.Sprintf(", %d times", d.Count)
		}
		out = append(out, text+" ("+d.Hook+")")
	}
	if n.Unlisted != 0 {
		out = append(out, fmt.Sprintf("%d to places that are not listed", n.Unlisted))
	}
	return out
}

func commandTexts(rec evidence.Record) []string {
	var out []string
	for _, x := range rec.Execs {
		out = append(out, fmt.Sprintf("%s %s %s in %s", x.ID, x.Argv0, recordEnd(x.End), formatLength(micros(x.Usage.WallUS))))
	}
	if rec.ExecsUnlisted != 0 {
		out = append(out, fmt.Sprintf("and %d that are not listed", rec.ExecsUnlisted))
	}
	if out == nil {
		return []string{"none"}
	}
	return out
}

// recordEnd is an end as records write it.
func recordEnd(e evidence.End) string {
	return endText(client.End{
		Cause: client.Cause(e.Cause), ExitCode: e.ExitCode, Signal: e.Signal,
		StartCode: e.StartCode, Witness: e.Witness, Detail: e.Detail,
	})
}

func exportTexts(exports []evidence.Export) []string {
	if len(exports) == 0 {
		return []string{"nothing left the sandbox"}
	}
	var out []string
	for _, e := range exports {
		if !e.Complete {
			out = append(out, fmt.Sprintf("%s: at most %s, broken off", e.Path, formatBytes(e.Bytes)))
			continue
		}
		out = append(out, fmt.Sprintf("%s, %s, scan %s", e.Path, formatBytes(e.Bytes), e.Scan), e.Digest)
	}
	return out
}

func cleanupTexts(rec evidence.Record) []string {
	var kinds, out []string
	for _, it := range rec.Cleanup.Items {
		kinds = append(kinds, strings.ReplaceAll(it.Kind, "_", " "))
		for _, left := range it.Leftovers {
			out = append(out, fmt.Sprintf("LEFT OVER %s: %s", it.Kind, left))
		}
	}
	for _, e := range rec.Cleanup.Errors {
		out = append(out, "ERROR "+e)
	}
	if rec.Cleanup.Clean {
		return append([]string{"nothing left of: " + strings.Join(kinds, ", ")}, out...)
	}
	return append([]string{"NOT CLEAN"}, out...)
}
