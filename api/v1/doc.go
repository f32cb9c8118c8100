// Package cordonv1 is the generated code of supervisor.proto: the messages of
// the API, its client and its server stub.
//
// It needs no privilege and does nothing by itself. Messages are not safe for
// concurrent change. Nothing else belongs here; what turns messages into the
// project's own values is api/wire.
package cordonv1
