package ebpf

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cordon/internal/fault"
)

func TestFailedLoadLeavesNothing(t *testing.T) {
	h := newHost(t)
	// A directory where a pin must go stops the load after other hooks.
	if err := os.MkdirAll(filepath.Join(h.pins, mapPin(programsMapLayout)), 0o700); err != nil {
		t.Fatal(err)
	}
	if f, err := Load(h.config()); err == nil {
		f.Remove()
		t.Fatal("loaded over a directory in place of a pin")
	}
	parent, err := openCgroup(h.parent)
	if err != nil {
		t.Fatal(err)
	}
	if n := attachedTo(t, parent.id); n != 0 {
		t.Errorf("links left: %d", n)
	}
}

func TestDescriptorsGoBack(t *testing.T) {
	h := newHost(t)
	count := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, e := range entries {
			to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
			if err == nil && (strings.Contains(to, "bpf") || strings.Contains(to, "eventpoll")) {
				n++
			}
		}
		return n
	}
	before := 0
	for i := range 3 {
		f, err := Load(h.config())
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			before = count() // the runtime's own poller is there from now on
		}
	}
	if after := count(); after != before {
		t.Errorf("bpf descriptors: %d, then %d", before, after)
	}
	f := h.load(t)
	if err := f.Verify(); err != nil {
		t.Error(err)
	}
}

func TestLoadRefusesWrongPlaces(t *testing.T) {
	h := newHost(t)
	public := filepath.Join(filepath.Dir(h.pins), "public")
	if err := os.Mkdir(public, 0o755); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		change func(*Config)
		is     error
		code   fault.Code
	}{
		{"relative parent", func(c *Config) { c.CgroupParent = "leases" }, errNotAbsolute, ""},
		{"relative pins", func(c *Config) { c.PinDir = "pins" }, errNotAbsolute, ""},
		{"no parent", func(c *Config) { c.CgroupParent += "-none" }, os.ErrNotExist, ""},
		{"parent elsewhere", func(c *Config) { c.CgroupParent = "/proc" }, errNotCgroup2, ""},
		{"pins elsewhere", func(c *Config) { c.PinDir = "/proc" }, errNotBPFFS, ""},
		{"pins for all", func(c *Config) { c.PinDir = public }, nil, fault.PermissionDenied},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := h.config()
			tt.change(&cfg)
			f, err := Load(cfg)
			if err == nil {
				f.Remove()
				t.Fatal("loaded")
			}
			if tt.is != nil && !errors.Is(err, tt.is) || tt.code != fault.CodeOf(err) {
				t.Errorf("got %v", err)
			}
		})
	}
}
