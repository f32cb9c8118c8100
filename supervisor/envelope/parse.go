package envelope

import (
	"errors"
	"fmt"

	"cordon/internal/fault"
	"cordon/internal/strictyaml"
)

// root is the one top key of the document.
const root = "sandbox"

// New returns the envelope to fill in: the three switches that may only be on
// are on. A plain bool cannot tell absent from false, so that whoever builds
// an envelope starts here and passes an explicit false on, to be refused.
func New() Envelope {
	return Envelope{
		Artifacts: Artifacts{Hash: true},
		Cleanup:   Cleanup{RevokeCredentials: true, VerifyProcessTree: true},
	}
}

// Parse reads a document as it was written: strictly, without defaults and
// without judging values beyond their kind. Every problem is a *fault.Fault
// with line, column and path; they are joined.
func Parse(doc []byte) (Envelope, error) {
	e, _, err := parse(doc)
	return e, err
}

// Read is Parse, Complete and Validate of one document; what Validate finds
// gets the line and column of the value, or of the group that lacks it.
func Read(doc []byte) (Envelope, error) {
	e, seen, err := parse(doc)
	if err != nil {
		return Envelope{}, err
	}
	e = Complete(e)
	found := findings(e)
	if len(found) == 0 {
		return e, nil
	}
	placed := make([]error, len(found))
	for i, f := range found {
		path := root + "." + f.Field
		placed[i] = fault.New(f.Code, path, seen.Place(path, f.Cause), f.Remedy)
	}
	return Envelope{}, errors.Join(placed...)
}

func parse(doc []byte) (Envelope, strictyaml.Positions, error) {
	e := New()
	d := strictyaml.Decoder{
		Root:  root,
		Forms: map[string]strictyaml.Form{root + ".resources.cpu": strictyaml.MilliCores},
	}
	seen, err := d.Decode(doc, &e)
	if err != nil {
		return Envelope{}, nil, strictyaml.Faults(err, fault.InvalidEnvelope)
	}
	if err := refuseEmpty(e, seen); err != nil {
		return Envelope{}, nil, err
	}
	return e, seen, nil
}

// refuseEmpty finds fields that are written down as 0 or "". In an Envelope
// that means "the default", but whoever wrote "process_count: 0", or a
// template that filled in nothing, meant something else.
func refuseEmpty(e Envelope, seen strictyaml.Positions) error {
	var bad []error
	for _, d := range defaulted(e) {
		path := root + "." + d.field
		if _, given := seen[path]; !given || !d.empty {
			continue
		}
		bad = append(bad, fault.New(fault.InvalidEnvelope, path, seen.Place(path, "is "+d.shown),
			"write a value, or leave the field out for its default"))
	}
	return errors.Join(bad...)
}

type defaultField struct {
	field string
	empty bool
	shown string
}

// defaulted lists the fields that Complete fills in, except those whose
// document form cannot be empty.
func defaulted(e Envelope) []defaultField {
	var out []defaultField
	text := func(field, v string) { out = append(out, defaultField{field, v == "", "empty"}) }
	number := func(field string, v int64) { out = append(out, defaultField{field, v == 0, "0"}) }

	text("identity.attempt_id", e.Identity.AttemptID)
	out = append(out, defaultField{"identity.uid", e.Identity.UID == 0, "0, which is root"})
	text("filesystem.root", e.Filesystem.Root)
	for i, in := range e.Filesystem.Inputs {
		text(fmt.Sprintf("filesystem.inputs[%d].name", i), in.Name)
		text(fmt.Sprintf("filesystem.inputs[%d].mode", i), in.Mode)
	}
	text("filesystem.workspace.mode", e.Filesystem.Workspace.Mode)
	number("filesystem.workspace.max_bytes", e.Filesystem.Workspace.MaxBytes)
	text("filesystem.workspace.medium", e.Filesystem.Workspace.Medium)
	number("filesystem.workspace.inodes", e.Filesystem.Workspace.Inodes)
	text("network_egress.default", e.NetworkEgress.Default)
	number("resources.memory_bytes", e.Resources.MemoryBytes)
	number("resources.process_count", e.Resources.ProcessCount)
	number("resources.disk_bytes", e.Resources.DiskBytes)
	number("resources.open_files", e.Resources.OpenFiles)
	number("resources.output_bytes", e.Resources.OutputBytes)
	text("workspace_lifetime", e.WorkspaceLifetime)
	text("isolation.tier", e.Isolation.Tier)
	text("repeatability.locale", e.Repeatability.Locale)
	text("repeatability.clock", e.Repeatability.Clock)
	text("repeatability.randomness", e.Repeatability.Randomness)
	return out
}
