package envelope

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cordon/internal/fault"
)

const (
	digestA = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	digestB = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// full is a document that gives every field.
const full = `
sandbox:
  image_digest: ` + digestA + `
  runtime_revision: cordon 0.1 + policy 3
  identity: {tenant: acme, run_id: run_85a, attempt_id: "2", trace_id: 4bf92f3577b34da6a3ce929d0e0e4736,
    parent_span: 00f067aa0ba902b7, uid: 20000, principal: "user:alice", delegated_actor: agent-7,
    authority_expiry: 2026-08-07T18:30:00Z}
  filesystem:
    root: read_only
    inputs: [{name: status, digest: ` + digestB + `, mode: read_only}]
    workspace: {mode: fresh_overlay, max_bytes: 2147483648, medium: memory, inodes: 5000}
    devices: []
  network_egress: {default: deny, allowed_destinations: [], methods: [], max_bytes: 0}
  resources:
    cpu: 2
    memory_bytes: 4294967296
    process_count: 64
    disk_bytes: 2147483648
    open_files: 1024
    output_bytes: 33554432
    wall_clock: 1h30m
  workspace_lifetime: one_run
  artifacts: {allow: [result.json, out/log.txt], scan: false, hash: true}
  cleanup: {lease: 2h, revoke_credentials: true, verify_process_tree: true}
  isolation: {tier: namespaces}
  repeatability:
    locale: de_DE.UTF-8
    clock: host
    randomness: host
    dependency_locks: [{name: web/package-lock.json, digest: ` + digestA + `}]
    network_fixtures: []
`

const minimal = "sandbox:\n  image_digest: " + digestA + "\n  identity: {tenant: acme, run_id: run_85a}\n"

func fullEnvelope() Envelope {
	return Envelope{
		ImageDigest:     digestA,
		RuntimeRevision: "cordon 0.1 + policy 3",
		Identity: Identity{
			Tenant: "acme", RunID: "run_85a", AttemptID: "2",
			TraceID: "4bf92f3577b34da6a3ce929d0e0e4736", ParentSpan: "00f067aa0ba902b7",
			UID: 20000, Principal: "user:alice", DelegatedActor: "agent-7",
			AuthorityExpiry: "2026-08-07T18:30:00Z",
		},
		Filesystem: Filesystem{
			Root:      "read_only",
			Inputs:    []Input{{Name: "status", Digest: digestB, Mode: "read_only"}},
			Workspace: Workspace{Mode: "fresh_overlay", MaxBytes: 2 << 30, Medium: "memory", Inodes: 5000},
		},
		NetworkEgress: Egress{Default: "deny"},
		Resources: Resources{
			CPUMilli: 2000, MemoryBytes: 4 << 30, ProcessCount: 64, DiskBytes: 2 << 30,
			OpenFiles: 1024, OutputBytes: 32 << 20, WallClock: 90 * time.Minute,
		},
		WorkspaceLifetime: "one_run",
		Artifacts:         Artifacts{Allow: []string{"result.json", "out/log.txt"}, Hash: true},
		Cleanup:           Cleanup{Lease: 2 * time.Hour, RevokeCredentials: true, VerifyProcessTree: true},
		Isolation:         Isolation{Tier: "namespaces"},
		Repeatability: Repeat{
			Locale: "de_DE.UTF-8", Clock: "host", Randomness: "host",
			DependencyLocks: []Lock{{Name: "web/package-lock.json", Digest: digestA}},
		},
	}
}

func TestParseEveryField(t *testing.T) {
	got, err := Parse([]byte(full))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(fullEnvelope(), got); diff != "" {
		t.Errorf("wrong envelope (-want +got):\n%s", diff)
	}
	if err := Validate(Complete(got)); err != nil {
		t.Errorf("Validate: %v", err)
	}
	if diff := cmp.Diff(got, Complete(got)); diff != "" {
		t.Errorf("Complete changed given values (-want +got):\n%s", diff)
	}
}

func TestParseSwitches(t *testing.T) {
	absent, err := Parse([]byte(minimal))
	if err != nil {
		t.Fatal(err)
	}
	if !absent.Artifacts.Hash || !absent.Cleanup.RevokeCredentials || !absent.Cleanup.VerifyProcessTree {
		t.Errorf("absent switches are not on: %+v %+v", absent.Artifacts, absent.Cleanup)
	}
	off, err := Parse([]byte("sandbox:\n  artifacts: {hash: false}\n  cleanup: {revoke_credentials: false, verify_process_tree: false}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if off.Artifacts.Hash || off.Cleanup.RevokeCredentials || off.Cleanup.VerifyProcessTree {
		t.Errorf("an explicit false was lost: %+v %+v", off.Artifacts, off.Cleanup)
	}
}

func TestParseRefuses(t *testing.T) {
	tests := []struct {
		name, doc string
		want      []string // the start of each fault's text
	}{
		{"unknown field", "sandbox:\n  resources:\n    memory_byte: 1\n", []string{
			"sandbox.resources.memory_byte: line 3 column 5: unknown field memory_byte [did you mean memory_bytes?]",
		}},
		{"no top key", "identity: {}\n", []string{
			"identity: line 1 column 1: unknown field identity [known here: sandbox]", "sandbox: line 1 column 1: missing",
		}},
		{"cpu with a unit", "sandbox:\n  resources: {cpu: 500m}\n", []string{
			`sandbox.resources.cpu: line 2 column 20: "500m" is not a number of cores`,
		}},
		{"wall clock without unit", "sandbox:\n  resources: {wall_clock: 600}\n", []string{
			`sandbox.resources.wall_clock: line 2 column 27: "600" is not a time`,
		}},
		{"size with a unit", "sandbox:\n  resources: {memory_bytes: 4GiB}\n", []string{
			`sandbox.resources.memory_bytes: line 2 column 29: "4GiB" is not a whole number`,
		}},
		{"number as a name", "sandbox:\n  identity: {run_id: 85}\n", []string{
			`sandbox.identity.run_id: line 2 column 22: "85" without quotes is a number`,
		}},
		{"list item", "sandbox:\n  filesystem:\n    inputs:\n    - digest: x\n    - digest: 5\n", []string{
			`sandbox.filesystem.inputs[1].digest: line 5 column 15: "5" without quotes is a number`,
		}},
		{"uid root", "sandbox: {identity: {uid: 0}}\n", []string{
			"sandbox.identity.uid: line 1 column 27: is 0, which is root",
		}},
		{"uid negative", "sandbox: {identity: {uid: -1}}\n", []string{
			`sandbox.identity.uid: line 1 column 27: "-1" is out of range`,
		}},
		{"uid 2^32", "sandbox: {identity: {uid: 4294967296}}\n", []string{
			`sandbox.identity.uid: line 1 column 27: "4294967296" is out of range`,
		}},
		{"zero for a limit", "sandbox:\n  resources:\n    process_count: 0\n    disk_bytes: 0\n", []string{
			"sandbox.resources.process_count: line 3 column 20: is 0 [write a value, or leave",
			"sandbox.resources.disk_bytes: line 4 column 17: is 0",
		}},
		{"empty for a default", "sandbox:\n  identity: {attempt_id: \"\"}\n  filesystem: {inputs: [{name: \"\"}]}\n", []string{
			"sandbox.identity.attempt_id: line 2 column 26: is empty",
			"sandbox.filesystem.inputs[0].name: line 3 column 32: is empty",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, err := Parse([]byte(tt.doc))
			wantFaults(t, err, fault.InvalidEnvelope, tt.want)
			if diff := cmp.Diff(Envelope{}, e); diff != "" {
				t.Errorf("an envelope came with the error:\n%s", diff)
			}
		})
	}
}

// wantFaults compares the text of each joined fault with its wanted start.
func wantFaults(t *testing.T, err error, code fault.Code, want []string) {
	t.Helper()
	var got []string
	for _, e := range joined(err) {
		got = append(got, e.Error())
		if c := fault.CodeOf(e); c != code {
			t.Errorf("%v: code %q, want %q", e, c, code)
		}
	}
	for i := range min(len(got), len(want)) {
		if strings.HasPrefix(got[i], want[i]) {
			got[i] = want[i]
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("wrong faults (-want +got):\n%s", diff)
	}
}

func joined(err error) []error {
	var list interface{ Unwrap() []error }
	if errors.As(err, &list) {
		return list.Unwrap()
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// TestBookDocument reads the document of the specification, with digests in
// the places of its placeholders: it is readable as a whole, and exactly the
// parts that this version lacks are refused by name.
func TestBookDocument(t *testing.T) {
	doc := `sandbox:
  image_digest: ` + digestA + `
  runtime_revision: <runtime-and-host-policy-version>
  identity: {tenant: acme, run_id: run_85a, uid: 10000}
  filesystem:
    root: read_only
    inputs: [{digest: ` + digestB + `, mode: read_only}]
    workspace: {mode: fresh_overlay, max_bytes: 2147483648}
    devices: []
  network_egress:
    default: deny
    allowed_destinations: [artifact-mirror.internal]
    methods: [GET]
    max_bytes: 104857600
  resources:
    cpu: 2
    memory_bytes: 4294967296
    process_count: 128
    disk_bytes: 2147483648
    open_files: 512
    output_bytes: 16777216
    wall_clock: 10m
  workspace_lifetime: one_run
  artifacts: {allow: [result.json], scan: true, hash: true}
  cleanup: {lease: 15m, revoke_credentials: true, verify_process_tree: true}
`
	_, err := Read([]byte(doc))
	wantFaults(t, err, fault.Unsupported, []string{
		"sandbox.network_egress.allowed_destinations: line 12 column 27: allowed destinations are not part of this version",
		"sandbox.network_egress.methods: line 13 column 14: allowed methods are not part of this version",
		"sandbox.network_egress.max_bytes: line 14 column 16: an egress budget is not part of this version",
		"sandbox.artifacts.scan: line 24 column 43: this host has no scanner",
	})
}

func TestReadPlacesFindings(t *testing.T) {
	_, err := Read([]byte("sandbox:\n  identity:\n    tenant: acme\n    uid: 65534\n  filesystem:\n    inputs:\n      - digest: nope\n"))
	wantFaults(t, err, fault.InvalidEnvelope, []string{
		"sandbox.image_digest: line 2 column 3: is missing",
		"sandbox.identity.run_id: line 3 column 5: is missing",
		"sandbox.identity.uid: line 4 column 10: 65534 is out of range [use 1 to 65533]",
		`sandbox.filesystem.inputs[0].digest: line 7 column 17: "nope" is not a digest`,
	})
}

func TestExampleFile(t *testing.T) {
	doc, err := os.ReadFile("../../deploy/envelope.example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Read(doc)
	if err != nil {
		t.Fatal(err)
	}
	// Its comment says that all but these are the defaults.
	want := New()
	want.ImageDigest = got.ImageDigest
	want.Identity.Tenant, want.Identity.RunID = "root", "run_85a"
	want.Filesystem.Inputs = []Input{{Name: "status", Digest: got.Filesystem.Inputs[0].Digest}}
	want.Artifacts.Allow = []string{"result.json"}
	if diff := cmp.Diff(Complete(want), got); diff != "" {
		t.Errorf("the example departs from the defaults (-want +got):\n%s", diff)
	}
}
