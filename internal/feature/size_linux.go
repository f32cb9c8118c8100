package feature

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Size is what the host has in all. DiskBytes is of the file system that
// holds the state directory, without what is kept back for root's own needs.
// It does not change as the disk fills: policies are resolved from it, and
// their digest is to stay the same. What is free is asked where it is used.
type Size struct {
	CPUs        int
	MemoryBytes int64
	DiskBytes   int64
	PidMax      int64
}

// HostSize reads the host's size; dir is on the disk that counts.
func HostSize(dir string) (Size, error) {
	s := Size{CPUs: runtime.NumCPU()}
	var si unix.Sysinfo_t
	if err := unix.Sysinfo(&si); err != nil {
		return Size{}, os.NewSyscallError("sysinfo", err)
	}
	s.MemoryBytes = int64(si.Totalram) * int64(si.Unit)
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return Size{}, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	s.DiskBytes = int64(fs.Blocks-(fs.Bfree-fs.Bavail)) * fs.Bsize
	b, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return Size{}, fmt.Errorf("read host size: %w", err)
	}
	if s.PidMax, err = strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err != nil {
		return Size{}, fmt.Errorf("read host size: pid_max: %w", err)
	}
	return s, nil
}
