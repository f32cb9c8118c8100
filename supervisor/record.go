package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"cordon/jail"
	"cordon/supervisor/envelope"
	"cordon/supervisor/evidence"
)

// mostExact is the largest integer that a record can hold.
const mostExact = 1<<53 - 1

// mostText bounds each piece of free text in a record, and mostTexts how many
// there are of one kind.
const (
	mostText  = 512
	mostTexts = 64
)

// recordLocked says all that is known of a lease that is being sealed.
func (s *Supervisor) recordLocked(l *lease, state State, now time.Time) evidence.Record {
	e, env := l.entry, recordEnvelope(l.env)
	id := env.Identity
	return evidence.Record{
		Schema:     evidence.Schema,
		State:      state.String(),
		Supersedes: e.Head,
		Lease: evidence.Lease{
			ID: e.ID, Fencing: exact(e.Fencing), OwnerUID: e.OwnerUID, IDBase: e.IDBase,
			RequestedAt: e.RequestedAt.UTC(), ActiveAt: e.ActiveAt.UTC(), ExpiresAt: e.ExpiresAt.UTC(),
			EndedAt: e.EndedAt.UTC(), ClosedAt: now.UTC(),
		},
		Identity: evidence.Identity{
			Tenant: id.Tenant, RunID: id.RunID, AttemptID: id.AttemptID,
			TraceID: id.TraceID, ParentSpan: id.ParentSpan,
			Principal: id.Principal, DelegatedActor: id.DelegatedActor, AuthorityExpiry: id.AuthorityExpiry,
		},
		Envelope: env,
		Digests: evidence.Digests{
			Envelope: e.EnvelopeDigest, HostPolicy: e.PolicyDigest, Plan: e.PlanDigest, Image: env.ImageDigest,
		},
		Host: evidence.Host{
			Version: s.cfg.Version, RuntimeRevision: s.cfg.RuntimeRevision,
			Kernel: s.features.Kernel, CgroupMode: s.features.CgroupMode,
		},
		Repeat: evidence.Repeat{
			Locale: env.Repeatability.Locale, Clock: env.Repeatability.Clock, Randomness: env.Repeatability.Randomness,
			DependencyLocks: env.Repeatability.DependencyLocks, NetworkFixtures: env.Repeatability.NetworkFixtures,
		},
		Inputs:        recordInputs(env.Filesystem.Inputs),
		ReadBack:      recordChecks(e.ReadBack),
		Usage:         l.usageLocked(),
		Network:       l.outcome.network,
		Execs:         l.execsLocked(),
		ExecsUnlisted: l.unlisted,
		Exports:       append([]evidence.Export{}, l.exports...),
		End:           recordEnd(e.End),
		Cleanup:       l.cleanup,
		Remanence:     remanence(l.cleanup),
		Gaps:          l.gapsLocked(),
	}
}

// recordEnvelope is env as its canonical form decodes: no list is null, so
// that the record shows the very bytes that the digest is over.
func recordEnvelope(env envelope.Envelope) envelope.Envelope {
	raw, err := envelope.Canonical(env)
	if err != nil {
		return env // not after a digest was made of it
	}
	var out envelope.Envelope
	if err := json.Unmarshal(raw, &out); err != nil {
		return env
	}
	return out
}

func recordInputs(in []envelope.Input) []evidence.Input {
	out := []evidence.Input{}
	for _, i := range in {
		out = append(out, evidence.Input{Name: i.Name, Digest: i.Digest})
	}
	return out
}

func (l *lease) usageLocked() evidence.Usage {
	u := l.outcome.usage
	u.OutputBytes = l.outputTaken()
	u.Wall = l.entry.EndedAt.Sub(l.entry.RequestedAt)
	return recordUsage(u, 0)
}

// execsLocked lists the commands; one that has no end by now never will, but
// what it said has been read, and may have left.
func (l *lease) execsLocked() []evidence.Exec {
	out := append([]evidence.Exec{}, l.execs...)
	for _, x := range l.commands {
		if x.place >= 0 {
			out[x.place].Usage.OutputBytes = x.outputBytes()
		}
	}
	for i := range out {
		if out[i].End.Cause == "" {
			out[i].End = recordEnd(End{Cause: CauseInfrastructure, Detail: "nobody saw the end; " + actOf(l.entry.End).cause.String()})
		}
	}
	return out
}

func (l *lease) gapsLocked() []string {
	gaps := []string{}
	if l.recovered {
		gaps = append(gaps,
			"an earlier daemon served this lease: usage is not known, and its last moments may be missing from commands and exports",
			"events of the lease before the restart are gone")
		if l.entry.CgroupID == 0 {
			gaps = append(gaps, "the daemon ended before it journalled the lease's cgroup: an egress entry, which denies, may remain until it lapses")
		}
	}
	if l.unlisted > 0 {
		gaps = append(gaps, "commands beyond the list's bound are only counted")
	}
	return append(gaps, clipTexts(l.outcome.gaps)...)
}

