// Package feature reads how large the host is: cores, memory, disk, pids.
//
// It needs no privilege and decides nothing; what a lease may take of the
// host is hostpolicy's, what the kernel can do is asked where it is used.
package feature
