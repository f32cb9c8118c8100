// Package ebpf is the second wall of egress: kernel programs on the parent of
// all lease cgroups that refuse network use with EPERM and count each refusal.
//
// One program set is attached once. A lease is an entry of a map under the id
// of its own cgroup, written by Admit; a missing entry, or one whose deadline
// has passed, refuses everything, so there is no unguarded moment. In this
// form an admitted lease may make TCP and UDP sockets, bind them to loopback
// and receive over lo; it may connect and send nowhere.
//
// Loading needs root (CAP_BPF, CAP_NET_ADMIN, and CAP_SYS_ADMIN to mount a
// bpffs). Links and maps are pinned: denial outlives the process, and the next
// Load takes them over without a gap. A Filter owns its descriptors and one
// goroutine, which Close ends; the pin directory belongs to one Filter at a
// time, and the caller sees to that. Methods are safe for concurrent use.
//
// What a lease may reach is netpolicy's to say and egressproxy's to carry out;
// system calls that no cgroup hook sees (AF_PACKET, AF_VSOCK, AF_NETLINK) are
// jail/seccomp's to refuse. Making and removing cgroups does not belong here.
package ebpf

//go:generate go tool -modfile=../tools/go.mod bpf2go -target bpfel -output-stem filter -type event -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -idirafter /usr/include/x86_64-linux-gnu" programs bpf/filter.c
