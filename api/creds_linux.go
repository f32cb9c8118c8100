package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"syscall"

	"google.golang.org/grpc/credentials"

	"cordon/internal/peer"
	"cordon/supervisor/hostpolicy"
)

// peerAuth is the grpc AuthInfo of a connection. The pidfd in it is closed
// with the connection.
type peerAuth struct {
	credentials.CommonAuthInfo
	info peer.Info
}

// AuthType names the kind of identity for grpc.
func (peerAuth) AuthType() string { return "unix-peer" }

// peerCreds are server-side transport credentials that take the peer's
// identity from the kernel, and count connections. There is no client side.
type peerCreds struct {
	limit   *connLimit
	tenants func(hostpolicy.Peer) []hostpolicy.Tenant
	log     *slog.Logger
}

var _ credentials.TransportCredentials = (*peerCreds)(nil)

// ServerHandshake runs once for each accepted connection, before the first
// byte is read.
func (c *peerCreds) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return nil, nil, fmt.Errorf("peer credentials: %T has no descriptor", conn)
	}
	info, err := peer.Of(sc)
	if err != nil {
		return nil, nil, err
	}
	owner := account{uid: info.UID, kind: kindOf(info, c.tenants(callerFrom(info)))}
	if tell, err := c.limit.take(owner); err != nil {
		if tell > 0 {
			c.log.LogAttrs(context.Background(), slog.LevelWarn, "connections refused", slog.Uint64(keyUID, uint64(info.UID)),
				slog.Int64(keyPID, int64(info.PID)), slog.Int(keyCount, tell), errAttr(err))
		}
		_ = info.Close()
		return nil, nil, err
	}
	done := sync.OnceFunc(func() {
		c.limit.give(owner)
		_ = info.Close() // a pidfd carries no data that could be lost
	})
	auth := peerAuth{info: info}
	auth.SecurityLevel = credentials.PrivacyAndIntegrity // it never leaves the kernel
	return &peerConn{Conn: conn, done: done}, auth, nil
}

// ClientHandshake always fails: these credentials only accept.
func (*peerCreds) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("peer credentials: not for clients")
}

// Info says what protocol these credentials speak.
func (*peerCreds) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "unix-peer"}
}

// Clone returns credentials that count with the same limit.
func (c *peerCreds) Clone() credentials.TransportCredentials {
	return &peerCreds{limit: c.limit, tenants: c.tenants, log: c.log}
}

// OverrideServerName does nothing: there are no names here.
func (*peerCreds) OverrideServerName(string) error { return nil }

// peerConn runs done when it is closed.
type peerConn struct {
	net.Conn
	done func()
}

// Close closes the connection and gives up what was counted for it.
func (c *peerConn) Close() error {
	defer c.done()
	return c.Conn.Close()
}
