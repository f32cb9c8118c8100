package api

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"cordon/internal/fault"
)

// maxListLen bounds repeated fields that listLens does not name.
const maxListLen = 1024

// listLens bounds the lists that are long for a reason. Their bytes are
// bounded by the message.
var listLens = map[protoreflect.FullName]int{
	"cordon.v1.ExecStart.argv": 32768, // cc and tar are called with whole trees
	"cordon.v1.ExecStart.env":  4096,
}

// strict refuses a request that says something this daemon does not
// understand, at any depth: a field or an enum value from a newer API might
// have been a restriction. Invalid UTF-8 is refused by proto itself.
func strict(m proto.Message) error {
	return strictMessage(m.ProtoReflect(), "")
}

func strictMessage(m protoreflect.Message, path string) error {
	if unknown := m.GetUnknown(); len(unknown) > 0 {
		num, _, _ := protowire.ConsumeTag(unknown)
		return fault.New(fault.InvalidArgument, join(path, fmt.Sprintf("#%d", num)),
			fmt.Sprintf("%s has no field number %d here", m.Descriptor().FullName(), num),
			"use the API version of this daemon (cordon version), or leave the field out")
	}
	// In the order of declaration, so that the first error is always the same.
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !m.Has(fd) {
			continue
		}
		if err := strictField(fd, m.Get(fd), join(path, string(fd.Name()))); err != nil {
			return err
		}
	}
	return nil
}

func strictField(fd protoreflect.FieldDescriptor, v protoreflect.Value, path string) error {
	switch {
	case fd.IsMap():
		return strictMap(fd, v.Map(), path)
	case fd.IsList():
		return strictList(fd, v.List(), path)
	default:
		return strictValue(fd, v, path)
	}
}

func strictList(fd protoreflect.FieldDescriptor, list protoreflect.List, path string) error {
	if err := checkLen(fd, list.Len(), path); err != nil {
		return err
	}
	for i := range list.Len() {
		if err := strictValue(fd, list.Get(i), fmt.Sprintf("%s[%d]", path, i)); err != nil {
			return err
		}
	}
	return nil
}

func strictMap(fd protoreflect.FieldDescriptor, m protoreflect.Map, path string) error {
	if err := checkLen(fd, m.Len(), path); err != nil {
		return err
	}
	var err error
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		err = strictValue(fd.MapValue(), v, fmt.Sprintf("%s[%q]", path, k.String()))
		return err == nil
	})
	return err
}

func strictValue(fd protoreflect.FieldDescriptor, v protoreflect.Value, path string) error {
	if fd.Message() != nil {
		return strictMessage(v.Message(), path)
	}
	if fd.Enum() != nil && fd.Enum().Values().ByNumber(v.Enum()) == nil {
		return fault.New(fault.InvalidArgument, path, fmt.Sprintf("%s has no value %d", fd.Enum().FullName(), v.Enum()),
			"use the API version of this daemon (cordon version)")
	}
	return nil
}

func checkLen(fd protoreflect.FieldDescriptor, n int, path string) error {
	limit, ok := listLens[fd.FullName()]
	if !ok {
		limit = maxListLen
	}
	if n > limit {
		return fault.New(fault.InvalidArgument, path, fmt.Sprintf("has %d items, and %d is the most", n, limit), "send fewer")
	}
	return nil
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
