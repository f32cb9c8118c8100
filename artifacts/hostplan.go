package artifacts

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Paths of a plan are canonical: relative to the root, and through no link
// of a merged /usr.

// hostItem is one thing to copy.
type hostItem struct{ src, dst string }

// hostLink is one link to make.
type hostLink struct{ path, target string }

// hostFacts is what was read of the host, all that a plan depends on.
type hostFacts struct {
	db           *dpkgDB
	lists        map[string][]string // file list by package id
	diversions   map[string]diversion
	alternatives []alternative
	current      map[string]string // target by name, of /etc/alternatives
	merged       map[string]string // top-level link to its target, as bin to usr/bin
	certs        []hostLink        // the links in /etc/ssl/certs
}

// planHost lists what to copy, in order of destinations, and is pure.
func planHost(f hostFacts, packages []*dpkgPackage) []hostItem {
	in := map[string]bool{}
	for _, p := range packages {
		in[p.name] = true
	}
	items := map[string]string{}
	for _, p := range packages {
		for _, file := range f.lists[p.id()] {
			src, dst := file, file
			if d, ok := f.diversions[file]; ok && d.by != p.name {
				src, dst = d.to, d.to
				if !in[d.by] {
					dst = file // whoever diverts it is not in the image
				}
			}
			if c := f.canonical(dst); wanted(c) {
				items[c] = f.canonical(src)
			}
		}
	}
	for _, file := range hostEtcUnowned {
		items[file] = file
	}
	plan := make([]hostItem, 0, len(items))
	for dst, src := range items {
		plan = append(plan, hostItem{src: src, dst: dst})
	}
	slices.SortFunc(plan, func(a, b hostItem) int { return strings.Compare(a.dst, b.dst) })
	return plan
}

// canonical turns an absolute path of a file list into a plan's.
func (f hostFacts) canonical(p string) string {
	p = strings.TrimPrefix(path.Clean(p), "/")
	top, rest, below := strings.Cut(p, "/")
	target, ok := f.merged[top]
	switch {
	case !ok:
		return p
	case !below:
		return target
	}
	return target + "/" + rest
}

// planLinks lists the links to make once the files are there; has tells
// whether a canonical path is. Links that would lead nowhere are left out.
func planLinks(f hostFacts, has func(string) bool) []hostLink {
	var links []hostLink
	for top, target := range f.merged {
		if has(target) {
			links = append(links, hostLink{path: top, target: target})
		}
	}
	for _, alt := range f.alternatives {
		links = append(links, f.alternativeLinks(alt, has)...)
	}
	links = append(links, f.certLinks(has)...)
	slices.SortFunc(links, func(a, b hostLink) int { return strings.Compare(a.path, b.path) })
	return links
}

// alternativeLinks keeps the host's choice where the image has it, and takes
// the one with the highest priority that it has where not.
func (f hostFacts) alternativeLinks(alt alternative, has func(string) bool) []hostLink {
	var best *altChoice
	for i := range alt.choices {
		c := &alt.choices[i]
		if !has(f.canonical(c.targets[0])) {
			continue
		}
		if c.targets[0] == f.current[alt.links[0].name] {
			best = c
			break
		}
		if best == nil || c.priority > best.priority {
			best = c
		}
	}
	if best == nil {
		return nil
	}
	var links []hostLink
	for i, l := range alt.links {
		at, target := f.canonical(l.path), best.targets[i]
		if target == "" || !has(f.canonical(target)) || !wanted(at) || has(at) {
			continue
		}
		via := "etc/alternatives/" + l.name
		links = append(links, hostLink{path: at, target: "/" + via}, hostLink{path: via, target: target})
	}
	return links
}

// certLinks keeps links to certificates that the image has, and the hash
// links to those.
func (f hostFacts) certLinks(has func(string) bool) []hostLink {
	kept := map[string]bool{}
	var links []hostLink
	for _, l := range f.certs {
		if path.IsAbs(l.target) && has(f.canonical(l.target)) {
			kept[path.Base(l.path)] = true
			links = append(links, l)
		}
	}
	for _, l := range f.certs {
		if kept[l.target] {
			links = append(links, l)
		}
	}
	return links
}

// mergedTarget checks one link of a merged /usr.
func mergedTarget(top, target string) (string, error) {
	target = strings.TrimPrefix(target, "/")
	if !regexp.MustCompile(`^usr/[a-z0-9]+$`).MatchString(target) {
		return "", fmt.Errorf("look at host: /%s is a link to %q, not into /usr", top, target)
	}
	return target, nil
}

// syntheticFiles are the host image's own /etc: nothing of the host's
// accounts, names or network.
func syntheticFiles() map[string]string {
	return map[string]string{
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\n" +
			"daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n" +
			"bin:x:2:2:bin:/bin:/usr/sbin/nologin\n" +
			"sandbox:x:1000:1000:sandbox:/workspace:/bin/sh\n" +
			"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"etc/group": "root:x:0:\ndaemon:x:1:\nbin:x:2:\ntty:x:5:\n" +
			"sandbox:x:1000:\nnogroup:x:65534:\n",
		"etc/hosts":    "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n",
		"etc/hostname": "sandbox\n",
		"etc/nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\n" +
			"networks: files\nprotocols: files\nservices: files\nethers: files\nrpc: files\n",
		// The one name server a sandbox may come to have is on its loopback.
		"etc/resolv.conf": "nameserver 127.0.0.1\n",
		"etc/profile": "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n" +
			"export PATH\n",
		"etc/shells":         "/bin/sh\n/bin/bash\n",
		"etc/default/locale": "LANG=C.UTF-8\n",
		"etc/timezone":       "Etc/UTC\n",
	}
}

// syntheticLinks are made where their targets exist or a sandbox mounts them.
func syntheticLinks(has func(string) bool) []hostLink {
	links := []hostLink{{path: "etc/mtab", target: "../proc/self/mounts"}}
	if utc := "usr/share/zoneinfo/Etc/UTC"; has(utc) {
		links = append(links, hostLink{path: "etc/localtime", target: "../" + utc})
	}
	return links
}
