// Package api serves the supervisor on a Unix socket, and is the only place
// that knows gRPC and protobuf.
//
// Each call passes one chain. Before anything of its message is read: the
// peer's identity as the kernel gives it, rate and concurrency limits, a
// method-by-caller table that refuses what it does not list, and the
// deadline's ceiling. After that: size limits, panic guard, audit, strict
// decode, and then a handler that converts, calls the supervisor and converts
// back. Errors become statuses in one function (errStatus).
//
// Listen needs the right to give the socket's directory to a group, in
// practice root; everything else needs no privilege. A Server owns its
// listener, its connections and all goroutines, and Run returns when they are
// gone. Everything exported is safe for concurrent use.
//
// What a lease is, who owns it, what the host policy grants and what an
// envelope must say do not belong here but in supervisor; the client is
// api/client, and what both sides must agree on is api/wire.
package api
