// Package egressproxy will be what carries a lease's permitted traffic: a DNS
// server that answers only for allowed names, an explicit proxy, transparent
// TCP, TLS, credentials that the workload never sees, and byte budgets.
//
// It holds no code in this version, and there is no program cordon-proxy:
// nothing leaves a sandbox but declared artifacts.
//
// It will run without capabilities, under its own uid and seccomp filter, one
// worker process a tenant, on sockets that cordond opened inside the jail and
// donated; it will own those and nothing else. What is allowed is decided in
// netpolicy; the kernel's side of it is in ebpf.
package egressproxy
