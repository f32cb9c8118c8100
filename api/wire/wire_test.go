package wire_test

import (
	"errors"
	"math"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	cordonv1 "cordon/api/v1"
	"cordon/api/wire"
	"cordon/internal/fault"
	"cordon/supervisor/envelope"
)

// fillStruct sets every field that v has to a value of its own.
func fillStruct(t *testing.T, v reflect.Value, n *int64) {
	t.Helper()
	*n++
	switch v.Kind() {
	case reflect.Struct:
		for _, field := range v.Fields() {
			fillStruct(t, field, n)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fillStruct(t, v.Index(0), n)
		fillStruct(t, v.Index(1), n)
	case reflect.String:
		v.SetString("s" + strconv.FormatInt(*n, 10))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int64:
		v.SetInt(*n)
	case reflect.Uint32:
		v.SetUint(uint64(*n))
	default:
		t.Fatalf("envelope has a field of type %v: teach this test and the conversion about it", v.Type())
	}
}

// fillMessage sets every field of m to a value of its own.
func fillMessage(t *testing.T, m protoreflect.Message, n *int64) {
	t.Helper()
	if d, ok := m.Interface().(*durationpb.Duration); ok {
		*n++
		d.Seconds, d.Nanos = *n, 5
		return
	}
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		switch {
		case fd.IsList():
			list := m.Mutable(fd).List()
			for range 2 {
				if fd.Message() != nil {
					fillMessage(t, list.AppendMutable().Message(), n)
				} else {
					list.Append(scalar(t, fd, n))
				}
			}
		case fd.Message() != nil:
			fillMessage(t, m.Mutable(fd).Message(), n)
		default:
			m.Set(fd, scalar(t, fd, n))
		}
	}
}

func scalar(t *testing.T, fd protoreflect.FieldDescriptor, n *int64) protoreflect.Value {
	t.Helper()
	*n++
	switch fd.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString("s" + strconv.FormatInt(*n, 10))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(*n)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(*n))
	default:
		t.Fatalf("%s is a %v: teach this test and the conversion about it", fd.FullName(), fd.Kind())
		return protoreflect.Value{}
	}
}

// A field that only one side has cannot survive both of these.
func TestEnvelopeRoundTrip(t *testing.T) {
	t.Run("struct to message to struct", func(t *testing.T) {
		var want envelope.Envelope
		var n int64
		fillStruct(t, reflect.ValueOf(&want).Elem(), &n)
		got, err := wire.EnvelopeOf(wire.Envelope(want))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("envelope (-want +got):\n%s", diff)
		}
	})
	t.Run("message to struct to message", func(t *testing.T) {
		want := &cordonv1.Envelope{}
		var n int64
		fillMessage(t, want.ProtoReflect(), &n)
		e, err := wire.EnvelopeOf(want)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, wire.Envelope(e), protocmp.Transform()); diff != "" {
			t.Errorf("message (-want +got):\n%s", diff)
		}
	})
}

func TestEnvelopeOf(t *testing.T) {
	tests := []struct {
		name  string
		in    *cordonv1.Envelope
		field string
	}{
		{"nothing", nil, "envelope"},
		{"bad nanos", &cordonv1.Envelope{Cleanup: &cordonv1.Cleanup{Lease: &durationpb.Duration{Seconds: 1, Nanos: -1}}}, "cleanup.lease"},
		{"no int64", &cordonv1.Envelope{Resources: &cordonv1.Resources{WallClock: &durationpb.Duration{Seconds: 300e9}}}, "resources.wall_clock"},
		{
			"first of two", &cordonv1.Envelope{
				Resources: &cordonv1.Resources{WallClock: &durationpb.Duration{Seconds: math.MaxInt64}},
				Cleanup:   &cordonv1.Cleanup{Lease: &durationpb.Duration{Nanos: -1e9}},
			}, "resources.wall_clock",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := wire.EnvelopeOf(tt.in)
			var f *fault.Fault
			if !errors.As(err, &f) || f.Field != tt.field {
				t.Errorf("got %v, want a fault about %s", err, tt.field)
			}
			if diff := cmp.Diff(envelope.Envelope{}, got); diff != "" {
				t.Errorf("with an error, got an envelope too:\n%s", diff)
			}
		})
	}
}

// What cannot be switched off is on when nothing is said, in a message as in
// a Go value; a message that says off stays off, for the envelope's checks.
func TestEnvelopeSwitches(t *testing.T) {
	off := new(bool)
	said, err := wire.EnvelopeOf(&cordonv1.Envelope{
		Artifacts: &cordonv1.Artifacts{Hash: off},
		Cleanup:   &cordonv1.Cleanup{RevokeCredentials: off, VerifyProcessTree: off},
	})
	if err != nil {
		t.Fatal(err)
	}
	if said.Artifacts.Hash || said.Cleanup.RevokeCredentials || said.Cleanup.VerifyProcessTree {
		t.Errorf("got %+v and %+v, want all three off", said.Artifacts, said.Cleanup)
	}
	got, err := wire.EnvelopeOf(wire.Envelope(envelope.Envelope{}))
	if err != nil {
		t.Fatal(err)
	}
	if !got.Artifacts.Hash || !got.Cleanup.RevokeCredentials || !got.Cleanup.VerifyProcessTree {
		t.Errorf("got %+v and %+v, want all three on", got.Artifacts, got.Cleanup)
	}
	absent, err := wire.EnvelopeOf(&cordonv1.Envelope{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(got, absent); diff != "" {
		t.Errorf("an empty envelope and an empty message differ:\n%s", diff)
	}
}

func TestNames(t *testing.T) {
	for n := range cordonv1.EndCause_name {
		c := cordonv1.EndCause(n)
		if got := wire.Cause(wire.CauseName(c)); got != c {
			t.Errorf("cause %v is %q and back is %v", c, wire.CauseName(c), got)
		}
	}
	for n := range cordonv1.LeaseState_name {
		s := cordonv1.LeaseState(n)
		if got := wire.State(wire.StateName(s)); got != s {
			t.Errorf("state %v is %q and back is %v", s, wire.StateName(s), got)
		}
	}
	if got := wire.CauseName(cordonv1.EndCause_END_CAUSE_OOM_KILLED); got != "oom_killed" {
		t.Errorf("got %q, want oom_killed", got)
	}
	if got := wire.CauseName(99); got != "" {
		t.Errorf("unknown cause: got %q, want none", got)
	}
	if got := wire.Cause("no_such_cause"); got != 0 {
		t.Errorf("unknown name: got %v, want unspecified", got)
	}
}

func TestTimes(t *testing.T) {
	now := time.Now().UTC().Round(0)
	if got := wire.TimeOf(wire.Time(now)); !got.Equal(now) {
		t.Errorf("got %v, want %v", got, now)
	}
	if wire.Time(time.Time{}) != nil || !wire.TimeOf(nil).IsZero() {
		t.Error("the zero time must be absent, and absent the zero time")
	}
	for _, d := range []time.Duration{0, 1, -1, time.Hour, math.MaxInt64, math.MinInt64} {
		got, err := wire.DurationOf(wire.Duration(d), "d")
		if err != nil || got != d {
			t.Errorf("duration %v: got %v, %v", d, got, err)
		}
	}
	if !proto.Equal(wire.Duration(1500*time.Millisecond), &durationpb.Duration{Seconds: 1, Nanos: 5e8}) {
		t.Error("1.5s is not one second and half a billion nanos")
	}
}
