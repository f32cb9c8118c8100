package unpack

import (
	"fmt"
	"path"
	"strings"

	"cordon/internal/fault"
)

const (
	maxName      = 4095 // PATH_MAX without its NUL
	maxComponent = 255  // NAME_MAX
	maxDepth     = 128  // directories below each other
	maxQuoted    = 120  // of a tenant's name in a message
)

// cleanName returns name as a path below the root without "." and empty
// components; the root itself is "". Names that lead anywhere else, or that
// no file system takes, are refused.
func cleanName(name string) (string, error) {
	switch {
	case len(name) > maxName:
		return "", hostile(name, fmt.Sprintf("name is longer than %d bytes", maxName))
	case strings.HasPrefix(name, "/"):
		return "", hostile(name, "name is absolute")
	case strings.IndexByte(name, 0) >= 0:
		return "", hostile(name, "name holds a NUL byte")
	}
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch {
		case part == "" || part == ".":
			continue
		case part == "..":
			return "", hostile(name, "name has a .. component")
		case len(part) > maxComponent:
			return "", hostile(name, fmt.Sprintf("a component is longer than %d bytes", maxComponent))
		}
		parts = append(parts, part)
	}
	if len(parts) > maxDepth {
		return "", hostile(name, fmt.Sprintf("more than %d directories deep", maxDepth))
	}
	if n := len(parts); n > 0 && strings.HasPrefix(parts[n-1], ".wh.") {
		return "", fault.New(fault.InvalidArgument, "tar", quote(name)+" is a layer's whiteout",
			"flatten the image first: export a container's file system, not its layers")
	}
	return strings.Join(parts, "/"), nil
}

// parentOf is the directory of a clean name; "" for the top level.
func parentOf(name string) string {
	dir := path.Dir(name)
	if dir == "." {
		return ""
	}
	return dir
}

// hostile is the refusal of one entry.
func hostile(name, cause string) error {
	return fault.New(fault.HostileImage, "tar", "entry "+quote(name)+": "+cause,
		"build the archive again without this entry")
}

func quote(name string) string {
	if len(name) > maxQuoted {
		name = name[:maxQuoted] + "..."
	}
	return fmt.Sprintf("%+q", name)
}
