// Package sys holds the raw system calls of the project, with the habits that
// every caller needs: EINTR is retried, descriptors are close-on-exec, errors
// are *os.SyscallError or *os.PathError.
//
// Functions say which descriptors they borrow and which they hand over. All
// are safe for concurrent use. Policy, paths of the product and anything that
// decides do not belong here.
package sys
