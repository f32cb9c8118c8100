package linux

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cordon/internal/fault"
	"cordon/jail"
)

// TestMissingController: a host without one that every lease needs is refused
// by its name, on both layouts.
func TestMissingController(t *testing.T) {
	root := t.TempDir()
	for _, c := range []string{"cpu", "cpuacct", "pids"} { // no memory
		if err := os.MkdirAll(filepath.Join(root, c), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, c, "cgroup.procs"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "cgroup.controllers"), []byte("cpu memory\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for want, h := range map[string]*hierarchies{
		"memory": {mode: "hybrid", root1: root, v1: []string{"cpu", "cpuacct", "memory", "pids"}},
		"pids":   {mode: "v2", mount2: root},
	} {
		err := h.checkControllers()
		if fault.CodeOf(err) != fault.MissingFeature || !strings.Contains(err.Error(), "controller "+want) {
			t.Errorf("%s host: %v, want missing_feature for %s", h.mode, err, want)
		}
	}
}

func TestInitProgramMustBeRootsAlone(t *testing.T) {
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"writable": 0o777, "plain": 0o644} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if err := checkInit(path); fault.CodeOf(err) != fault.MissingFeature {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := checkInit(filepath.Join(dir, "missing")); fault.CodeOf(err) != fault.MissingFeature {
		t.Errorf("missing: %v", err)
	}
}

func TestMergeEnv(t *testing.T) {
	got := strings.Join(mergeEnv([]string{"A=1", "PATH=/bin"}, []string{"PATH=/x", "B="}), " ")
	if got != "A=1 PATH=/x B=" {
		t.Errorf("mergeEnv = %q", got)
	}
}

// TestImageSizeGivesTheRoom makes volumes of odd sizes and looks at the room.
func TestImageSizeGivesTheRoom(t *testing.T) {
	h := newHost(t)
	for i, size := range []int64{8 << 20, 33<<20 + 12345, 300 << 20, 1 << 30} {
		s := testSpec(t)
		s.LeaseID = "l-room-" + string(rune('a'+i))
		s.IDBase += uint32(i) * jail.IDRangeSize
		s.Volume.Bytes, s.Volume.Inodes = size, max(size/16384, 256)
		makeJail(t, h, s)
	}
}
