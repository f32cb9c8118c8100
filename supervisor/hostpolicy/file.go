package hostpolicy

import (
	"errors"
	"fmt"
	"io/fs"

	"cordon/internal/fault"
	"cordon/internal/strictyaml"
)

// FileFacts is what fstat says of an open file. Take it from the descriptor
// that is read afterwards, not from the path.
type FileFacts struct {
	Mode fs.FileMode
	UID  uint32
	Size int64
}

// CheckFile refuses a policy file that anyone but root could have written.
func CheckFile(path string, f FileFacts) error {
	var bad []error
	if !f.Mode.IsRegular() {
		bad = append(bad, fault.New(fault.InvalidPolicy, path, "is not a regular file", "replace it with one"))
	}
	bad = append(bad, ownedByRoot(path, f)...)
	if f.Size > strictyaml.MaxBytes {
		bad = append(bad, fault.New(fault.InvalidPolicy, path,
			fmt.Sprintf("has %d bytes", f.Size), fmt.Sprintf("keep it within %d", strictyaml.MaxBytes)))
	}
	return errors.Join(bad...)
}

// CheckDir is CheckFile for the directory that holds the file: whoever can
// write there can put another file of root's in the policy's place.
func CheckDir(path string, f FileFacts) error {
	var bad []error
	if !f.Mode.IsDir() {
		bad = append(bad, fault.New(fault.InvalidPolicy, path, "is not a directory", "replace it with one"))
	}
	return errors.Join(append(bad, ownedByRoot(path, f)...)...)
}

func ownedByRoot(path string, f FileFacts) []error {
	var bad []error
	if f.UID != 0 {
		bad = append(bad, fault.New(fault.InvalidPolicy, path, fmt.Sprintf("belongs to uid %d", f.UID), "chown root "+path))
	}
	if f.Mode.Perm()&0o022 != 0 {
		bad = append(bad, fault.New(fault.InvalidPolicy, path,
			fmt.Sprintf("can be written by others (mode %04o)", f.Mode.Perm()), "chmod go-w "+path))
	}
	return bad
}
