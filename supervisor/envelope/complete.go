package envelope

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// The default of each field that has one.
const (
	defaultAttempt  = "1"
	defaultUID      = 10000
	defaultRoot     = "read_only"
	defaultMode     = "read_only"
	defaultVolume   = "fresh_overlay"
	defaultMedium   = "disk"
	defaultEgress   = "deny"
	defaultCPU      = 1000 // milli
	defaultMemory   = 512 << 20
	defaultProcs    = 128
	defaultDisk     = 1 << 30
	defaultFiles    = 512
	defaultOutput   = 16 << 20
	defaultWall     = 10 * time.Minute
	defaultLifetime = "one_run"
	defaultLease    = 15 * time.Minute
	defaultTier     = "namespaces"
	defaultLocale   = "C.UTF-8"
	defaultClock    = "host"
	defaultRandom   = "host"
)

// A volume gets one inode for each bytesPerInode: small files fit, and the
// inode table stays a sixty-fourth of the volume.
const (
	bytesPerInode = 16 << 10
	leastInodes   = 1024
	mostInodes    = 4 << 20
)

// Complete writes every default out. It shares no memory with e, leaves given
// values alone, and completing twice changes nothing. The switches that may
// only be on are not touched: see New.
func Complete(e Envelope) Envelope {
	e.Identity.AttemptID = cmp.Or(e.Identity.AttemptID, defaultAttempt)
	e.Identity.UID = cmp.Or(e.Identity.UID, defaultUID)
	e.Resources = completeResources(e.Resources, e.Filesystem.Workspace.MaxBytes)
	e.Filesystem = completeFilesystem(e.Filesystem, e.Resources.DiskBytes)
	e.NetworkEgress.Default = cmp.Or(e.NetworkEgress.Default, defaultEgress)
	e.NetworkEgress.AllowedDestinations = list(e.NetworkEgress.AllowedDestinations)
	e.NetworkEgress.Methods = list(e.NetworkEgress.Methods)
	e.WorkspaceLifetime = cmp.Or(e.WorkspaceLifetime, defaultLifetime)
	e.Artifacts.Allow = list(e.Artifacts.Allow)
	e.Cleanup.Lease = cmp.Or(e.Cleanup.Lease, defaultLease)
	e.Isolation.Tier = cmp.Or(e.Isolation.Tier, defaultTier)
	e.Repeatability.Locale = cmp.Or(e.Repeatability.Locale, defaultLocale)
	e.Repeatability.Clock = cmp.Or(e.Repeatability.Clock, defaultClock)
	e.Repeatability.Randomness = cmp.Or(e.Repeatability.Randomness, defaultRandom)
	e.Repeatability.DependencyLocks = list(e.Repeatability.DependencyLocks)
	e.Repeatability.NetworkFixtures = list(e.Repeatability.NetworkFixtures)
	return e
}

// completeResources takes the disk from the workspace when only that is given.
func completeResources(r Resources, workspace int64) Resources {
	r.CPUMilli = cmp.Or(r.CPUMilli, defaultCPU)
	r.MemoryBytes = cmp.Or(r.MemoryBytes, defaultMemory)
	r.ProcessCount = cmp.Or(r.ProcessCount, defaultProcs)
	r.DiskBytes = cmp.Or(r.DiskBytes, workspace, defaultDisk)
	r.OpenFiles = cmp.Or(r.OpenFiles, defaultFiles)
	r.OutputBytes = cmp.Or(r.OutputBytes, defaultOutput)
	r.WallClock = cmp.Or(r.WallClock, defaultWall)
	return r
}

func completeFilesystem(f Filesystem, disk int64) Filesystem {
	f.Root = cmp.Or(f.Root, defaultRoot)
	f.Inputs = list(f.Inputs)
	for i := range f.Inputs {
		in := &f.Inputs[i]
		in.Mode = cmp.Or(in.Mode, defaultMode)
		if hex, ok := strings.CutPrefix(in.Digest, digestPrefix); ok && in.Name == "" {
			in.Name = hex
		}
	}
	f.Devices = list(f.Devices)
	w := &f.Workspace
	w.Mode = cmp.Or(w.Mode, defaultVolume)
	w.MaxBytes = cmp.Or(w.MaxBytes, disk)
	w.Medium = cmp.Or(w.Medium, defaultMedium)
	w.Inodes = cmp.Or(w.Inodes, min(max(w.MaxBytes/bytesPerInode, leastInodes), mostInodes))
	return f
}

// list is a copy of s in the one form of an empty list: nil.
func list[T any](s []T) []T {
	if len(s) == 0 {
		return nil
	}
	return slices.Clone(s)
}
