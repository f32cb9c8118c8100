package linux

import (
	"os"
	"path/filepath"
	"time"

	"cordon/jail"
)

// userHZ is the unit of cpuacct.stat, fixed in the kernel's user interface.
const userHZ = 100

// usage reads what a group consumed, descendants' groups included; refused
// forks and OOM kills are the group's own alone. Files a kernel lacks count as
// zero.
func (h *hierarchies) usage(rel string) jail.Usage {
	if h.mode == "v2" {
		return h.usage2(rel)
	}
	cpu := filepath.Join(h.v1path("cpuacct", rel), "cpuacct.stat")
	mem := h.v1path("memory", rel)
	return jail.Usage{
		CPUUser:     ticks(flatUint(cpu, "user")),
		CPUSystem:   ticks(flatUint(cpu, "system")),
		MemoryPeak:  fileUint(filepath.Join(mem, "memory.max_usage_in_bytes")),
		OOMKills:    flatUint(filepath.Join(mem, "memory.oom_control"), "oom_kill"),
		PidsRefused: flatUint(filepath.Join(h.v1path("pids", rel), "pids.events"), "max"),
	}
}

func (h *hierarchies) usage2(rel string) jail.Usage {
	dir := h.v2path(rel)
	cpu := filepath.Join(dir, "cpu.stat")
	return jail.Usage{
		CPUUser:     time.Duration(flatUint(cpu, "user_usec")) * time.Microsecond,
		CPUSystem:   time.Duration(flatUint(cpu, "system_usec")) * time.Microsecond,
		MemoryPeak:  fileUint(filepath.Join(dir, "memory.peak")), // Linux 5.19
		OOMKills:    flatUint(filepath.Join(dir, "memory.events.local"), "oom_kill"),
		PidsPeak:    fileUint(filepath.Join(dir, "pids.peak")), // Linux 6.1
		PidsRefused: flatUint(filepath.Join(dir, "pids.events"), "max"),
	}
}

func ticks(n uint64) time.Duration { return time.Duration(n) * time.Second / userHZ }

// refused counts the forks that limits refused in the commands' group and in
// the leaves below it. The kernel counts each once: where the fork was tried,
// or since Linux 6.11, on v2, where the limit is.
func (h *hierarchies) refused(work string) uint64 {
	return h.sum(work, func(u jail.Usage) uint64 { return u.PidsRefused })
}

// oomKills counts the kernel's kills likewise.
func (h *hierarchies) oomKills(work string) uint64 {
	return h.sum(work, func(u jail.Usage) uint64 { return u.OOMKills })
}

func (h *hierarchies) sum(work string, of func(jail.Usage) uint64) uint64 {
	n := of(h.usage(work))
	entries, err := os.ReadDir(h.v2path(work))
	if err != nil {
		return n
	}
	for _, e := range entries {
		if e.IsDir() {
			n += of(h.usage(filepath.Join(work, e.Name())))
		}
	}
	return n
}
