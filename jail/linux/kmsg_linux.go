package linux

import (
	"bytes"
	"errors"
	"strconv"

	"golang.org/x/sys/unix"

	"cordon/internal/sys"
)

// seccompRecord tells whether the kernel log has a seccomp kill of the
// process: "audit: type=1326 ... pid=N ... sig=31". A command can send itself
// SIGSYS, so the signal alone proves nothing. False when the log cannot be
// read or the record was dropped by its rate limit.
func seccompRecord(pid int) bool {
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	want := []byte(" pid=" + strconv.Itoa(pid) + " ")
	buf := make([]byte, 8192) // one record a read
	found := false
	for {
		var n int
		err := sys.Retry(func() (err error) { n, err = unix.Read(fd, buf); return err })
		if errors.Is(err, unix.EPIPE) {
			continue // a record was overwritten meanwhile
		}
		if err != nil || n == 0 {
			return found
		}
		rec := buf[:n]
		if bytes.Contains(rec, []byte("type=1326")) && bytes.Contains(rec, want) && bytes.Contains(rec, []byte("sig=31")) {
			found = true
		}
	}
}
