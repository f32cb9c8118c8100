package envelope

import (
	"fmt"
	"regexp"
	"strings"
	"time"
)

// The bounds of this version. Host policy narrows them further.
const (
	leastCPU, mostCPU       = 10, 1024 * 1000 // milli; the scheduler's quota has a floor of 1 ms in 100
	leastMemory, mostMemory = 16 << 20, 16 << 40
	leastProcs, mostProcs   = 1, 4 << 20 // the kernel's PID_MAX_LIMIT
	leastDisk, mostDisk     = 8 << 20, 16 << 40
	leastFiles, mostFiles   = 16, 1 << 20 // the kernel's default fs.nr_open
	leastOutput, mostOutput = 4 << 10, 1 << 40
	leastVolumeInodes       = 16
	leastBytesPerInode      = 1024 // what an ext4 of small blocks can hold

	leastUID, mostUID = 1, 65533 // 0 is root, 65534 is nobody, more is outside the lease's range

	mostInputs, mostLocks, mostArtifacts = 64, 32, 64
	mostName, mostText, mostPath         = 128, 256, 255
)

// The longest times that any envelope may ask for.
const (
	LeastWallClock = 100 * time.Millisecond
	MostWallClock  = 24 * time.Hour
	LeastLease     = time.Second
	MostLease      = 24 * time.Hour
)

const digestPrefix = "sha256:"

var (
	digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	namePattern   = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$`)
	inputPattern  = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,128}$`)
	tracePattern  = regexp.MustCompile(`^[0-9a-f]{32}$`)
	spanPattern   = regexp.MustCompile(`^[0-9a-f]{16}$`)
	localePattern = regexp.MustCompile(`^(C|POSIX|[a-z]{2,3}(_[A-Z]{2})?)(\.[A-Za-z0-9-]{1,16})?(@[a-z]{1,16})?$`)
)

// IsName reports whether s can be a tenant, run or attempt name.
func IsName(s string) bool { return namePattern.MatchString(s) }

// IsDigest reports whether s is a digest as this document writes it.
func IsDigest(s string) bool { return digestPattern.MatchString(s) }

// AuthorityEnd is AuthorityExpiry as a time; the zero time when there is no
// such limit.
func (i Identity) AuthorityEnd() (time.Time, error) {
	if i.AuthorityExpiry == "" {
		return time.Time{}, nil
	}
	t, err := time.Parse(time.RFC3339, i.AuthorityExpiry)
	if err != nil {
		return time.Time{}, fmt.Errorf("authority expiry %s: %w", show(i.AuthorityExpiry), err)
	}
	// One spelling for one instant, or the digest would tell them apart.
	if t.UTC().Format(time.RFC3339) != i.AuthorityExpiry {
		return time.Time{}, fmt.Errorf("authority expiry %s: not whole seconds of UTC", show(i.AuthorityExpiry))
	}
	return t.UTC(), nil
}

func checkImage(e *Envelope, r *report) { r.digest("image_digest", e.ImageDigest) }

func checkRuntime(e *Envelope, r *report) { r.text("runtime_revision", e.RuntimeRevision, mostName) }

func checkNames(e *Envelope, r *report) {
	for _, n := range []struct{ field, value string }{
		{"identity.tenant", e.Identity.Tenant},
		{"identity.run_id", e.Identity.RunID},
		{"identity.attempt_id", e.Identity.AttemptID},
	} {
		switch {
		case n.value == "":
			r.invalid(n.field, "is missing", "write a name")
		case !namePattern.MatchString(n.value):
			r.invalid(n.field, show(n.value)+" is not a name",
				"use 1 to 64 of a-z A-Z 0-9 . _ -, the first a letter or digit")
		}
	}
}

func checkTrace(e *Envelope, r *report) {
	id, span := e.Identity.TraceID, e.Identity.ParentSpan
	if id != "" && (!tracePattern.MatchString(id) || strings.Trim(id, "0") == "") {
		r.invalid("identity.trace_id", show(id)+" is not a trace id", "use 32 lower-case hex digits, not all zero")
	}
	if span != "" && (!spanPattern.MatchString(span) || strings.Trim(span, "0") == "") {
		r.invalid("identity.parent_span", show(span)+" is not a span id", "use 16 lower-case hex digits, not all zero")
	}
	if span != "" && id == "" {
		r.invalid("identity.parent_span", "is given without identity.trace_id", "give both or neither")
	}
}

