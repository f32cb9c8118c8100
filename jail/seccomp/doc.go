// Package seccomp is the system-call policy of jails as data: which calls a
// process may make, with which arguments, and what it is told otherwise.
//
// It is pure: it needs no privilege, opens nothing, and builds on any OS.
// Filters are values; functions are safe for concurrent use. Decide is the
// meaning of a filter; whatever compiles one must agree with it on every
// input, and jail/linux tests that.
//
// Every call number that exists has a place here, allowed, allowed with
// arguments, or refused with the reason, so that a new kernel's calls are
// decided by somebody and not by default.
//
// Compiling and installing a filter is the work of jail/linux and
// jail/initproc. What a permitted socket may reach is ebpf's to say.
package seccomp

//go:generate go run gennumbers.go
