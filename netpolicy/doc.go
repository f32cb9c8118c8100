// Package netpolicy will be the rule model of the network: parse a lease's
// destinations, compile them, match an attempt against them, and explain the
// verdict; with the tables of special-purpose addresses that no rule may
// reach. The zero value of a verdict is deny.
//
// It holds no code in this version: every lease is refused all of the network
// (package ebpf), and an envelope that asks for a destination is refused by
// name (package supervisor/envelope).
//
// It will be pure: no file, socket, clock or privilege, the same rules giving
// the same bytes on any OS, its values safe to share. Resolving names, dialing
// and holding credentials belong to egressproxy; refusing packets to ebpf.
package netpolicy