func checkUID(e *Envelope, r *report) {
	if uid := e.Identity.UID; uid == 0 {
		r.invalid("identity.uid", "0 is root", fmt.Sprintf("use %d to %d", leastUID, mostUID))
	}
	if e.Identity.UID != 0 {
		r.within("identity.uid", int64(e.Identity.UID), leastUID, mostUID)
	}
}

func checkPrincipal(e *Envelope, r *report) {
	r.text("identity.principal", e.Identity.Principal, mostText)
	r.text("identity.delegated_actor", e.Identity.DelegatedActor, mostText)
}

func checkAuthority(e *Envelope, r *report) {
	if _, err := e.Identity.AuthorityEnd(); err != nil {
		r.invalid("identity.authority_expiry", show(e.Identity.AuthorityExpiry)+" is not a time in UTC",
			"write it as 2026-08-07T18:30:00Z")
	}
}

func checkRoot(e *Envelope, r *report) { r.fixed("filesystem.root", e.Filesystem.Root, "read_only") }

func checkInputs(e *Envelope, r *report) {
	r.count("filesystem.inputs", len(e.Filesystem.Inputs), mostInputs)
	names := map[string]int{}
	for i, in := range e.Filesystem.Inputs {
		field := fmt.Sprintf("filesystem.inputs[%d]", i)
		r.digest(field+".digest", in.Digest)
		r.fixed(field+".mode", in.Mode, "read_only")
		if in.Name == "" && !digestPattern.MatchString(in.Digest) {
			continue // the name would have come from the digest
		}
		if !inputPattern.MatchString(in.Name) || in.Name == "." || in.Name == ".." {
			r.invalid(field+".name", show(in.Name)+" is not a file name",
				"use 1 to 128 of a-z A-Z 0-9 . _ -, other than . and ..")
			continue
		}
		if first, ok := names[in.Name]; ok {
			r.invalid(field+".name", fmt.Sprintf("%s is the name of inputs[%d] too", show(in.Name), first),
				"give each input its own name")
			continue
		}
		names[in.Name] = i
	}
}

func checkWorkspace(e *Envelope, r *report) {
	w := e.Filesystem.Workspace
	r.fixed("filesystem.workspace.mode", w.Mode, "fresh_overlay")
	r.fixed("filesystem.workspace.medium", w.Medium, "disk", "memory")
	if w.MaxBytes != e.Resources.DiskBytes {
		r.invalid("filesystem.workspace.max_bytes",
			fmt.Sprintf("%d differs from resources.disk_bytes, %d", w.MaxBytes, e.Resources.DiskBytes),
			"give one of them, or both the same")
	}
	r.within("filesystem.workspace.inodes", w.Inodes, leastVolumeInodes,
		max(w.MaxBytes/leastBytesPerInode, leastVolumeInodes))
}

func checkDevices(e *Envelope, r *report) {
	if len(e.Filesystem.Devices) != 0 {
		r.unsupported("filesystem.devices", "devices are not part of this version", "leave the list empty")
	}
}

func checkEgress(e *Envelope, r *report) {
	n := e.NetworkEgress
	remedy := "leave it out: every connection is refused"
	if n.Default != defaultEgress {
		r.unsupported("network_egress.default", show(n.Default)+" is not part of this version", "use deny")
	}
	if len(n.AllowedDestinations) != 0 {
		r.unsupported("network_egress.allowed_destinations", "allowed destinations are not part of this version", remedy)
	}
	if len(n.Methods) != 0 {
		r.unsupported("network_egress.methods", "allowed methods are not part of this version", remedy)
	}
	switch {
	case n.MaxBytes > 0:
		r.unsupported("network_egress.max_bytes", "an egress budget is not part of this version", remedy)
	case n.MaxBytes < 0:
		r.invalid("network_egress.max_bytes", fmt.Sprintf("%d is negative", n.MaxBytes), remedy)
	}
}

func checkResources(e *Envelope, r *report) {
	v := e.Resources
	if v.CPUMilli < leastCPU || v.CPUMilli > mostCPU {
		r.invalid("resources.cpu", formatCores(v.CPUMilli)+" cores is out of range",
			"use "+formatCores(leastCPU)+" to "+formatCores(mostCPU))
	}
	r.within("resources.memory_bytes", v.MemoryBytes, leastMemory, mostMemory)
	r.within("resources.process_count", v.ProcessCount, leastProcs, mostProcs)
	r.within("resources.disk_bytes", v.DiskBytes, leastDisk, mostDisk)
	r.within("resources.open_files", v.OpenFiles, leastFiles, mostFiles)
	r.within("resources.output_bytes", v.OutputBytes, leastOutput, mostOutput)
	r.duration("resources.wall_clock", v.WallClock, LeastWallClock, MostWallClock)
}

