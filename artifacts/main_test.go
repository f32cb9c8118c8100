package artifacts

import (
	"os"
	"testing"
	"time"

	"cordon/artifacts/unpack"
)

// testIDBase is a range that nothing else on a test machine uses.
const testIDBase = 1_300_000_000

func TestMain(m *testing.M) {
	// The test binary stands in for cordond, re-executed.
	if len(os.Args) > 1 && os.Args[1] == "unpack" {
		os.Exit(unpack.Run(os.Args[2:], os.Stdin, os.Stdout, os.Stderr))
	}
	if len(os.Args) == 3 && os.Args[1] == "import" {
		os.Exit(runImport(os.Args[2]))
	}
	os.Exit(m.Run())
}

func requireRoot(t testing.TB) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: the store gives files to other ids and makes namespaces")
	}
}

// openStore opens a store in a fresh directory; edit may change the Config.
func openStore(t testing.TB, edit func(*Config)) *Store {
	t.Helper()
	cfg := Config{Dir: t.TempDir(), ImageIDBase: testIDBase}
	if edit != nil {
		edit(&cfg)
	}
	s, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fakeClock is a clock that stands still until moved.
type fakeClock struct{ t time.Time }

func (c *fakeClock) now() time.Time { return c.t }
