package unpack

import (
	"os"
	"syscall"
	"testing"
)

func ownerOf(t *testing.T, root *os.Root, name string) [2]uint32 {
	t.Helper()
	fi, err := root.Lstat(name)
	if err != nil {
		t.Fatal(err)
	}
	st := fi.Sys().(*syscall.Stat_t)
	return [2]uint32{st.Uid, st.Gid}
}