func checkLifetime(e *Envelope, r *report) {
	if e.WorkspaceLifetime != defaultLifetime {
		r.unsupported("workspace_lifetime",
			show(e.WorkspaceLifetime)+" is not part of this version: there is no persistent workspace", "use one_run")
	}
}

func checkArtifacts(e *Envelope, r *report) {
	r.count("artifacts.allow", len(e.Artifacts.Allow), mostArtifacts)
	first := map[string]int{}
	for i, p := range e.Artifacts.Allow {
		field := fmt.Sprintf("artifacts.allow[%d]", i)
		if cause := pathProblem(p); cause != "" {
			r.invalid(field, show(p)+" "+cause, "write a clean path relative to /workspace, such as out/result.json")
			continue
		}
		if at, ok := first[p]; ok {
			r.invalid(field, fmt.Sprintf("%s is allow[%d] too", show(p), at), "remove one of them")
			continue
		}
		first[p] = i
	}
	if e.Artifacts.Scan {
		r.unsupported("artifacts.scan", "this host has no scanner", "use scan: false, or leave it out")
	}
	if !e.Artifacts.Hash {
		r.invalid("artifacts.hash", "artifacts are always hashed; it cannot be switched off", "use hash: true, or leave it out")
	}
}

// pathProblem says why p is not a clean relative slash path, or "".
func pathProblem(p string) string {
	switch {
	case p == "":
		return "is empty"
	case len(p) > mostPath:
		return fmt.Sprintf("has more than %d bytes", mostPath)
	case !printable(p):
		return "has characters that cannot be printed"
	case strings.HasPrefix(p, "/"):
		return "is not relative"
	}
	for part := range strings.SplitSeq(p, "/") {
		switch part {
		case "":
			return "has an empty component"
		case ".", "..":
			return "has the component " + part
		}
	}
	return ""
}

func checkCleanup(e *Envelope, r *report) {
	r.duration("cleanup.lease", e.Cleanup.Lease, LeastLease, MostLease)
	if !e.Cleanup.RevokeCredentials {
		r.invalid("cleanup.revoke_credentials", "credentials always end with the lease; it cannot be switched off",
			"use revoke_credentials: true, or leave it out")
	}
	if !e.Cleanup.VerifyProcessTree {
		r.invalid("cleanup.verify_process_tree", "the end is always verified; it cannot be switched off",
			"use verify_process_tree: true, or leave it out")
	}
}

func checkTier(e *Envelope, r *report) {
	if e.Isolation.Tier != defaultTier {
		r.unsupported("isolation.tier", show(e.Isolation.Tier)+" is not part of this version", "use namespaces")
	}
}

func checkRepeatability(e *Envelope, r *report) {
	p := e.Repeatability
	if !localePattern.MatchString(p.Locale) {
		r.invalid("repeatability.locale", show(p.Locale)+" is not a locale", "write one such as C.UTF-8 or de_DE.UTF-8")
	}
	if p.Clock != defaultClock {
		r.unsupported("repeatability.clock", show(p.Clock)+" is not part of this version", "use host")
	}
	if p.Randomness != defaultRandom {
		r.unsupported("repeatability.randomness", show(p.Randomness)+" is not part of this version", "use host")
	}
	if len(p.NetworkFixtures) != 0 {
		r.unsupported("repeatability.network_fixtures", "network fixtures are not part of this version", "leave the list empty")
	}
}

func checkLocks(e *Envelope, r *report) {
	r.count("repeatability.dependency_locks", len(e.Repeatability.DependencyLocks), mostLocks)
	names := map[string]bool{}
	for i, l := range e.Repeatability.DependencyLocks {
		field := fmt.Sprintf("repeatability.dependency_locks[%d]", i)
		r.digest(field+".digest", l.Digest)
		if cause := pathProblem(l.Name); cause != "" || len(l.Name) > mostName {
			r.invalid(field+".name", show(l.Name)+" is not the name of a lock file",
				fmt.Sprintf("write a clean relative path of at most %d bytes, such as web/package-lock.json", mostName))
			continue
		}
		if names[l.Name] {
			r.invalid(field+".name", show(l.Name)+" is listed twice", "remove one of them")
		}
		names[l.Name] = true
	}
}

func checkBrowser(e *Envelope, r *report) {
	if e.BrowserProfile != "" {
		r.unsupported("browser_profile", "browser profiles are not part of this version", "leave the field out")
	}
}
