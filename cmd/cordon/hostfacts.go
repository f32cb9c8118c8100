package main

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// fact is one thing about this machine that leases need.
type fact struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"` // when not OK
}

// hostFacts looks at a machine's root file system. It needs no privilege, so
// that it can say only what anybody may see; the daemon looks closer.
func hostFacts(host fs.FS) []fact {
	var out []fact
	for _, look := range []func(fs.FS) fact{
		kernelFact, cgroupFact, controllersFact, userNamespacesFact, seccompFact, bpfFact, loopFact, mke2fsFact,
	} {
		f := look(host)
		if f.OK {
			f.Remedy = ""
		}
		out = append(out, f)
	}
	return out
}

// readText is a file's text without space around it, or "".
func readText(host fs.FS, name string) string {
	data, err := fs.ReadFile(host, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

func exists(host fs.FS, name string) bool {
	_, err := fs.Stat(host, name)
	return err == nil
}

func kernelFact(host fs.FS) fact {
	release := readText(host, "proc/sys/kernel/osrelease")
	var major, minor int
	n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor) // n says it all
	return fact{
		Name: "kernel", OK: n == 2 && (major > 6 || major == 6 && minor >= 1),
		Found: "Linux " + orNone(release), Remedy: "use Linux 6.1 or newer",
	}
}

// cgroupHome finds the v2 tree: alone, or beside v1 hierarchies.
func cgroupHome(host fs.FS) (dir string, hybrid bool) {
	for _, d := range []string{"sys/fs/cgroup", "sys/fs/cgroup/unified"} {
		if exists(host, d+"/cgroup.controllers") {
			return d, d != "sys/fs/cgroup"
		}
	}
	return "", false
}

func cgroupFact(host fs.FS) fact {
	dir, hybrid := cgroupHome(host)
	f := fact{Name: "cgroups", OK: dir != "", Remedy: "mount a cgroup v2 tree at /sys/fs/cgroup or /sys/fs/cgroup/unified"}
	switch {
	case dir == "":
		f.Found = "no v2 tree"
	case hybrid:
		f.Found = "hybrid: v2 at /" + dir + ", limits by v1"
	default:
		f.Found = "v2"
	}
	return f
}

func controllersFact(host fs.FS) fact {
	dir, hybrid := cgroupHome(host)
	need := []string{"cpu", "memory", "pids"}
	have := strings.Fields(readText(host, dir+"/cgroup.controllers"))
	if hybrid {
		need = append(need, "cpuacct")
		have = nil
		for _, c := range need {
			if exists(host, "sys/fs/cgroup/"+c+"/cgroup.procs") {
				have = append(have, c)
			}
		}
	}
	var missing []string
	for _, c := range need {
		if !slices.Contains(have, c) {
			missing = append(missing, c)
		}
	}
	f := fact{
		Name: "controllers", OK: len(missing) == 0, Found: strings.Join(need, ", "),
		Remedy: "enable them on the kernel command line, or in systemd",
	}
	if !f.OK {
		f.Found = "without " + strings.Join(missing, ", ")
	}
	return f
}

func userNamespacesFact(host fs.FS) fact {
	most := readText(host, "proc/sys/user/max_user_namespaces")
	return fact{
		Name: "user namespaces", OK: most != "" && most != "0",
		Found: "at most " + orNone(most), Remedy: "sysctl user.max_user_namespaces=10000",
	}
}

func seccompFact(host fs.FS) fact {
	actions := strings.Fields(readText(host, "proc/sys/kernel/seccomp/actions_avail"))
	f := fact{
		Name: "seccomp", OK: slices.Contains(actions, "kill_process"), Found: "filters",
		Remedy: "use a kernel with CONFIG_SECCOMP_FILTER",
	}
	if !f.OK {
		f.Found = "no filters"
	}
	return f
}

func bpfFact(host fs.FS) fact {
	f := fact{Name: "bpf", Found: "no bpf file system", Remedy: "use a kernel with CONFIG_BPF_SYSCALL and CONFIG_CGROUP_BPF"}
	for line := range strings.Lines(readText(host, "proc/filesystems")) {
		if fields := strings.Fields(line); len(fields) != 0 && fields[len(fields)-1] == "bpf" {
			f.OK, f.Found = true, "there"
		}
	}
	return f
}

func loopFact(host fs.FS) fact {
	f := fact{Name: "loop devices", OK: exists(host, "dev/loop-control"), Found: "there", Remedy: "modprobe loop"}
	if !f.OK {
		f.Found = "no /dev/loop-control; workspaces can only be in memory"
	}
	return f
}

func mke2fsFact(host fs.FS) fact {
	f := fact{Name: "mke2fs", Found: "not found", Remedy: "apt-get install e2fsprogs"}
	for _, dir := range []string{"usr/sbin", "sbin", "usr/bin", "bin"} {
		if exists(host, dir+"/mke2fs") {
			f.OK, f.Found = true, "/"+dir+"/mke2fs"
			break
		}
	}
	return f
}
