// Package artifacts is the store of what goes into a sandbox (images and
// inputs) and the copier of what comes out.
//
// It needs root: it gives files to other ids, makes namespaces for its unpack
// worker and reads the host's package files. Everything below Config.Dir's
// images and inputs directories is its own; the daemon's lock on the state
// directory keeps a second store away. A Store is safe for concurrent use; an
// upload is read in its caller's goroutine and used in one of its own (relay.go).
//
// No path comes from a caller: callers stream bytes, and name things by
// digest. No tenant byte is parsed here either: a tar goes to the worker
// process of artifacts/unpack, and what that leaves behind is walked and
// judged (walk_linux.go) as if an enemy had made it. The host snapshot reads
// the host's own package database and files, which the operator vouches for.
//
// Which tenant may use which image, when leases end and what an envelope must
// say do not belong here but in supervisor; mounting belongs to jail/linux.
package artifacts
