package ebpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
)

// layoutVersion is raised with every change to a struct, enum or map of
// bpf/filter.c: maps of another version are not taken over.
const layoutVersion = 1

const stateActive = 1

// mapNames are the maps that outlive the process.
func mapNames() []string {
	return []string{
		programsMapLeases, programsMapCounted, programsMapUnowned,
		programsMapEvents, programsMapLayout,
	}
}

func mapPin(name string) string { return "map_" + name }

// newSpec is the program set for leases at level, not yet loaded.
func newSpec(level, maxLeases uint32) (*ebpf.CollectionSpec, error) {
	spec, err := loadPrograms()
	if err != nil {
		return nil, fmt.Errorf("read programs: %w", err)
	}
	if err := spec.Variables[programsVarLeaseLevel].Set(level); err != nil {
		return nil, fmt.Errorf("set lease level: %w", err)
	}
	spec.Maps[programsMapLeases].MaxEntries = maxLeases
	spec.Maps[programsMapCounted].MaxEntries = maxLeases
	return spec, nil
}

// errForeignLayout says that pinned maps cannot be taken over.
var errForeignLayout = errors.New("maps of another layout")

// adoptMaps opens the maps that an earlier process pinned in dir. All of them
// fit or none is taken: errForeignLayout, wrapped, says that there are maps
// but they do not fit, and no maps and no error that there are none.
//
// The caller closes the maps.
func adoptMaps(dir string, spec *ebpf.CollectionSpec, parent cgroup) (map[string]*ebpf.Map, error) {
	maps := make(map[string]*ebpf.Map)
	for _, name := range mapNames() {
		m, err := ebpf.LoadPinnedMap(filepath.Join(dir, mapPin(name)), nil)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			closeMaps(maps)
			return nil, fmt.Errorf("open pinned map %s: %w", name, err)
		}
		maps[name] = m
	}
	if len(maps) == 0 {
		return nil, nil
	}
	if err := checkLayout(maps, spec, parent); err != nil {
		closeMaps(maps)
		return nil, err
	}
	return maps, nil
}

func checkLayout(maps map[string]*ebpf.Map, spec *ebpf.CollectionSpec, parent cgroup) error {
	for _, name := range mapNames() {
		m, ok := maps[name]
		if !ok {
			return fmt.Errorf("map %s is not pinned: %w", name, errForeignLayout)
		}
		if err := spec.Maps[name].Compatible(m); err != nil {
			return fmt.Errorf("map %s: %w: %w", name, errForeignLayout, err)
		}
	}
	var got programsHeader
	if err := maps[programsMapLayout].Lookup(uint32(0), &got); err != nil {
		return fmt.Errorf("read layout: %w", err)
	}
	if want := headerFor(parent); got != want {
		return fmt.Errorf("layout version %d for cgroup %d at level %d: %w",
			got.Version, got.Parent, got.Level, errForeignLayout)
	}
	return nil
}

func headerFor(parent cgroup) programsHeader {
	return programsHeader{
		Version: layoutVersion,
		Parent:  parent.id,
		Level:   uint64(parent.level) + 1,
	}
}

func closeMaps(maps map[string]*ebpf.Map) {
	for _, m := range maps {
		_ = m.Close() // what was pinned stays
	}
}

// byName lists the maps of a loaded program set under their names.
func (m *programsMaps) byName() map[string]*ebpf.Map {
	return map[string]*ebpf.Map{
		programsMapLeases:  m.Leases,
		programsMapCounted: m.Counted,
		programsMapUnowned: m.Unowned,
		programsMapEvents:  m.Events,
		programsMapLayout:  m.Layout,
	}
}
