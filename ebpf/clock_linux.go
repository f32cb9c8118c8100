package ebpf

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// bootClock relates CLOCK_BOOTTIME, which programs read and which goes on
// while the machine sleeps, to wall time, at one moment.
type bootClock struct {
	wall time.Time
	boot uint64 // ns
}

func readBootClock() (bootClock, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return bootClock{}, fmt.Errorf("read boot clock: %w", err)
	}
	return bootClock{wall: time.Now(), boot: uint64(ts.Nano())}, nil
}

// toBoot is t on the boot clock; what lies before boot is 0.
func (c bootClock) toBoot(t time.Time) uint64 {
	d := t.Sub(c.wall)
	if d < 0 && uint64(-d) >= c.boot {
		return 0
	}
	return c.boot + uint64(d)
}

// toWall is the wall time of a moment on the boot clock.
func (c bootClock) toWall(boot uint64) time.Time {
	return c.wall.Add(time.Duration(boot - c.boot)).UTC()
}