// remanence says what the cleanup looked at, and what nobody does.
func remanence(c evidence.Cleanup) evidence.Remanence {
	r := evidence.Remanence{
		Checked: []string{},
		NotChecked: []string{
			"disk blocks of the removed workspace volume",
			"host memory and page cache that the commands used",
			"logs of the host outside this program",
		},
	}
	for _, it := range c.Items {
		r.Checked = append(r.Checked, it.Kind+": "+it.Looked)
	}
	return r
}

func recordChecks(checks []jail.Check) []jail.Check {
	out := make([]jail.Check, 0, len(checks))
	for _, c := range checks {
		out = append(out, jail.Check{Name: clipText(c.Name), Want: clipText(c.Want), Got: clipText(c.Got), OK: c.OK})
	}
	return out
}

// plainItems are the items with no list null and nothing unbounded.
func plainItems(items []jail.CleanupItem) []jail.CleanupItem {
	out := []jail.CleanupItem{}
	for _, it := range items {
		out = append(out, jail.CleanupItem{Kind: clipText(it.Kind), Looked: clipText(it.Looked), Leftovers: clipTexts(it.Leftovers)})
	}
	return out
}

func errorTexts(err error) []string {
	if err == nil {
		return []string{}
	}
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) {
		return clipTexts([]string{err.Error()})
	}
	var out []string
	for _, e := range joined.Unwrap() {
		out = append(out, e.Error())
	}
	return clipTexts(out)
}

func clipTexts(list []string) []string {
	out := []string{}
	for i, s := range list {
		if i == mostTexts {
			return append(out, fmt.Sprintf("and %d more", len(list)-i))
		}
		out = append(out, clipText(s))
	}
	return out
}

func recordEnd(e End) evidence.End {
	return evidence.End{
		Cause: e.Cause.String(), ExitCode: e.ExitCode, Signal: e.Signal,
		StartCode: e.StartCode, Witness: e.Witness, Detail: clipText(e.Detail),
	}
}

// endOfRecord is the way back, for the owner's eyes.
func endOfRecord(e evidence.End, u evidence.Usage) End {
	var cause EndCause
	for c, name := range maps.All(causeNames) {
		if name == e.Cause {
			cause = c
		}
	}
	return End{
		Cause: cause, ExitCode: e.ExitCode, Signal: e.Signal, StartCode: e.StartCode,
		Witness: e.Witness, Detail: e.Detail, Descendants: int(u.DescendantsAlive),
		Usage: Usage{
			Usage: jail.Usage{
				CPUUser:    time.Duration(u.CPUUserUS) * time.Microsecond,
				CPUSystem:  time.Duration(u.CPUSystemUS) * time.Microsecond,
				MemoryPeak: uint64(u.MemoryPeakBytes), PidsPeak: uint64(u.PidsPeak),
				PidsRefused: uint64(u.PidsRefused), OOMKills: uint64(u.OOMKills),
				VolumeBytes: uint64(u.VolumeBytes), VolumeInodes: uint64(u.VolumeInodes),
			},
			Wall:        time.Duration(u.WallUS) * time.Microsecond,
			OutputBytes: u.OutputBytes,
		},
	}
}

func recordUsage(u Usage, descendants int) evidence.Usage {
	return evidence.Usage{
		CPUUserUS: u.CPUUser.Microseconds(), CPUSystemUS: u.CPUSystem.Microseconds(),
		WallUS: u.Wall.Microseconds(), MemoryPeakBytes: exact(u.MemoryPeak),
		PidsPeak: exact(u.PidsPeak), PidsRefused: exact(u.PidsRefused), OOMKills: exact(u.OOMKills),
		OutputBytes: u.OutputBytes, VolumeBytes: exact(u.VolumeBytes), VolumeInodes: exact(u.VolumeInodes),
		DescendantsAlive: int64(descendants),
	}
}

func networkOf(f Flows) evidence.Network {
	n := evidence.Network{Denied: exact(f.Denied), Unlisted: exact(f.Unlisted), Destinations: []evidence.Destination{}}
	list := f.Destinations
	if len(list) > mostListed {
		for _, d := range list[mostListed:] {
			n.Unlisted = exact(uint64(n.Unlisted) + d.Count)
		}
		list = list[:mostListed]
	}
	for _, d := range slices.Clone(list) {
		n.Destinations = append(n.Destinations, evidence.Destination{
			Hook: clipText(d.Hook), Address: clipText(d.Address), Port: d.Port, Proto: clipText(d.Proto),
			Verdict: clipText(d.Verdict), Errno: clipText(d.Errno), Count: exact(d.Count),
			First: d.First.UTC(), Last: d.Last.UTC(),
		})
	}
	return n
}

// exact keeps a count within what a record can hold.
func exact(n uint64) int64 { return int64(min(n, mostExact)) }

// clipText bounds text and makes it UTF-8, so that a record can hold it.
func clipText(s string) string { return clipTo(s, mostText) }

func clipTo(s string, most int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}
