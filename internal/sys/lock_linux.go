package sys

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// ErrLocked says that another open file holds the lock.
var ErrLocked = errors.New("locked by another process")

// LockFile makes path if it is missing and takes an exclusive lock on it,
// which lasts until the file is closed or the process ends. It does not wait:
// a lock that is taken is ErrLocked. The caller owns the file.
func LockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	return lock(f)
}

// LockDir is LockFile for a directory that is there.
func LockDir(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return lock(f)
}

func lock(f *os.File) (*os.File, error) {
	var lockErr error
	err := control(f, func(fd int) error {
		lockErr = Retry(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
		return nil
	})
	if errors.Is(lockErr, unix.EWOULDBLOCK) {
		lockErr = ErrLocked
	}
	if err = errors.Join(err, lockErr); err != nil {
		_ = f.Close()
		return nil, &os.PathError{Op: "lock", Path: f.Name(), Err: err}
	}
	return f, nil
}
