package lease

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cordon/tests/daemon"
)

// TestQuickstart runs what `make quickstart` runs after the build, and wants
// its story in under one screen.
func TestQuickstart(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: cordond makes namespaces, mounts and cgroups")
	}
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	cmd := exec.Command("../../deploy/quickstart.sh", daemon.Binaries(t))
	cmd.Dir, _ = filepath.Abs(".")
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("quickstart: %v\n%s\n%s", err, stdout.String(), stderr.String())
	}
	lines := strings.Split(strings.TrimRight(stdout.String(), "\n"), "\n")
	if len(lines) > 24 {
		t.Errorf("%d lines do not fit one screen of 24", len(lines))
	}
	for _, line := range lines {
		if n := len([]rune(line)); n > 80 {
			t.Errorf("a line of %d columns: %q", n, line)
		}
	}
	for _, want := range []string{"/etc/shadow", "169.254.169.254", "result.json", "sha256:"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("the story does not mention %s:\n%s", want, stdout.String())
		}
	}
	t.Log("\n" + stdout.String())
}
