package ebpf

import (
	"os"
	"testing"
)

// probeEnv set makes this test binary the probe that runs inside a cgroup.
const probeEnv = "CORDON_EBPF_TEST_PROBE"

func TestMain(m *testing.M) {
	if os.Getenv(probeEnv) != "" {
		os.Exit(probeMain(os.Stdin, os.Stdout))
	}
	os.Exit(m.Run())
}
