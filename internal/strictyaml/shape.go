package strictyaml

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

// shape reports what no part of a document may hold, whether or not the part
// belongs to a known field. depth is that of n, if n is a mapping or list.
func (r *reader) shape(n *yaml.Node, path string, depth int) {
	r.indirection(n, path)
	switch n.Kind {
	case yaml.MappingNode:
		if r.tooDeep(n, path, depth) {
			return
		}
		r.keys(n, path)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], n.Content[i+1]
			r.shape(value, join(path, key), depth+1)
		}
	case yaml.SequenceNode:
		if r.tooDeep(n, path, depth) {
			return
		}
		for i, item := range n.Content {
			r.shape(item, fmt.Sprintf("%s[%d]", path, i), depth+1)
		}
	}
}

// indirection reports anchors, aliases and tags on n itself.
func (r *reader) indirection(n *yaml.Node, path string) {
	if n.Kind == yaml.AliasNode {
		r.report(n, path, "the alias "+quote(n.Value)+"; aliases are not allowed", "write the value out")
		return
	}
	if n.Anchor != "" {
		r.report(n, path, "the anchor "+quote(n.Anchor)+"; anchors are not allowed", "remove it and write values out")
	}
	if n.Style&yaml.TaggedStyle != 0 || r.startsWith(n, '!') {
		r.report(n, path, "an explicit tag; tags are not allowed", "remove it")
	}
}

// startsWith looks at the source: the parser does not tell of the tag "!".
func (r *reader) startsWith(n *yaml.Node, c rune) bool {
	line, column := n.Line-1, n.Column-1
	if line < 0 || line >= len(r.lines) || column < 0 || column >= len(r.lines[line]) {
		return false
	}
	return r.lines[line][column] == c
}

func (r *reader) tooDeep(n *yaml.Node, path string, depth int) bool {
	if depth <= MaxDepth {
		return false
	}
	r.report(n, path, fmt.Sprintf("nested more than %d deep", MaxDepth), "remove levels")
	return true
}

// keys reports keys that are not text, merge keys, and duplicates.
func (r *reader) keys(n *yaml.Node, path string) {
	first := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		r.indirection(key, join(path, key))
		switch {
		case isMerge(key):
			r.report(key, path, "a merge key (<<); merge keys are not allowed", "write the fields out")
			continue
		case !isTextKey(key):
			if key.Kind != yaml.AliasNode { // reported already
				r.report(key, path, "a key that is not text", "use a field name")
			}
			continue
		}
		if f, ok := first[key.Value]; ok {
			r.report(key, join(path, key), fmt.Sprintf("duplicate key; it is first on line %d", f.Line),
				"keep one of them")
			continue
		}
		first[key.Value] = key
	}
}

func isMerge(key *yaml.Node) bool {
	return key.Kind == yaml.ScalarNode && key.Tag == "!!merge"
}

func isTextKey(key *yaml.Node) bool {
	return key.Kind == yaml.ScalarNode && key.Tag == "!!str"
}

// join appends a key to a path. A key that is no field name is shown quoted.
func join(path string, key *yaml.Node) string {
	name := key.Value
	if key.Kind != yaml.ScalarNode {
		name = "(not text)"
	} else if !isName(name) {
		name = quote(name)
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

func isName(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for _, c := range s {
		if c != '_' && c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') {
			return false
		}
	}
	return true
}
