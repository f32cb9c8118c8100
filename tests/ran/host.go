package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// mark is in the name of every object of ours on a host: cgroups, mounts,
// image files of loop devices, pins, run and state directories.
const mark = "cordon"

// settleTime bounds the wait for what the kernel frees late: network
// namespaces go about 0.1 s after their last process.
const settleTime = 10 * time.Second

// host is what of ours a machine holds, each thing in one line. Unpinned BPF
// links and anonymous namespaces have no listing of their own: they live as
// long as a process, a pin or a mount that is listed here.
type host map[string]bool

// look lists the host. Other work goes on on the machine: only what bears our
// mark, or lies in tmp, counts.
func look(tmp string) (host, error) {
	h := host{}
	return h, errors.Join(
		h.mounts(tmp), h.cgroups(), h.loops(tmp), h.processes(tmp),
		h.named("network namespace", "/run/netns", "/var/run/netns"),
		h.named("directory", "/run", "/var/lib", "/dev/shm"),
		h.files(tmp))
}

// settle waits until the host is as it was and returns what is left if that
// does not happen.
func settle(ctx context.Context, before host, tmp string) ([]string, error) {
	deadline := time.NewTimer(settleTime)
	defer deadline.Stop()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		after, err := look(tmp)
		if err != nil {
			return nil, err
		}
		maps.DeleteFunc(after, func(k string, _ bool) bool { return before[k] })
		if len(after) == 0 {
			return nil, nil
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			return slices.Sorted(maps.Keys(after)), nil
		case <-ctx.Done():
			return slices.Sorted(maps.Keys(after)), nil
		}
	}
}

func (h host) add(kind, what string) { h[kind+" "+what] = true }

func ours(s, tmp string) bool {
	return strings.Contains(s, mark) || strings.HasPrefix(s, tmp+"/")
}

// mounts lists our mounts, and our pins on every bpffs that is mounted.
func (h host) mounts(tmp string) error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		pre, post, ok := strings.Cut(line, " - ")
		left, right := strings.Fields(pre), strings.Fields(post)
		if !ok || len(left) < 5 || len(right) < 2 {
			return fmt.Errorf("list mounts: odd line %q", line)
		}
		point, source := left[4], right[1]
		// A checkout in a directory that bears our mark, mounted before we
		// came, is in the first listing too and so does not count.
		if ours(point, tmp) || ours(source, tmp) || ours(left[3], tmp) {
			h.add("mount", point+" of "+source)
		}
		if right[0] == "bpf" {
			if err := h.walk("pin", point); err != nil {
				return err
			}
		}
	}
	return nil
}

func (h host) cgroups() error { return h.walk("cgroup", "/sys/fs/cgroup") }

// walk lists everything below root whose own name bears the mark. Trees of the
// kernel change while they are read: what is gone by now is not left.
func (h host) walk(kind, root string) error {
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			return nil
		}
		if err != nil {
			return err
		}
		if path != root && strings.Contains(d.Name(), mark) {
			h.add(kind, path)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", root, err)
	}
	return nil
}

func (h host) loops(tmp string) error {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return fmt.Errorf("list loop devices: %w", err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // detached since
		}
		if back := strings.TrimSpace(string(text)); ours(back, tmp) {
			h.add("loop device", filepath.Base(filepath.Dir(filepath.Dir(f)))+" of "+back)
		}
	}
	return nil
}

// processes lists those that run a program from tmp (a test binary, or what a
// test built) and those in a cgroup of ours.
func (h host) processes(tmp string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		dir := filepath.Join("/proc", e.Name())
		// Errors are those of processes that have ended, or are not ours.
		exe, _ := os.Readlink(filepath.Join(dir, "exe"))
		group, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		name, _ := os.ReadFile(filepath.Join(dir, "comm"))
		if strings.HasPrefix(exe, tmp+"/") || strings.Contains(string(group), mark) {
			h.add("process", e.Name()+" "+strings.TrimSpace(string(name)))
		}
	}
	return nil
}

func (h host) named(kind string, dirs ...string) error {
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("list %s: %w", dir, err)
		}
		for _, e := range entries {
			if strings.Contains(e.Name(), mark) {
				h.add(kind, filepath.Join(dir, e.Name()))
			}
		}
	}
	return nil
}

// files lists the top of tmp, which go and the tests empty again.
func (h host) files(tmp string) error {
	entries, err := os.ReadDir(tmp)
	if err != nil {
		return fmt.Errorf("list %s: %w", tmp, err)
	}
	for _, e := range entries {
		h.add("file", filepath.Join(tmp, e.Name()))
	}
	return nil
}
