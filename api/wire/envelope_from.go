package wire

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	cordonv1 "cordon/api/v1"
	"cordon/internal/fault"
	"cordon/supervisor/envelope"
)

// EnvelopeOf is the inverse of Envelope. Only what an envelope.Envelope cannot
// hold is an error, a *fault.Fault that names the field; everything else is
// for the envelope's own checks.
func EnvelopeOf(m *cordonv1.Envelope) (envelope.Envelope, error) {
	if m == nil {
		return envelope.Envelope{}, fault.New(fault.InvalidEnvelope, "envelope", "is missing", "send an envelope")
	}
	var rd reader
	e := envelope.Envelope{
		ImageDigest:       m.GetImageDigest(),
		RuntimeRevision:   m.GetRuntimeRevision(),
		Identity:          identityOf(m.GetIdentity()),
		Filesystem:        filesystemOf(m.GetFilesystem()),
		NetworkEgress:     egressOf(m.GetNetworkEgress()),
		Resources:         rd.resources(m.GetResources()),
		WorkspaceLifetime: m.GetWorkspaceLifetime(),
		Artifacts:         artifactsOf(m.GetArtifacts()),
		Cleanup:           rd.cleanup(m.GetCleanup()),
		Isolation:         envelope.Isolation{Tier: m.GetIsolation().GetTier()},
		Repeatability:     repeatabilityOf(m.GetRepeatability()),
		BrowserProfile:    m.GetBrowserProfile(),
	}
	if rd.err != nil {
		return envelope.Envelope{}, rd.err
	}
	return e, nil
}

// reader keeps the first error of several conversions.
type reader struct {
	err error
}

func (rd *reader) duration(d *durationpb.Duration, field string) time.Duration {
	v, err := DurationOf(d, field)
	rd.fail(err)
	return v
}

func (rd *reader) fail(err error) {
	if rd.err == nil {
		rd.err = err
	}
}

func (rd *reader) resources(m *cordonv1.Resources) envelope.Resources {
	return envelope.Resources{
		CPUMilli:     m.GetCpuMilli(),
		MemoryBytes:  m.GetMemoryBytes(),
		ProcessCount: m.GetProcessCount(),
		DiskBytes:    m.GetDiskBytes(),
		OpenFiles:    m.GetOpenFiles(),
		OutputBytes:  m.GetOutputBytes(),
		WallClock:    rd.duration(m.GetWallClock(), "resources.wall_clock"),
	}
}

func artifactsOf(m *cordonv1.Artifacts) envelope.Artifacts {
	if m == nil {
		m = &cordonv1.Artifacts{}
	}
	return envelope.Artifacts{
		Allow: m.GetAllow(),
		Scan:  m.GetScan(),
		Hash:  on(m.Hash),
	}
}

func (rd *reader) cleanup(m *cordonv1.Cleanup) envelope.Cleanup {
	if m == nil {
		m = &cordonv1.Cleanup{}
	}
	return envelope.Cleanup{
		Lease:             rd.duration(m.GetLease(), "cleanup.lease"),
		RevokeCredentials: on(m.RevokeCredentials),
		VerifyProcessTree: on(m.VerifyProcessTree),
	}
}

// on reads a switch that is on unless it is said to be off, which the
// envelope's checks refuse.
func on(b *bool) bool { return b == nil || *b }

func identityOf(m *cordonv1.Identity) envelope.Identity {
	return envelope.Identity{
		Tenant:          m.GetTenant(),
		RunID:           m.GetRunId(),
		AttemptID:       m.GetAttemptId(),
		TraceID:         m.GetTraceId(),
		ParentSpan:      m.GetParentSpan(),
		UID:             m.GetUid(),
		Principal:       m.GetPrincipal(),
		DelegatedActor:  m.GetDelegatedActor(),
		AuthorityExpiry: m.GetAuthorityExpiry(),
	}
}

func filesystemOf(m *cordonv1.Filesystem) envelope.Filesystem {
	return envelope.Filesystem{
		Root: m.GetRoot(),
		Inputs: each(m.GetInputs(), func(in *cordonv1.Input) envelope.Input {
			return envelope.Input{Name: in.GetName(), Digest: in.GetDigest(), Mode: in.GetMode()}
		}),
		Workspace: envelope.Workspace{
			Mode:     m.GetWorkspace().GetMode(),
			MaxBytes: m.GetWorkspace().GetMaxBytes(),
			Medium:   m.GetWorkspace().GetMedium(),
			Inodes:   m.GetWorkspace().GetInodes(),
		},
		Devices: m.GetDevices(),
	}
}

func egressOf(m *cordonv1.NetworkEgress) envelope.Egress {
	return envelope.Egress{
		Default:             m.GetDefault(),
		AllowedDestinations: m.GetAllowedDestinations(),
		Methods:             m.GetMethods(),
		MaxBytes:            m.GetMaxBytes(),
	}
}

func repeatabilityOf(m *cordonv1.Repeatability) envelope.Repeat {
	return envelope.Repeat{
		Locale:     m.GetLocale(),
		Clock:      m.GetClock(),
		Randomness: m.GetRandomness(),
		DependencyLocks: each(m.GetDependencyLocks(), func(l *cordonv1.Lock) envelope.Lock {
			return envelope.Lock{Name: l.GetName(), Digest: l.GetDigest()}
		}),
		NetworkFixtures: m.GetNetworkFixtures(),
	}
}
