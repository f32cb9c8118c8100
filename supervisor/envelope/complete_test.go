package envelope

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestCompleteWritesEveryDefault(t *testing.T) {
	e, err := Parse([]byte(minimal))
	if err != nil {
		t.Fatal(err)
	}
	want := Envelope{
		ImageDigest: digestA,
		Identity:    Identity{Tenant: "acme", RunID: "run_85a", AttemptID: "1", UID: 10000},
		Filesystem: Filesystem{
			Root:      "read_only",
			Workspace: Workspace{Mode: "fresh_overlay", MaxBytes: 1 << 30, Medium: "disk", Inodes: 65536},
		},
		NetworkEgress: Egress{Default: "deny"},
		Resources: Resources{
			CPUMilli: 1000, MemoryBytes: 512 << 20, ProcessCount: 128, DiskBytes: 1 << 30,
			OpenFiles: 512, OutputBytes: 16 << 20, WallClock: 10 * time.Minute,
		},
		WorkspaceLifetime: "one_run",
		Artifacts:         Artifacts{Hash: true},
		Cleanup:           Cleanup{Lease: 15 * time.Minute, RevokeCredentials: true, VerifyProcessTree: true},
		Isolation:         Isolation{Tier: "namespaces"},
		Repeatability:     Repeat{Locale: "C.UTF-8", Clock: "host", Randomness: "host"},
	}
	got := Complete(e)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("wrong defaults (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(got, Complete(got)); diff != "" {
		t.Errorf("completing twice changes (-once +twice):\n%s", diff)
	}
	if err := Validate(got); err != nil {
		t.Errorf("the defaults do not hold: %v", err)
	}
}

func TestCompleteDisk(t *testing.T) {
	tests := []struct {
		name                   string
		disk, max, inodes      int64
		wantDisk, wantMax, ino int64
	}{
		{"neither", 0, 0, 0, 1 << 30, 1 << 30, 65536},
		{"disk alone", 64 << 20, 0, 0, 64 << 20, 64 << 20, 4096},
		{"workspace alone", 0, 64 << 20, 0, 64 << 20, 64 << 20, 4096},
		{"both, different, left for Validate", 1 << 20, 2 << 20, 0, 1 << 20, 2 << 20, 1024},
		{"inodes given", 64 << 20, 0, 77, 64 << 20, 64 << 20, 77},
		{"inode floor", 8 << 20, 0, 0, 8 << 20, 8 << 20, 1024},
		{"inode ceiling", 1 << 40, 0, 0, 1 << 40, 1 << 40, 4 << 20},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := New()
			e.Resources.DiskBytes, e.Filesystem.Workspace.MaxBytes, e.Filesystem.Workspace.Inodes = tt.disk, tt.max, tt.inodes
			got := Complete(e)
			if got.Resources.DiskBytes != tt.wantDisk || got.Filesystem.Workspace.MaxBytes != tt.wantMax ||
				got.Filesystem.Workspace.Inodes != tt.ino {
				t.Errorf("got disk %d, workspace %+v", got.Resources.DiskBytes, got.Filesystem.Workspace)
			}
		})
	}
}

func TestCompleteNamesInputs(t *testing.T) {
	e := New()
	e.Filesystem.Inputs = []Input{{Digest: digestA}, {Digest: digestB, Name: "b"}, {Digest: "nonsense"}}
	got := Complete(e).Filesystem.Inputs
	want := []Input{
		{Digest: digestA, Name: digestA[len("sha256:"):], Mode: "read_only"},
		{Digest: digestB, Name: "b", Mode: "read_only"},
		{Digest: "nonsense", Mode: "read_only"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("wrong inputs (-want +got):\n%s", diff)
	}
}

func TestCompleteSharesNothing(t *testing.T) {
	e := fullEnvelope()
	c := Complete(e)
	c.Filesystem.Inputs[0].Name = "changed"
	c.Artifacts.Allow[0] = "changed"
	c.Repeatability.DependencyLocks[0].Name = "changed"
	if diff := cmp.Diff(fullEnvelope(), e); diff != "" {
		t.Errorf("the original changed with its completion:\n%s", diff)
	}
}
