// Package unpack is the image store's worker: a short-lived process that
// parses one tenant's tar, so that the daemon never does.
//
// Run starts as PID 1 of new user, pid, mount, network, ipc and uts
// namespaces, mapped to the image store's own ids. Before the first byte is
// read it makes the (empty) staging directory its root, detaches everything
// else, and becomes an unprivileged id that keeps only what is in workerCaps.
// It can see nothing but the tree it writes. One goroutine, locked to one
// thread, does all of it.
//
// What it says is the tenant's word: the store walks the finished tree and
// judges it by itself. Naming, digests, limits on what is stored and
// publishing do not belong here but in artifacts.
package unpack
