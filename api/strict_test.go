package api

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	cordonv1 "cordon/api/v1"
	"cordon/internal/fault"
)

// unknown is field number 1999 with a varint, as a newer API might send it.
func unknown[M proto.Message](m M) M {
	b := protowire.AppendTag(nil, 1999, protowire.VarintType)
	m.ProtoReflect().SetUnknown(protowire.AppendVarint(b, 1))
	return m
}

func TestStrict(t *testing.T) {
	tests := []struct {
		name  string
		in    proto.Message
		field string // of the fault; "" for none
	}{
		{"empty", &cordonv1.AcquireRequest{}, ""},
		{"full", &cordonv1.AcquireRequest{Envelope: &cordonv1.Envelope{
			Filesystem: &cordonv1.Filesystem{Inputs: []*cordonv1.Input{{Name: "a"}, {Name: "b"}}, Devices: []string{"x"}},
		}}, ""},
		{"top", unknown(&cordonv1.AcquireRequest{}), "#1999"},
		{"nested", &cordonv1.AcquireRequest{Envelope: &cordonv1.Envelope{
			Identity: unknown(&cordonv1.Identity{}),
		}}, "envelope.identity.#1999"},
		{"in a list", &cordonv1.AcquireRequest{Envelope: &cordonv1.Envelope{
			Filesystem: &cordonv1.Filesystem{Inputs: []*cordonv1.Input{{Name: "a"}, unknown(&cordonv1.Input{})}},
		}}, "envelope.filesystem.inputs[1].#1999"},
		{
			"in a oneof",
			&cordonv1.ExecRequest{Kind: &cordonv1.ExecRequest_Start{Start: &cordonv1.ExecStart{Ref: unknown(&cordonv1.LeaseRef{})}}},
			"start.ref.#1999",
		},
		{"in a well-known type", &cordonv1.RenewRequest{Extend: unknown(&durationpb.Duration{Seconds: 60})}, "extend.#1999"},
		{"list too long", &cordonv1.AcquireRequest{Envelope: &cordonv1.Envelope{
			Artifacts: &cordonv1.Artifacts{Allow: make([]string, maxListLen+1)},
		}}, "envelope.artifacts.allow"},
		{"list just right", &cordonv1.AcquireRequest{Envelope: &cordonv1.Envelope{
			Artifacts: &cordonv1.Artifacts{Allow: make([]string, maxListLen)},
		}}, ""},
		{"long argv", start(make([]string, 32768), nil), ""},
		{"argv too long", start(make([]string, 32769), nil), "start.argv"},
		{"env too long", start(nil, make([]string, 4097)), "start.env"},
		{"unknown enum", &cordonv1.End{Cause: 99}, "cause"},
		{"bad key in a map", &cordonv1.Event{Attributes: map[string]string{"a": "b"}}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := strict(tt.in)
			if tt.field == "" {
				if err != nil {
					t.Errorf("got %v, want none", err)
				}
				return
			}
			var f *fault.Fault
			if !errors.As(err, &f) || f.Code != fault.InvalidArgument || f.Field != tt.field {
				t.Errorf("got %v, want invalid_argument about %s", err, tt.field)
			}
		})
	}
}

func start(argv, env []string) *cordonv1.ExecRequest {
	return &cordonv1.ExecRequest{Kind: &cordonv1.ExecRequest_Start{Start: &cordonv1.ExecStart{Argv: argv, Env: env}}}
}

// listLens must name fields that exist, or a limit is silently another.
func TestListLensNameFields(t *testing.T) {
	for name := range listLens {
		message := cordonv1.File_v1_supervisor_proto.Messages().ByName(name.Parent().Name())
		if message == nil || message.Fields().ByName(name.Name()) == nil {
			t.Errorf("%s is not a field", name)
		}
	}
}

// Whatever bytes arrive as an envelope: strict must say no to what a second
// encoding would not keep, and never panic.
func FuzzStrict(f *testing.F) {
	seed, err := proto.Marshal(&cordonv1.AcquireRequest{IdempotencyKey: "k", Envelope: &cordonv1.Envelope{
		ImageDigest: "sha256:" + strings.Repeat("0", 64), Identity: &cordonv1.Identity{Uid: 1},
	}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte{0x0a, 0x02, 0x98, 0x7d})
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &cordonv1.AcquireRequest{}
		if proto.Unmarshal(b, m) != nil || strict(m) != nil {
			return
		}
		known := &cordonv1.AcquireRequest{}
		if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, known); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(m, known) {
			t.Errorf("strict let unknown fields pass: %x", b)
		}
	})
}
