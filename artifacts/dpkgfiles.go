package artifacts

import (
	"bufio"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"
)

// diversion says that other packages' file at a path lives elsewhere.
type diversion struct {
	to string
	by string // the package that diverts, or ":" for the administrator
}

// parseDiversions reads /var/lib/dpkg/diversions: three lines each.
func parseDiversions(r io.Reader) (map[string]diversion, error) {
	out := map[string]diversion{}
	var group []string
	err := eachLine(r, func(line string) error {
		group = append(group, line)
		if len(group) < 3 {
			return nil
		}
		if !path.IsAbs(group[0]) || !path.IsAbs(group[1]) {
			return fmt.Errorf("diversion of %q to %q: not absolute", group[0], group[1])
		}
		out[group[0]] = diversion{to: group[1], by: group[2]}
		group = nil
		return nil
	})
	if err == nil && len(group) != 0 {
		err = fmt.Errorf("diversion of %q: cut short", group[0])
	}
	if err != nil {
		return nil, fmt.Errorf("parse diversions: %w", err)
	}
	return out, nil
}

// alternative is one group of update-alternatives: links by name, and what
// each choice puts behind them.
type alternative struct {
	links   []altLink // the master first
	choices []altChoice
}

type altLink struct{ name, path string }

type altChoice struct {
	priority int
	targets  []string // by link; "" where the choice has none
}

// parseAlternative reads one file of /var/lib/dpkg/alternatives: the mode,
// the master's path, pairs of slave name and path up to an empty line, then
// for each choice its path, priority and slave paths.
func parseAlternative(name string, r io.Reader) (alternative, error) {
	var lines []string
	err := eachLine(r, func(line string) error {
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		return alternative{}, fmt.Errorf("parse alternative %s: %w", name, err)
	}
	bad := func(what string) (alternative, error) {
		return alternative{}, fmt.Errorf("parse alternative %s: %s", name, what)
	}
	if len(lines) < 3 || !path.IsAbs(lines[1]) {
		return bad("no master link")
	}
	alt := alternative{links: []altLink{{name: name, path: lines[1]}}}
	rest := lines[2:]
	for len(rest) > 1 && rest[0] != "" {
		if !path.IsAbs(rest[1]) || strings.ContainsRune(rest[0], '/') {
			return bad("slave link " + strconv.Quote(rest[0]))
		}
		alt.links = append(alt.links, altLink{name: rest[0], path: rest[1]})
		rest = rest[2:]
	}
	if len(rest) == 0 || rest[0] != "" {
		return bad("no end of the slave links")
	}
	rest = rest[1:]
	for len(rest) > 0 && rest[0] != "" {
		if len(rest) < 1+len(alt.links) {
			return bad("choice cut short")
		}
		prio, err := strconv.Atoi(rest[1])
		if err != nil {
			return bad("priority " + strconv.Quote(rest[1]))
		}
		targets := append([]string{rest[0]}, rest[2:1+len(alt.links)]...)
		alt.choices = append(alt.choices, altChoice{priority: prio, targets: targets})
		rest = rest[1+len(alt.links):]
	}
	return alt, nil
}

// parseFileList reads a package's .list file: absolute paths, one a line.
func parseFileList(r io.Reader, add func(p string)) error {
	return eachLine(r, func(line string) error {
		if line == "/." || line == "" {
			return nil
		}
		if !path.IsAbs(line) || path.Clean(line) != line {
			return fmt.Errorf("parse file list: path %q", line)
		}
		add(line)
		return nil
	})
}

func eachLine(r io.Reader, fn func(line string) error) error {
	in := bufio.NewScanner(r)
	for in.Scan() {
		if err := fn(in.Text()); err != nil {
			return err
		}
	}
	return in.Err()
}
