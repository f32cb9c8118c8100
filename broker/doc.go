// Package broker will decide and record every tool call that an agent makes:
// contracts, argument guards, policy, approvals of the exact effect, a durable
// ledger of effects, and the audit of all of it, behind one front end for each
// framework's format. The default is deny.
//
// It holds no code in this version, and there is no program cordon-broker.
//
// It will run without privilege under its own uid and reach the supervisor
// through package api/client only, as any controller does. Making sandboxes
// and enforcing what they may touch do not belong here.
package broker
