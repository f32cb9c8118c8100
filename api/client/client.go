// Package client is how Go programs use a Cordon daemon: lease a sandbox, run
// commands in it, take declared artifacts out, give it back.
//
//	c, err := client.Dial(ctx, client.DefaultSocket)
//	lease, err := c.Acquire(ctx, env, client.AcquireOptions{})
//	end, err := lease.Run(ctx, client.Command{Argv: []string{"make"}, Stdout: os.Stdout})
//	record, err := lease.Release(ctx)
//
// It needs no privilege but the right to open the daemon's socket; files are
// the caller's to open, the daemon is only ever sent bytes. A Client and its
// Leases are safe for concurrent use and share one connection. Errors that
// the daemon answers are *Error. Nothing about what is allowed is decided
// here, and no type of gRPC or protobuf shows.
package client

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	cordonv1 "cordon/api/v1"
	"cordon/api/wire"
)

// DefaultSocket is where a daemon listens unless it is told otherwise.
const DefaultSocket = "/run/cordon/api/cordond.sock"

// Client is a connection to one daemon.
type Client struct {
	conn *grpc.ClientConn
	rpc  cordonv1.SupervisorClient
}

// Dial connects to the daemon at socket. It fails at once, with an error that
// says what to do, if nobody listens there or the caller may not connect. A
// connection that breaks later is made again by itself.
func Dial(ctx context.Context, socket string) (*Client, error) {
	var dialer net.Dialer
	probe, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, dialError(socket, err)
	}
	_ = probe.Close()

	conn, err := grpc.NewClient("passthrough:///cordond",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		}),
		// The socket's owner and mode are the protection; there is no network.
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(wire.MaxReplyBytes)),
		// A restarting daemon is back in moments; the default backs off to 2 min.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
	)
	if err != nil {
		return nil, &Error{Code: Internal, Field: socket, Cause: err.Error(), err: err}
	}
	conn.Connect()
	return &Client{conn: conn, rpc: cordonv1.NewSupervisorClient(conn)}, nil
}

// Close closes the connection. Running commands end as if their callers had
// left; leases stay.
func (c *Client) Close() error { return c.conn.Close() }

func dialError(socket string, err error) error {
	e := &Error{Code: Unavailable, Field: socket, err: err}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.Cause = "no such socket; is cordond running?"
		e.Remedy = "start it (systemctl start cordond), or name the socket of the one that runs"
	case errors.Is(err, syscall.ECONNREFUSED):
		e.Cause = "nobody listens on this socket; is cordond running?"
		e.Remedy = "start it again (systemctl restart cordond)"
	case errors.Is(err, fs.ErrPermission):
		e.Code = PermissionDenied
		e.Cause = "this user may not open the socket"
		e.Remedy = "run as root, or as a member of the group that owns the socket's directory"
	default:
		e.Cause = err.Error()
	}
	return e
}
