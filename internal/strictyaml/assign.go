package strictyaml

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// top reads the document's top node into dst.
func (r *reader) top(n *yaml.Node, root string, dst reflect.Value) {
	if root == "" {
		r.value(n, "", dst)
		return
	}
	if !r.wants(n, yaml.MappingNode, "") {
		return
	}
	found := false
	for _, f := range fieldsOf(n) {
		if f.key.Value == root {
			found = true
			r.value(f.value, root, dst)
			continue
		}
		r.unknown(f.key, "", []string{root})
	}
	if !found {
		r.report(n, root, "missing", "put the fields under the one top key "+root)
	}
}

// value reads n into dst, which has the type of the field at path.
func (r *reader) value(n *yaml.Node, path string, dst reflect.Value) {
	if n.Kind == yaml.AliasNode || n.Style&yaml.TaggedStyle != 0 {
		return // reported by shape; what it would mean does not matter
	}
	if path != "" {
		r.seen[path] = Position{Line: n.Line, Column: n.Column}
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		r.report(n, path, "has no value", "write one, or leave the field out")
		return
	}
	switch {
	case dst.Kind() == reflect.Pointer:
		fresh := reflect.New(dst.Type().Elem())
		r.value(n, path, fresh.Elem())
		dst.Set(fresh)
	case dst.Kind() == reflect.Struct:
		r.mapping(n, path, dst)
	case dst.Kind() == reflect.Slice:
		r.list(n, path, dst)
	default:
		r.scalar(n, path, dst)
	}
}

func (r *reader) mapping(n *yaml.Node, path string, dst reflect.Value) {
	if !r.wants(n, yaml.MappingNode, path) {
		return
	}
	names, index := fieldNames(dst.Type())
	for _, f := range fieldsOf(n) {
		i, ok := index[f.key.Value]
		if !ok {
			r.unknown(f.key, path, names)
			continue
		}
		r.value(f.value, join(path, f.key), dst.Field(i))
	}
}

func (r *reader) list(n *yaml.Node, path string, dst reflect.Value) {
	if !r.wants(n, yaml.SequenceNode, path) {
		return
	}
	if len(n.Content) == 0 {
		dst.SetZero() // one form of "none": nil
		return
	}
	items := reflect.MakeSlice(dst.Type(), len(n.Content), len(n.Content))
	for i, item := range n.Content {
		r.value(item, fmt.Sprintf("%s[%d]", path, i), items.Index(i))
	}
	dst.Set(items)
}

func (r *reader) scalar(n *yaml.Node, path string, dst reflect.Value) {
	if !r.wants(n, yaml.ScalarNode, path) {
		return
	}
	var p *Problem
	switch form := r.form(path); {
	case form != nil && dst.CanInt():
		var v int64
		if v, p = readForm(form, n.Value); p == nil {
			dst.SetInt(v)
		}
	case dst.Type() == reflect.TypeFor[time.Duration]():
		p = setDuration(n, dst)
	case dst.Kind() == reflect.String:
		p = setText(n, dst)
	case dst.Kind() == reflect.Bool:
		p = setBool(n, dst)
	case dst.CanInt():
		p = setInt(n, dst)
	default:
		p = setUint(n, dst)
	}
	if p != nil {
		r.report(n, path, p.Cause, p.Remedy)
	}
}

var itemPattern = regexp.MustCompile(`\[\d+\]`)

// form returns the form of the field at path, whatever the list items' numbers.
func (r *reader) form(path string) Form {
	if len(r.forms) == 0 {
		return nil
	}
	return r.forms[itemPattern.ReplaceAllString(path, "[]")]
}

// wants reports a node of another kind.
func (r *reader) wants(n *yaml.Node, kind yaml.Kind, path string) bool {
	if n.Kind == kind {
		return true
	}
	remedies := map[yaml.Kind]string{
		yaml.MappingNode:  "write its fields as name: value",
		yaml.SequenceNode: "write [item, item], or one \"- item\" a line",
		yaml.ScalarNode:   "write a single value",
	}
	r.report(n, path, kindName(n.Kind)+" where "+kindName(kind)+" belongs", remedies[kind])
	return false
}

func kindName(k yaml.Kind) string {
	switch k {
	case yaml.MappingNode:
		return "a group of fields"
	case yaml.SequenceNode:
		return "a list"
	}
	return "a single value"
}

func (r *reader) unknown(key *yaml.Node, path string, names []string) {
	remedy := "known here: " + strings.Join(names, ", ")
	if near := nearest(key.Value, names); near != "" {
		remedy = "did you mean " + near + "?"
	}
	name := key.Value
	if !isName(name) {
		name = quote(name)
	}
	r.report(key, join(path, key), "unknown field "+name, remedy)
}

// field is one entry of a mapping.
type field struct{ key, value *yaml.Node }

// fieldsOf lists the entries that shape has not refused already: text keys,
// the first of each name.
func fieldsOf(n *yaml.Node) []field {
	var out []field
	known := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if !isTextKey(key) || known[key.Value] {
			continue
		}
		known[key.Value] = true
		out = append(out, field{key, n.Content[i+1]})
	}
	return out
}

// fieldNames returns the yaml names of t's fields, in order and by index.
func fieldNames(t reflect.Type) ([]string, map[string]int) {
	names := make([]string, 0, t.NumField())
	index := make(map[string]int, t.NumField())
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("yaml"); name != "" {
			names = append(names, name)
			index[name] = i
		}
	}
	return names, index
}

// checkTarget refuses a destination that Decode cannot fill. It is a mistake
// in the program, not in a document.
func checkTarget(v reflect.Value) error {
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		return fmt.Errorf("decode yaml: out must be a pointer to a struct")
	}
	return checkType(v.Type().Elem())
}

func checkType(t reflect.Type) error {
	scalars := []reflect.Kind{
		reflect.String, reflect.Bool,
		reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64,
	}
	switch {
	case slices.Contains(scalars, t.Kind()):
		return nil
	case t.Kind() == reflect.Slice:
		return checkType(t.Elem())
	case t.Kind() == reflect.Pointer && slices.Contains(scalars, t.Elem().Kind()):
		return nil
	case t.Kind() != reflect.Struct:
		return fmt.Errorf("decode yaml: type %s cannot be read", t)
	}
	for f := range t.Fields() {
		if !f.IsExported() || f.Tag.Get("yaml") == "" {
			return fmt.Errorf("decode yaml: field %s.%s has no yaml name", t, f.Name)
		}
		if err := checkType(f.Type); err != nil {
			return err
		}
	}
	return nil
}
