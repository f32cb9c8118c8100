package main

import (
	"fmt"

	"cordon/api"
	"cordon/jail"
)

// terms are the eight terms of the guarantee (S1-130), each with what gives
// it on this host and what is still trusted. All are enforced for every
// lease or the daemon does not start, so all are given; what differs between
// hosts is the proof.
func terms(f jail.Features) []api.Term {
	swap := "swap set to zero"
	if !f.SwapAccount {
		swap = "swap not limited: the kernel does not account it"
	}
	witness := "exit status from the kernel's pidfd"
	if !f.PidfdInfo {
		witness = "exit status from PID 1, marked so (the kernel's needs Linux 6.15)"
	}
	return []api.Term{
		{
			Letter: "K", Name: "kernel boundary", Given: true,
			Proof:    "system-call allow list by libseccomp on PID 1, a stricter one on every command, both read back; Linux " + f.Kernel,
			LeftOver: "the host kernel itself: one kernel for all runs",
		},
		{
			Letter: "P", Name: "process, user and IPC isolation", Given: true,
			Proof:    "user, pid, ipc, uts and cgroup namespaces; host ids of its own for each lease; no capability; read back",
			LeftOver: "the kernel's namespace and id-map code, libcontainer",
		},
		{
			Letter: "F", Name: "filesystem and artifact isolation", Given: true,
			Proof:    "read-only idmapped image by digest, own volume with byte and inode limits, masked /proc, exports beneath a handle without links",
			LeftOver: "ext4 on a loop device; artifacts are hashed, not scanned",
		},
		{
			Letter: "N", Name: "network policy", Given: true,
			Proof:    "no network card; eBPF on the cgroup refuses every connect and send with EPERM, pinned",
			LeftOver: "deny only: there are no allow rules yet",
		},
		{
			Letter: "I", Name: "identity and credentials", Given: true,
			Proof:    "callers by the kernel's peer credentials, leases by owner and secret; no credential enters a sandbox",
			LeftOver: "root and the policy file decide who a tenant is; no workload identity yet",
		},
		{
			Letter: "R", Name: "resource control", Given: true,
			Proof:    fmt.Sprintf("cgroup (%s): cpu, memory, processes, %s; disk, files, output, wall clock; %s", f.CgroupMode, swap, witness),
			LeftOver: resourceLeftOver(f),
		},
		{
			Letter: "T", Name: "lifetime and remanence", Given: true,
			Proof:    "one volume a lease, used once and deleted; everything listed again after the end; leases of a dead daemon are swept at the next start",
			LeftOver: "freed disk blocks are not overwritten; leases do not outlive the daemon",
		},
		{
			Letter: "C", Name: "control-plane integrity", Given: true,
			Proof:    "signed, hash-chained records; default-deny method table; an audit line a call; a root-owned policy",
			LeftOver: "root on this host, and whoever can replace the daemon; keep the chain's heads elsewhere",
		},
	}
}

func resourceLeftOver(f jail.Features) string {
	if f.CgroupMode == "hybrid" {
		return "disk I/O rate; cgroup v1 does not charge TCP and UDP buffers to a lease"
	}
	return "disk I/O rate"
}
