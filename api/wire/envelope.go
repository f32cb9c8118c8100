package wire

import (
	cordonv1 "cordon/api/v1"
	"cordon/supervisor/envelope"
)

// Envelope converts an envelope to its message.
//
// Hash, RevokeCredentials and VerifyProcessTree cannot be switched off, so
// false can only mean that nothing was said; it is left absent.
func Envelope(e envelope.Envelope) *cordonv1.Envelope {
	return &cordonv1.Envelope{
		ImageDigest:       e.ImageDigest,
		RuntimeRevision:   e.RuntimeRevision,
		Identity:          identity(e.Identity),
		Filesystem:        filesystem(e.Filesystem),
		NetworkEgress:     egress(e.NetworkEgress),
		Resources:         resources(e.Resources),
		WorkspaceLifetime: e.WorkspaceLifetime,
		Artifacts: &cordonv1.Artifacts{
			Allow: e.Artifacts.Allow,
			Scan:  &e.Artifacts.Scan,
			Hash:  said(e.Artifacts.Hash),
		},
		Cleanup: &cordonv1.Cleanup{
			Lease:             Duration(e.Cleanup.Lease),
			RevokeCredentials: said(e.Cleanup.RevokeCredentials),
			VerifyProcessTree: said(e.Cleanup.VerifyProcessTree),
		},
		Isolation:      &cordonv1.Isolation{Tier: e.Isolation.Tier},
		Repeatability:  repeatability(e.Repeatability),
		BrowserProfile: e.BrowserProfile,
	}
}

func said(b bool) *bool {
	if !b {
		return nil
	}
	return &b
}

func identity(i envelope.Identity) *cordonv1.Identity {
	return &cordonv1.Identity{
		Tenant:          i.Tenant,
		RunId:           i.RunID,
		AttemptId:       i.AttemptID,
		TraceId:         i.TraceID,
		ParentSpan:      i.ParentSpan,
		Uid:             i.UID,
		Principal:       i.Principal,
		DelegatedActor:  i.DelegatedActor,
		AuthorityExpiry: i.AuthorityExpiry,
	}
}

func filesystem(f envelope.Filesystem) *cordonv1.Filesystem {
	return &cordonv1.Filesystem{
		Root: f.Root,
		Inputs: each(f.Inputs, func(in envelope.Input) *cordonv1.Input {
			return &cordonv1.Input{Name: in.Name, Digest: in.Digest, Mode: in.Mode}
		}),
		Workspace: &cordonv1.Workspace{
			Mode:     f.Workspace.Mode,
			MaxBytes: f.Workspace.MaxBytes,
			Medium:   f.Workspace.Medium,
			Inodes:   f.Workspace.Inodes,
		},
		Devices: f.Devices,
	}
}

func egress(e envelope.Egress) *cordonv1.NetworkEgress {
	return &cordonv1.NetworkEgress{
		Default:             e.Default,
		AllowedDestinations: e.AllowedDestinations,
		Methods:             e.Methods,
		MaxBytes:            e.MaxBytes,
	}
}

func resources(r envelope.Resources) *cordonv1.Resources {
	return &cordonv1.Resources{
		CpuMilli:     r.CPUMilli,
		MemoryBytes:  r.MemoryBytes,
		ProcessCount: r.ProcessCount,
		DiskBytes:    r.DiskBytes,
		OpenFiles:    r.OpenFiles,
		OutputBytes:  r.OutputBytes,
		WallClock:    Duration(r.WallClock),
	}
}

func repeatability(r envelope.Repeat) *cordonv1.Repeatability {
	return &cordonv1.Repeatability{
		Locale:     r.Locale,
		Clock:      r.Clock,
		Randomness: r.Randomness,
		DependencyLocks: each(r.DependencyLocks, func(l envelope.Lock) *cordonv1.Lock {
			return &cordonv1.Lock{Name: l.Name, Digest: l.Digest}
		}),
		NetworkFixtures: r.NetworkFixtures,
	}
}

// each converts a list; an empty one becomes nil, which is what decoding an
// absent list gives.
func each[From, To any](in []From, convert func(From) To) []To {
	var out []To
	for _, v := range in {
		out = append(out, convert(v))
	}
	return out
}
