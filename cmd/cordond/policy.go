package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"cordon/internal/feature"
	"cordon/supervisor/hostpolicy"
)

// loadPolicy reads the host policy, or takes the shipped one where the host
// has none of its own.
func (d *daemon) loadPolicy() error {
	size, err := feature.HostSize(d.opt.State)
	if err != nil {
		return err
	}
	facts := hostpolicy.HostFacts{CPUs: size.CPUs, MemoryBytes: size.MemoryBytes, DiskBytes: size.DiskBytes, PidMax: size.PidMax}
	lookups := hostpolicy.Lookups{UserID: userID, GroupID: lookupGroup}
	doc, err := readPolicy(d.opt.Policy)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.log.Info("no host policy: root and the group cordon run one tenant each within half the host",
			slog.String("path", d.opt.Policy))
		d.policy = hostpolicy.Default(lookups, facts)
	case err != nil:
		return err
	default:
		if d.policy, err = hostpolicy.Parse(doc, lookups, facts); err != nil {
			return fmt.Errorf("host policy %s: %w", d.opt.Policy, err)
		}
	}
	for _, note := range d.policy.Notes() {
		d.log.Info("host policy", slog.String("note", note))
	}
	return nil
}

// readPolicy reads the file through one descriptor, after checking that only
// root can have written it or put another in its place.
func readPolicy(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	facts, err := factsOf(f.Stat)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(path)
	dirFacts, err := factsOf(func() (fs.FileInfo, error) { return os.Stat(dir) })
	if err != nil {
		return nil, err
	}
	if err := errors.Join(hostpolicy.CheckFile(path, facts), hostpolicy.CheckDir(dir, dirFacts)); err != nil {
		return nil, err
	}
	return io.ReadAll(f)
}

func factsOf(stat func() (fs.FileInfo, error)) (hostpolicy.FileFacts, error) {
	st, err := stat()
	if err != nil {
		return hostpolicy.FileFacts{}, err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return hostpolicy.FileFacts{}, fmt.Errorf("stat %s: no owner", st.Name())
	}
	return hostpolicy.FileFacts{Mode: st.Mode(), UID: sys.Uid, Size: st.Size()}, nil
}

func userID(name string) (uint32, bool, error) {
	u, err := user.Lookup(name)
	if _, ok := errors.AsType[user.UnknownUserError](err); ok {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	return parseID(u.Uid)
}

func lookupGroup(name string) (uint32, bool, error) {
	g, err := user.LookupGroup(name)
	if _, ok := errors.AsType[user.UnknownGroupError](err); ok {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	return parseID(g.Gid)
}

func parseID(text string) (uint32, bool, error) {
	id, err := strconv.ParseUint(text, 10, 32)
	return uint32(id), err == nil, err
}
