package artifacts

import (
	"fmt"
	"io/fs"
	"syscall"
)

// imageOwner is uid:gid as the image sees them.
func imageOwner(fi fs.FileInfo) string {
	st := fi.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%d:%d", int64(st.Uid)-testIDBase, int64(st.Gid)-testIDBase)
}

// stranger is a user that owns nothing.
func stranger() *syscall.Credential { return &syscall.Credential{Uid: 65534, Gid: 65534} }
