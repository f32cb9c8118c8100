package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"cordon/internal/fault"
)

func fill(text string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

func TestTargetNames(t *testing.T) {
	dir := chdir(t)
	if err := os.Mkdir("d", 0o700); err != nil {
		t.Fatal(err)
	}
	for in, want := range map[string]string{"": "base", "x": "x", "d": "d/base", "d/": "d/base", "d/x": "d/x", dir: filepath.Join(dir, "base")} {
		got, err := newTarget(in, "base", false)
		if err != nil || got.path != want {
			t.Errorf("newTarget(%q) = %q, %v, want %q", in, got.path, err, want)
		}
	}
	if _, err := newTarget("missing/x", "base", false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that is not there: %v", err)
	}
}

func TestTargetReplacesOnlyWhenForced(t *testing.T) {
	chdir(t)
	writeFile(t, "x", "old")
	if _, err := newTarget("x", "", false); fault.CodeOf(err) != fault.Conflict {
		t.Errorf("an existing file: %v", err)
	}
	to, err := newTarget("x", "", true)
	if err != nil {
		t.Fatal(err)
	}
	if err := to.write(fill("new")); err != nil || readFile(t, "x") != "new" {
		t.Errorf("forced: %v, %q", err, readFile(t, "x"))
	}
	// A file that came up in the meantime is left alone as well.
	late := target{path: "late"}
	err = late.write(func(w io.Writer) error {
		writeFile(t, "late", "somebody's")
		return fill("ours")(w)
	})
	if fault.CodeOf(err) != fault.Conflict || readFile(t, "late") != "somebody's" {
		t.Errorf("late: %v, %q", err, readFile(t, "late"))
	}
	if got := names(t, "."); len(got) != 2 {
		t.Errorf("left: %v", got)
	}
}

func TestTargetNeverReplacesADevice(t *testing.T) {
	chdir(t)
	if err := syscall.Mkfifo("pipe", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/dev/null", "pipe"} {
		for _, force := range []bool{false, true} {
			if _, err := newTarget(name, "", force); fault.CodeOf(err) != fault.Conflict {
				t.Errorf("%s, force %v: %v", name, force, err)
			}
		}
	}
}

func TestTargetOfAFailureIsNotThere(t *testing.T) {
	chdir(t)
	boom := errors.New("boom")
	err := target{path: "x"}.write(func(w io.Writer) error { return errors.Join(fill("half")(w), boom) })
	if !errors.Is(err, boom) {
		t.Errorf("err = %v", err)
	}
	if got := names(t, "."); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

func TestTargetHasAnOrdinaryMode(t *testing.T) {
	chdir(t)
	old := syscall.Umask(0o027)
	defer syscall.Umask(old)
	if err := (target{path: "x"}).write(fill("x")); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat("x"); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestReadBounded(t *testing.T) {
	chdir(t)
	writeFile(t, "x", "12345")
	if got, err := readBounded("x", 5); err != nil || string(got) != "12345" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := readBounded("x", 4); fault.CodeOf(err) != fault.TooLarge {
		t.Errorf("err = %v", err)
	}
	if _, err := readBounded("/dev/zero", 4); fault.CodeOf(err) != fault.TooLarge {
		t.Errorf("an endless file: %v", err)
	}
}
