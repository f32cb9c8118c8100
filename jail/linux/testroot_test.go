package linux

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// copyPrograms puts host programs and the libraries ldd names into a root.
func copyPrograms(root string, names ...string) error {
	for _, name := range names {
		path, err := exec.LookPath(name)
		if err != nil {
			return err
		}
		if err := copyInto(root, path, filepath.Join("/bin", name)); err != nil {
			return err
		}
		out, err := exec.Command("ldd", path).Output()
		if err != nil {
			continue // static
		}
		for f := range strings.FieldsSeq(string(out)) {
			if strings.HasPrefix(f, "/") {
				if err := copyInto(root, f, f); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func copyInto(root, src, dst string) error {
	b, err := os.ReadFile(src)
	if err != nil {
		return err
	}
	dst = filepath.Join(root, dst)
	if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(dst, b, 0o755); err != nil {
		return fmt.Errorf("copy %s: %w", src, err)
	}
	return nil
}

func chownTree(root string, id int) error {
	return filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, id, id)
	})
}
