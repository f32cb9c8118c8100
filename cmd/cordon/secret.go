package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"cordon/api/client"
	"cordon/internal/fault"
)

const (
	secretSuffix = ".secret"
	// secretsKept is longer than any lease: what is older is of no use.
	secretsKept = 7 * 24 * time.Hour
	maxSecret   = 256
)

// leasePattern is what may become a file name.
var leasePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// secretStore keeps lease secrets between commands: one file a lease, in a
// directory that is this user's alone.
type secretStore struct {
	dir string
	uid int
	now func() time.Time
}

// secrets is where this user's secrets are: the session's runtime directory,
// or a directory of the user's own below the one for temporary files.
func (a *app) secrets() secretStore {
	s := secretStore{uid: a.uid, now: time.Now}
	given, _ := a.lookup("XDG_RUNTIME_DIR")
	for _, base := range []string{given, "/run/user/" + strconv.Itoa(a.uid)} {
		// Another user's, as sudo may leave it in the environment, is not ours.
		if filepath.IsAbs(base) && s.owned(base, os.Stat) == nil {
			s.dir = filepath.Join(base, "cordon")
			return s
		}
	}
	s.dir = filepath.Join(a.tempDir, "cordon-"+strconv.Itoa(a.uid))
	return s
}

// owned reports whether the directory is this user's and writable by nobody
// else.
func (s secretStore) owned(dir string, stat func(string) (fs.FileInfo, error)) error {
	info, err := stat(dir)
	if err != nil {
		return err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir():
		return fault.New(fault.PermissionDenied, dir, "not a directory", "remove it")
	case !ok || int(st.Uid) != s.uid:
		return fault.New(fault.PermissionDenied, dir, "belongs to another user", "set XDG_RUNTIME_DIR to a directory of your own")
	case info.Mode().Perm()&0o022 != 0:
		return fault.New(fault.PermissionDenied, dir, "others may write to it", "chmod 700 "+dir)
	}
	return nil
}

func (s secretStore) path(leaseID string) (string, error) {
	if !leasePattern.MatchString(leaseID) {
		return "", fault.New(fault.InvalidArgument, "lease", fmt.Sprintf("%q is not a lease id", leaseID), "see cordon lease ls")
	}
	return filepath.Join(s.dir, leaseID+secretSuffix), nil
}

// save keeps a lease's secret, and forgets those of long ago.
func (s secretStore) save(leaseID, secret string) error {
	path, err := s.path(leaseID)
	if err != nil {
		return err
	}
	if err := os.Mkdir(s.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("keep lease secret: %w", err)
	}
	// Lstat: a link that somebody put there first must not lead us away.
	if err := s.owned(s.dir, os.Lstat); err != nil {
		return fmt.Errorf("keep lease secret: %w", err)
	}
	s.prune()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("keep lease secret: %w", err)
	}
	_, err = f.WriteString(secret + "\n")
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("keep lease secret: %w", err)
	}
	return nil
}

// load returns a lease's secret; fs.ErrNotExist if none is kept.
func (s secretStore) load(leaseID string) (string, error) {
	path, err := s.path(leaseID)
	if err != nil {
		return "", err
	}
	if err := s.owned(s.dir, os.Lstat); err != nil {
		return "", err
	}
	return readSecret(path)
}

// drop forgets a lease's secret. What cannot be removed is old soon.
func (s secretStore) drop(leaseID string) {
	if path, err := s.path(leaseID); err == nil {
		_ = os.Remove(path)
	}
}

// prune is best effort: the files are small, and useless to anybody.
func (s secretStore) prune() {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && strings.HasSuffix(e.Name(), secretSuffix) && s.now().Sub(info.ModTime()) > secretsKept {
			_ = os.Remove(filepath.Join(s.dir, e.Name()))
		}
	}
}

// readSecret reads a secret from the first line of a file.
func readSecret(path string) (string, error) {
	data, err := readBounded(path, maxSecret)
	if err != nil {
		return "", err
	}
	secret := strings.TrimSpace(string(data))
	if secret == "" || strings.ContainsAny(secret, " \t\r\n") {
		return "", fault.New(fault.InvalidArgument, path, "does not hold one lease secret", "write the secret on a line of its own")
	}
	return secret, nil
}

// leaseWith returns a handle on a lease with the secret that there is: from
// the file, or CORDON_LEASE_SECRET, or what an earlier command kept.
func (a *app) leaseWith(c *client.Client, id, secretFile string) (*client.Lease, error) {
	if !leasePattern.MatchString(id) {
		_, err := a.secrets().path(id)
		return nil, err
	}
	if secretFile != "" {
		secret, err := readSecret(secretFile)
		return c.Lease(id, secret), err
	}
	if secret, ok := a.lookup("CORDON_LEASE_SECRET"); ok && secret != "" {
		return c.Lease(id, secret), nil
	}
	secret, err := a.secrets().load(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.PermissionDenied, "lease "+id, "this user has no secret of it here",
			"use --secret-file or CORDON_LEASE_SECRET, or acquire the lease as this user")
	}
	return c.Lease(id, secret), err
}
