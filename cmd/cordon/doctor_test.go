package main

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/fstest"
)

// goodHost is a root file system on which nothing is missing.
func goodHost() fstest.MapFS {
	host := fstest.MapFS{}
	for name, text := range map[string]string{
		"proc/sys/kernel/osrelease":             "6.18.5-cloud\n",
		"sys/fs/cgroup/cgroup.controllers":      "cpuset cpu io memory pids\n",
		"proc/sys/user/max_user_namespaces":     "15000\n",
		"proc/sys/kernel/seccomp/actions_avail": "kill_process kill_thread trap errno\n",
		"proc/filesystems":                      "nodev\tsysfs\nnodev\tbpf\n\text4\n",
		"dev/loop-control":                      "",
		"usr/sbin/mke2fs":                       "",
	} {
		host[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return host
}

func TestHostFacts(t *testing.T) {
	hybrid := goodHost()
	delete(hybrid, "sys/fs/cgroup/cgroup.controllers")
	hybrid["sys/fs/cgroup/unified/cgroup.controllers"] = &fstest.MapFile{Data: []byte("hugetlb\n")}
	for _, c := range []string{"cpu", "cpuacct", "memory", "pids"} {
		hybrid["sys/fs/cgroup/"+c+"/cgroup.procs"] = &fstest.MapFile{}
	}
	for name, host := range map[string]fstest.MapFS{"v2": goodHost(), "hybrid": hybrid} {
		for _, f := range hostFacts(host) {
			if !f.OK || f.Remedy != "" {
				t.Errorf("%s: %+v", name, f)
			}
		}
	}
	// Each fact fails alone when its file is gone, and with none all do.
	for file, fact := range map[string]string{
		"proc/sys/kernel/osrelease":             "kernel",
		"proc/sys/user/max_user_namespaces":     "user namespaces",
		"proc/sys/kernel/seccomp/actions_avail": "seccomp",
		"proc/filesystems":                      "bpf",
		"dev/loop-control":                      "loop devices",
		"usr/sbin/mke2fs":                       "mke2fs",
	} {
		host := goodHost()
		delete(host, file)
		for _, f := range hostFacts(host) {
			if f.OK != (f.Name != fact) || f.OK != (f.Remedy == "") {
				t.Errorf("without %s: %+v", file, f)
			}
		}
	}
	for _, f := range hostFacts(fstest.MapFS{}) {
		if f.OK || f.Remedy == "" || f.Found == "" {
			t.Errorf("on nothing: %+v", f)
		}
	}
	delete(hybrid, "sys/fs/cgroup/pids/cgroup.procs")
	if f := controllersFact(hybrid); f.OK || f.Found != "without pids" {
		t.Errorf("%+v", f)
	}
}

func TestKernelFact(t *testing.T) {
	for release, want := range map[string]bool{
		"6.1.0-18-amd64": true, "6.18.5": true, "7.0": true, "6.0.19": false, "5.15.0": false, "": false, "x": false,
	} {
		host := fstest.MapFS{"proc/sys/kernel/osrelease": {Data: []byte(release)}}
		if got := kernelFact(host); got.OK != want {
			t.Errorf("%q: %+v", release, got)
		}
	}
}

func TestDoctor(t *testing.T) {
	d := newDaemon(t)
	w := newWorld(t, d)
	w.host = goodHost()
	w.want(0, "*", "", "doctor")
	golden(t, "doctor.txt", strings.ReplaceAll(w.out.String(), d.socket, "SOCKET"))

	d.terms[3].Given = false
	w.want(1, "*", "", "doctor")
	if got := w.out.String(); !strings.Contains(got, "MISSING  N: network policy") || !strings.Contains(got, "something needed is missing") {
		t.Errorf("doctor: %s", got)
	}
	d.terms = d.terms[:7] // one that is not spoken of
	d.terms[3].Given = true
	w.want(1, "*", "", "doctor")
	w.want(1, "*", "", "doctor", "--json")
	var got diagnosis
	if err := json.Unmarshal([]byte(w.out.String()), &got); err != nil || got.OK || got.Daemon == nil || len(got.Terms) != 7 || len(got.Host) != 8 {
		t.Errorf("%v: %s", err, w.out.String())
	}
}

func TestDoctorOfABadHost(t *testing.T) {
	w := newWorld(t, newDaemon(t))
	w.host = goodHost()
	delete(w.host.(fstest.MapFS), "dev/loop-control")
	w.want(1, "*", "", "doctor")
	if got := w.out.String(); !strings.Contains(got, "MISSING  loop devices: no /dev/loop-control; workspaces can only be in memory") {
		t.Errorf("doctor: %s", got)
	}
}

func TestDoctorWithoutADaemon(t *testing.T) {
	w := newWorld(t, nil)
	w.host, w.env["CORDON_SOCKET"] = goodHost(), "/nowhere/cordond.sock"
	w.want(1, "*", "", "doctor")
	golden(t, "no-daemon.txt", w.out.String())
	w.want(1, "*", "", "doctor", "--json")
	var got diagnosis
	if err := json.Unmarshal([]byte(w.out.String()), &got); err != nil || got.Daemon != nil || got.Problem == nil || len(got.Terms) != 8 {
		t.Errorf("%v: %s", err, w.out.String())
	}
}
