package ebpf

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
)

// MinKernel is the oldest kernel that has everything this package needs.
const MinKernel = "6.1"

// Feature is one thing the programs need from the kernel.
type Feature struct {
	Name string
	// Err is nil when the kernel has it, and wraps ebpf.ErrNotSupported when
	// it has not. Any other error means the probe could not tell, which counts
	// as missing.
	Err error
}

// HostFeatures probes the running kernel for what the programs need. It needs
// root; results are cached for the life of the process.
func HostFeatures() []Feature {
	task := []asm.BuiltinFunc{
		asm.FnGetCurrentAncestorCgroupId, asm.FnGetCurrentPidTgid, asm.FnGetCurrentComm,
		asm.FnKtimeGetBootNs, asm.FnRingbufReserve, asm.FnMapLookupElem,
	}
	packet := []asm.BuiltinFunc{
		asm.FnSkbAncestorCgroupId, asm.FnSkbLoadBytes,
		asm.FnKtimeGetBootNs, asm.FnRingbufReserve, asm.FnMapLookupElem,
	}
	out := []Feature{
		{"map hash", features.HaveMapType(ebpf.Hash)},
		{"map ring buffer", features.HaveMapType(ebpf.RingBuf)},
		{"instruction set v3", features.HaveV3ISA()},
	}
	out = append(out, probeProgram("sock_create", ebpf.CGroupSock, task)...)
	out = append(out, probeProgram("sock_addr", ebpf.CGroupSockAddr, task)...)
	return append(out, probeProgram("cgroup_skb", ebpf.CGroupSKB, packet)...)
}

func probeProgram(name string, typ ebpf.ProgramType, helpers []asm.BuiltinFunc) []Feature {
	out := []Feature{{name, features.HaveProgramType(typ)}}
	for _, fn := range helpers {
		out = append(out, Feature{name + " " + fn.String(), features.HaveProgramHelper(typ, fn)})
	}
	return out
}

// requireFeatures refuses a kernel that lacks something, by name.
func requireFeatures(have []Feature) error {
	for _, f := range have {
		if f.Err != nil {
			return missingFeature(f.Name, "the kernel does not offer it", f.Err)
		}
	}
	return nil
}
