package ebpf

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"cordon/internal/cleanup"
)

// Load attaches the programs to cfg.CgroupParent and pins them, or takes over
// what an earlier process pinned: entries and counts go on when the maps fit,
// links get the new programs without a gap, links that lost their cgroup are
// made again, and pins that mean nothing any more are removed.
//
// On error nothing that was newly attached is left; what an earlier process
// pinned goes on refusing.
func Load(cfg Config) (*Filter, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	parent, err := openCgroup(cfg.CgroupParent)
	if err != nil {
		return nil, err
	}
	if err := onFilesystem(cfg.PinDir, unix.BPF_FS_MAGIC); err != nil {
		return nil, fmt.Errorf("open pin directory %s: %w", cfg.PinDir, err)
	}
	if err := checkPrivate(cfg.PinDir); err != nil {
		return nil, err
	}
	if err := requireFeatures(HostFeatures()); err != nil {
		return nil, err
	}
	f := &Filter{cfg: cfg, parent: parent, ledger: newLedger()}
	var undo cleanup.Stack
	if err := f.build(&undo); err != nil {
		return nil, errors.Join(err, undo.Run())
	}
	undo.Disarm()
	return f, nil
}

// build is the fallible part of Load, in the order that keeps denial unbroken:
// programs and maps first, then links, then the pins of new maps take the
// place of old ones, then the sweep.
func (f *Filter) build(undo *cleanup.Stack) error {
	adopted, err := f.loadObjects()
	if err != nil {
		return err
	}
	undo.Push(f.objs.Close)
	if !adopted {
		if err := f.objs.Layout.Put(uint32(0), headerFor(f.parent)); err != nil {
			return fmt.Errorf("write layout: %w", err)
		}
	}
	undo.Push(f.closeLinks)
	for _, h := range hooks() {
		if err := f.attach(h, undo); err != nil {
			return err
		}
	}
	if !adopted {
		if err := f.pinMaps(undo); err != nil {
			return err
		}
	}
	if err := f.sweep(); err != nil {
		return err
	}
	if err := f.Verify(); err != nil {
		return err
	}
	if adopted {
		if err := f.adoptEntries(); err != nil {
			return err
		}
	}
	return f.startReader()
}

// loadObjects loads programs, and maps unless pinned ones fit.
func (f *Filter) loadObjects() (adopted bool, err error) {
	spec, err := newSpec(f.parent.level+1, f.cfg.MaxLeases)
	if err != nil {
		return false, err
	}
	maps, err := adoptMaps(f.cfg.PinDir, spec, f.parent)
	if errors.Is(err, errForeignLayout) {
		f.cfg.Logger.Warn("pinned maps replaced; every lease is refused until admitted again", slog.Any("cause", err))
	} else if err != nil {
		return false, err
	}
	defer closeMaps(maps) // the program set holds its own descriptors
	err = spec.LoadAndAssign(&f.objs, &ebpf.CollectionOptions{MapReplacements: maps})
	if errors.Is(err, ebpf.ErrNotSupported) {
		return false, missingFeature("programs", "the kernel refuses the programs", err)
	}
	if err != nil {
		return false, fmt.Errorf("load programs: %w", err)
	}
	return maps != nil, nil
}

// attach brings h to life: the pinned link of an earlier process gets the new
// program; where there is none, or it belongs to another cgroup or none, a new
// one is made.
func (f *Filter) attach(h hook, undo *cleanup.Stack) error {
	path := filepath.Join(f.cfg.PinDir, h.pin())
	old, err := f.adoptLink(h, path)
	if err != nil {
		return err
	}
	if old != nil {
		f.links = append(f.links, old)
		return nil
	}
	l, err := h.attachTo(f.parent.path, &f.objs.programsPrograms)
	if err != nil {
		return err
	}
	f.links = append(f.links, l)
	if err := h.pinned(l, path); err != nil {
		return err
	}
	undo.Push(l.Unpin)
	return nil
}

// adoptLink opens and updates the link pinned at path. It returns nil, and
// removes the pin, when the link does not serve h on the parent cgroup.
func (f *Filter) adoptLink(h hook, path string) (link.Link, error) {
	l, err := link.LoadPinnedLink(path, nil)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open pinned link %s: %w", h.name, err)
	}
	err = f.checkLink(h, l)
	if err == nil {
		if err = l.Update(h.program(&f.objs.programsPrograms)); err == nil {
			return l, nil
		}
		_ = l.Close() // the update's error is the one that counts
		return nil, fmt.Errorf("update link %s: %w", h.name, err)
	}
	f.cfg.Logger.Warn("pinned link replaced", slog.String("hook", h.name), slog.Any("cause", err))
	if err := errors.Join(l.Unpin(), l.Close()); err != nil {
		return nil, fmt.Errorf("remove pinned link %s: %w", h.name, err)
	}
	return nil, nil
}

// checkLink asks the kernel whether l still serves h on the parent cgroup. A
// link whose cgroup was removed says cgroup 0.
func (f *Filter) checkLink(h hook, l link.Link) error {
	info, err := l.Info()
	if err != nil {
		return fmt.Errorf("read link %s: %w", h.name, err)
	}
	cg := info.Cgroup()
	if cg == nil {
		return fmt.Errorf("link %s: %w", h.name, errNotCgroupLink)
	}
	if cg.CgroupId != f.parent.id || uint32(cg.AttachType) != uint32(h.attach) {
		return fmt.Errorf("link %s on cgroup %d, attach type %d: %w", h.name, cg.CgroupId, cg.AttachType, errSevered)
	}
	return nil
}

var (
	errNotCgroupLink = errors.New("not a cgroup link")
	errSevered       = errors.New("not attached to the parent of leases")
)

// pinMaps pins the new maps beside the old and renames them into place, so
// that at any moment a complete old or a partly new set is there; the layout
// comes last, and without a fitting one nothing is taken over.
func (f *Filter) pinMaps(undo *cleanup.Stack) error {
	maps := f.objs.byName()
	for _, name := range mapNames() {
		final := filepath.Join(f.cfg.PinDir, mapPin(name))
		fresh := final + "_new"
		if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("pin map: %w", err)
		}
		if err := maps[name].Pin(fresh); err != nil {
			return fmt.Errorf("pin map %s: %w", name, err)
		}
		undo.Push(func() error { return removeAny(fresh, final) })
		if err := os.Rename(fresh, final); err != nil {
			return fmt.Errorf("pin map: %w", err)
		}
	}
	return nil
}

func removeAny(paths ...string) error {
	var errs []error
	for _, p := range paths {
		if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// pins lists the names that belong in the pin directory.
func pins() []string {
	var out []string
	for _, h := range hooks() {
		out = append(out, h.pin())
	}
	for _, name := range mapNames() {
		out = append(out, mapPin(name))
	}
	return out
}

// sweep removes pins of hooks and maps that this version does not have.
func (f *Filter) sweep() error {
	entries, err := os.ReadDir(f.cfg.PinDir)
	if err != nil {
		return fmt.Errorf("list pins: %w", err)
	}
	for _, e := range entries {
		if slices.Contains(pins(), e.Name()) {
			continue
		}
		f.cfg.Logger.Info("stale pin removed", slog.String("pin", e.Name()))
		if err := os.Remove(filepath.Join(f.cfg.PinDir, e.Name())); err != nil {
			return fmt.Errorf("remove stale pin: %w", err)
		}
	}
	return nil
}
