package linux

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestMain lets the test program stand in for cordond where cordond runs
// itself again: as the maker, and as libcontainer's init stage.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "init" {
		RunContainerInit()
	}
	if len(os.Args) == 2 && os.Args[1] == "maker" {
		if err := RunMaker(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// initEnv names a cordon-init to use, for a machine that has no Go.
const initEnv = "CORDON_TEST_INIT"

// buildInit compiles cordon-init into a directory that only root can change.
func buildInit(t testing.TB) string {
	t.Helper()
	if path := os.Getenv(initEnv); path != "" {
		return path
	}
	out := filepath.Join(t.TempDir(), "cordon-init")
	cmd := exec.Command("go", "build", "-o", out, "cordon/cmd/cordon-init")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build cordon-init: %v: %s", err, b)
	}
	return out
}
