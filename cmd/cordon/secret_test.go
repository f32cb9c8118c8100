package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cordon/internal/fault"
)

func newSecrets(t *testing.T) secretStore {
	t.Helper()
	return secretStore{dir: filepath.Join(t.TempDir(), "cordon"), uid: os.Getuid(), now: time.Now}
}

func TestSecretIsKeptForTheUserAlone(t *testing.T) {
	s := newSecrets(t)
	if _, err := s.load("l-1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("load before save: %v", err)
	}
	for _, secret := range []string{"first", "second"} {
		if err := s.save("l-1", secret); err != nil {
			t.Fatal(err)
		}
		if got, err := s.load("l-1"); err != nil || got != secret {
			t.Errorf("load = %q, %v, want %q", got, err, secret)
		}
	}
	for path, want := range map[string]fs.FileMode{s.dir: 0o700, filepath.Join(s.dir, "l-1.secret"): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v, want %v", path, info.Mode().Perm(), err, want)
		}
	}
	s.drop("l-1")
	if got := names(t, s.dir); len(got) != 0 {
		t.Errorf("left after drop: %v", got)
	}
}

func TestSecretStoreRefuses(t *testing.T) {
	for _, id := range []string{"", "../x", "a/b", ".hidden", "a\nb"} {
		s := newSecrets(t)
		if err := s.save(id, "x"); fault.CodeOf(err) != fault.InvalidArgument {
			t.Errorf("save(%q): %v", id, err)
		}
	}
	t.Run("a directory that others can write to", func(t *testing.T) {
		s := newSecrets(t)
		if err := os.Mkdir(s.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(s.dir, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := s.save("l-1", "x"); fault.CodeOf(err) != fault.PermissionDenied {
			t.Errorf("save: %v", err)
		}
		if _, err := s.load("l-1"); fault.CodeOf(err) != fault.PermissionDenied {
			t.Errorf("load: %v", err)
		}
	})
	t.Run("a directory of somebody else", func(t *testing.T) {
		s := newSecrets(t)
		s.uid++
		if err := s.save("l-1", "x"); fault.CodeOf(err) != fault.PermissionDenied {
			t.Errorf("save: %v", err)
		}
	})
	t.Run("a link in place of the directory", func(t *testing.T) {
		s := newSecrets(t)
		if err := os.Symlink(t.TempDir(), s.dir); err != nil {
			t.Fatal(err)
		}
		if err := s.save("l-1", "x"); fault.CodeOf(err) != fault.PermissionDenied {
			t.Errorf("save: %v", err)
		}
	})
	t.Run("a link in place of the file", func(t *testing.T) {
		s := newSecrets(t)
		victim := filepath.Join(t.TempDir(), "victim")
		writeFile(t, victim, "keep")
		if err := os.Mkdir(s.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(victim, filepath.Join(s.dir, "l-1.secret")); err != nil {
			t.Fatal(err)
		}
		if err := s.save("l-1", "x"); err == nil {
			t.Error("saved through a link")
		}
		if got := readFile(t, victim); got != "keep" {
			t.Errorf("the file behind the link: %q", got)
		}
	})
}

func TestSecretsOfLongAgoAreForgotten(t *testing.T) {
	s := newSecrets(t)
	if err := s.save("l-1", "x"); err != nil {
		t.Fatal(err)
	}
	s.now = func() time.Time { return time.Now().Add(secretsKept + time.Hour) }
	if err := s.save("l-2", "x"); err != nil {
		t.Fatal(err)
	}
	if got := names(t, s.dir); len(got) != 1 || got[0] != "l-2.secret" {
		t.Errorf("kept: %v", got)
	}
}

func TestReadSecret(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s")
	for text, want := range map[string]string{"abc": "abc", " abc\n": "abc", "": "", "a b": "", "a\nb\n": ""} {
		writeFile(t, file, text)
		got, err := readSecret(file)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

func TestSecretsDirectory(t *testing.T) {
	w := newWorld(t, nil)
	own := w.env["XDG_RUNTIME_DIR"]
	lookup := func(n string) (string, bool) { v, ok := w.env[n]; return v, ok }
	a := newApp(config{uid: os.Getuid(), tempDir: "/nowhere", lookup: lookup})
	if got := a.secrets().dir; got != filepath.Join(own, "cordon") {
		t.Errorf("dir = %s", got)
	}
	// Another user's runtime directory, as sudo may leave it.
	a.uid = 4242424
	if got := a.secrets().dir; got != "/nowhere/cordon-4242424" {
		t.Errorf("dir = %s", got)
	}
	a.uid = os.Getuid()
	w.env["XDG_RUNTIME_DIR"] = "relative"
	if got := a.secrets().dir; got == "relative/cordon" {
		t.Errorf("dir = %s", got)
	}
}
