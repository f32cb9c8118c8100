package evidence

import (
	"fmt"
	"strings"
	"time"
)

// Report is what a verified entry says.
type Report struct {
	Link   Link
	Head   string // the chain's head after this entry
	Record Record
	// Statements are the report in plain words, one a line, in reading
	// order. Text that came from a tenant is quoted.
	Statements []string
}

// String is the statements as lines.
func (r Report) String() string { return strings.Join(r.Statements, "\n") + "\n" }

func statements(r Report) []string {
	out := []string{
		fmt.Sprintf("signature: valid, key %s", r.Link.KeyID),
		fmt.Sprintf("chain: entry %d of host %q, head %s", r.Link.Sequence, r.Link.HostID, r.Head),
	}
	out = append(out, leaseStatements(r.Record)...)
	out = append(out, enforcedStatements(r.Record)...)
	out = append(out, leftStatements(r.Record)...)
	out = append(out, remainStatements(r.Record)...)
	for _, gap := range r.Record.Gaps {
		out = append(out, "gap: "+quoted(gap))
	}
	return out
}

func chainStatements(first, last Report) []string {
	whole := "from the chain's beginning"
	if first.Link.Sequence != 1 {
		whole = "what came before is not in this file"
	}
	return []string{fmt.Sprintf("entries: %d to %d, unbroken, %s", first.Link.Sequence, last.Link.Sequence, whole)}
}

func leaseStatements(rec Record) []string {
	id := rec.Identity
	out := []string{
		fmt.Sprintf("lease: %q for tenant %q, run %q attempt %q, owner uid %d, fencing %d",
			rec.Lease.ID, id.Tenant, id.RunID, id.AttemptID, rec.Lease.OwnerUID, rec.Lease.Fencing),
		fmt.Sprintf("time: requested %s, ended %s, closed %s",
			stamp(rec.Lease.RequestedAt), stamp(rec.Lease.EndedAt), stamp(rec.Lease.ClosedAt)),
		"end: " + endText(rec.End),
	}
	if id.Principal != "" || id.DelegatedActor != "" {
		out = append(out, fmt.Sprintf("authority: principal %q, delegated actor %q, until %q", id.Principal, id.DelegatedActor, id.AuthorityExpiry))
	}
	if rec.Supersedes != "" {
		out = append(out, fmt.Sprintf("supersedes: the record with head %q", rec.Supersedes))
	}
	return out
}

func enforcedStatements(rec Record) []string {
	held, broken := 0, []string{}
	for _, c := range rec.ReadBack {
		if c.OK {
			held++
			continue
		}
		broken = append(broken, fmt.Sprintf("read-back: %q wanted %q, the kernel said %q", c.Name, c.Want, c.Got))
	}
	text := fmt.Sprintf("enforced: %d of %d facts read back from the kernel as planned (kernel %q, cgroups %q)",
		held, len(rec.ReadBack), rec.Host.Kernel, rec.Host.CgroupMode)
	if len(rec.ReadBack) == 0 {
		text = "enforced: nothing was read back; the sandbox never became active, or its read-back was lost"
	}
	out := append([]string{text}, broken...)
	return append(out, fmt.Sprintf("plan: %s under policy %s, image %q",
		quoted(rec.Digests.Plan), quoted(rec.Digests.HostPolicy), rec.Digests.Image))
}

func leftStatements(rec Record) []string {
	out := []string{fmt.Sprintf("commands: %d listed, %d unlisted", len(rec.Execs), rec.ExecsUnlisted)}
	for _, x := range rec.Execs {
		out = append(out, fmt.Sprintf("command %q: %q %s", x.ID, x.Argv0, endText(x.End)))
	}
	if len(rec.Exports) == 0 {
		out = append(out, "left the sandbox: no artifact")
	}
	for _, e := range rec.Exports {
		out = append(out, exportText(e))
	}
	return append(out, fmt.Sprintf("network: %d attempts denied, %d destinations listed", rec.Network.Denied, len(rec.Network.Destinations)))
}

func exportText(e Export) string {
	if !e.Complete {
		return fmt.Sprintf("left the sandbox: at most %d bytes of %q, broken off", e.Bytes, e.Path)
	}
	return fmt.Sprintf("left the sandbox: %q, %d bytes, %s, scan %q", e.Path, e.Bytes, quoted(e.Digest), e.Scan)
}

func remainStatements(rec Record) []string {
	var out []string
	if rec.Cleanup.Clean {
		out = append(out, fmt.Sprintf("remained: nothing, looked for %s", kinds(rec)))
	}
	for _, it := range rec.Cleanup.Items {
		for _, left := range it.Leftovers {
			out = append(out, fmt.Sprintf("remained: %q %q", it.Kind, left))
		}
	}
	for _, e := range rec.Cleanup.Errors {
		out = append(out, "clean-up error: "+quoted(e))
	}
	for _, s := range rec.Remanence.NotChecked {
		out = append(out, "not checked: "+quoted(s))
	}
	return out
}

func kinds(rec Record) string {
	var names []string
	for _, it := range rec.Cleanup.Items {
		names = append(names, quoted(it.Kind))
	}
	return strings.Join(names, ", ")
}

func endText(e End) string {
	var s string
	switch {
	case e.StartCode != 0:
		s = fmt.Sprintf("never ran (%d)", e.StartCode)
	case e.Cause == "exited":
		s = fmt.Sprintf("exited with %d", e.ExitCode)
	case e.Cause == "signalled":
		s = fmt.Sprintf("ended by signal %d", e.Signal)
	default:
		s = quoted(e.Cause)
	}
	if e.Witness == "init" {
		s += " (by the word of the sandbox's own init)"
	}
	if e.Detail != "" {
		s += ": " + quoted(e.Detail)
	}
	return s
}

// quoted is s as it is when it is plain printable ASCII, and quoted when it
// could disturb a terminal or look like another statement.
func quoted(s string) string {
	for _, c := range s {
		if c < ' ' || c > '~' || c == '"' || c == '\\' {
			return fmt.Sprintf("%q", s)
		}
	}
	return s
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format(time.RFC3339)
}
