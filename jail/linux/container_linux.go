package linux

import (
	"fmt"
	"os"

	"github.com/opencontainers/cgroups"
	devices "github.com/opencontainers/cgroups/devices/config"
	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/sys/unix"

	"cordon/jail"
	"cordon/jail/seccomp"
)

// containerConfig says a plan in libcontainer's words.
func containerConfig(p *jail.Plan) (*configs.Config, error) {
	mounts, err := containerMounts(p.Mounts)
	if err != nil {
		return nil, err
	}
	namespaces, err := containerNamespaces(p.Namespaces)
	if err != nil {
		return nil, err
	}
	devs, err := containerDevices(p.Devices)
	if err != nil {
		return nil, err
	}
	ids := []configs.IDMap{{ContainerID: 0, HostID: int64(p.IDs.Base), Size: int64(p.IDs.Size)}}
	return &configs.Config{
		Rootfs:          makerImage,
		Readonlyfs:      true,
		RootPropagation: unix.MS_PRIVATE | unix.MS_REC,
		Hostname:        p.Hostname,
		Namespaces:      namespaces,
		UIDMappings:     ids,
		GIDMappings:     ids,
		Mounts:          mounts,
		Devices:         devs,
		MaskPaths:       p.MaskPaths,
		ReadonlyPaths:   p.ReadonlyPaths,
		// CAP_* of PID 1 alone. No ambient set: what PID 1 starts gets its
		// capabilities as uid 0 of the namespace, and drops them.
		Capabilities: &configs.Capabilities{
			Bounding: p.InitCaps, Effective: p.InitCaps, Permitted: p.InitCaps,
		},
		NoNewPrivileges: true,
		// No limits here: PID 1 has cordond's own, the core limit of one byte
		// among them (limitCores), and commands get theirs.
		Seccomp:  libcontainerSeccomp(seccomp.Init()),
		Networks: []*configs.Network{{Type: "loopback"}},
		// See hideCgroups.
		Cgroups:         &cgroups.Cgroup{Name: "none", Resources: &cgroups.Resources{}, Rootless: true},
		RootlessCgroups: true,
	}, nil
}

func containerNamespaces(names []string) (configs.Namespaces, error) {
	types := map[string]configs.NamespaceType{
		"user": configs.NEWUSER, "pid": configs.NEWPID, "mount": configs.NEWNS, "network": configs.NEWNET,
		"ipc": configs.NEWIPC, "uts": configs.NEWUTS, "cgroup": configs.NEWCGROUP,
	}
	var out configs.Namespaces
	for _, n := range names {
		t, ok := types[n]
		if !ok {
			return nil, fmt.Errorf("container config: no namespace %q", n)
		}
		ns := configs.Namespace{Type: t}
		if t == configs.NEWUSER {
			// Joined, not made: see leaseNamespace. libcontainer opens it in a
			// child, which has not got our descriptors.
			ns.Path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), makerUserFD)
		}
		out = append(out, ns)
	}
	return out, nil
}

// mountFlags are the flags a plan may name.
func mountFlag(name string) (int, error) {
	flags := map[string]int{
		"ro": unix.MS_RDONLY, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV,
		"noexec": unix.MS_NOEXEC, "strictatime": unix.MS_STRICTATIME,
	}
	f, ok := flags[name]
	if !ok {
		return 0, fmt.Errorf("container config: no mount flag %q", name)
	}
	return f, nil
}

func containerMounts(plan []jail.Mount) ([]*configs.Mount, error) {
	var out []*configs.Mount
	for _, m := range plan {
		if m.Kind == "image" {
			continue // the root itself
		}
		cm := &configs.Mount{Source: m.Kind, Destination: m.Target, Device: m.Kind, Data: m.Data}
		if src, ok := bindSource(m); ok {
			cm.Source, cm.Device, cm.Flags = src, "bind", unix.MS_BIND
		}
		for _, name := range m.Flags {
			f, err := mountFlag(name)
			if err != nil {
				return nil, err
			}
			cm.Flags |= f
		}
		out = append(out, cm)
	}
	return out, nil
}

// containerDevices are nodes bound from the host's /dev: a user namespace
// cannot make any.
func containerDevices(names []string) ([]*devices.Device, error) {
	numbers := map[string][2]int64{
		"null": {1, 3}, "zero": {1, 5}, "full": {1, 7}, "random": {1, 8}, "urandom": {1, 9}, "tty": {5, 0},
	}
	var out []*devices.Device
	for _, name := range names {
		n, ok := numbers[name]
		if !ok {
			return nil, fmt.Errorf("container config: no device %q", name)
		}
		out = append(out, &devices.Device{
			Path:     "/dev/" + name,
			FileMode: 0o666,
			Rule:     devices.Rule{Type: devices.CharDevice, Major: n[0], Minor: n[1], Permissions: "rwm", Allow: true},
		})
	}
	return out, nil
}
