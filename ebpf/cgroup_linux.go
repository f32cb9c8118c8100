package ebpf

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"cordon/internal/fault"
)

// cgroup is a directory of the v2 tree. The kernel's id of a cgroup is its
// inode number; level counts from the root of the tree, which is 0.
type cgroup struct {
	path  string
	id    uint64
	level uint32
}

var errNotCgroup2 = errors.New("not a directory of the cgroup v2 tree")

// openCgroup finds the id and level of the cgroup at path, an absolute and
// clean path.
func openCgroup(path string) (cgroup, error) {
	dir, err := filepath.EvalSymlinks(path)
	if err != nil {
		return cgroup{}, fmt.Errorf("resolve cgroup: %w", err)
	}
	if err := onFilesystem(dir, unix.CGROUP2_SUPER_MAGIC); err != nil {
		return cgroup{}, fmt.Errorf("open cgroup %s: %w", path, err)
	}
	self, err := inode(dir)
	if err != nil {
		return cgroup{}, err
	}
	c := cgroup{path: dir, id: self.Ino}
	top := dir
	for {
		up := filepath.Dir(top)
		st, err := inode(up)
		if err != nil {
			return cgroup{}, err
		}
		if up == top || st.Dev != self.Dev {
			break
		}
		top = up
		c.level++
	}
	return c, checkRoot(top)
}

// checkRoot refuses a mount that shows only a part of the tree, as inside a
// cgroup namespace: programs count levels from the real root, and a wrong
// level would look for leases in the wrong place. Only the root has no
// cgroup.events file.
func checkRoot(top string) error {
	_, err := os.Lstat(filepath.Join(top, "cgroup.events"))
	if err == nil {
		return fault.New(fault.MissingFeature, "ebpf.cgroup_root",
			"the cgroup v2 mount at "+top+" shows only a part of the tree",
			"run the daemon in the host's own cgroup namespace")
	}
	if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("check cgroup root: %w", err)
	}
	return nil
}

func inode(path string) (*syscall.Stat_t, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, fmt.Errorf("stat %s: %w", path, errors.ErrUnsupported)
	}
	return st, nil
}

func onFilesystem(path string, magic int64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	if fs.Type == magic {
		return nil
	}
	if magic == unix.BPF_FS_MAGIC {
		return errNotBPFFS
	}
	return errNotCgroup2
}
