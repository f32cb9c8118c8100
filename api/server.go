package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	cordonv1 "cordon/api/v1"
	"cordon/api/wire"
	"cordon/supervisor/hostpolicy"
)

const (
	handshakeTimeout = 5 * time.Second
	idleTimeout      = 15 * time.Minute
	maxHeaderBytes   = 16 << 10
	// connStreams bounds the calls of one connection; a client's grpc queues
	// what exceeds it.
	connStreams = 64
	// stopGrace lets short calls end by themselves when the server stops.
	stopGrace = 2 * time.Second
)

// Config is what a Server needs.
type Config struct {
	Supervisor Service      // required
	Images     ImageService // required
	// Tenants lists the tenants that a peer may speak for; none makes it a
	// caller who may ask for Info and nothing else. hostpolicy.Policy.Tenants
	// fits. It is asked at each call, so it must be quick. Required.
	Tenants func(hostpolicy.Peer) []hostpolicy.Tenant
	// Info describes the daemon and its host. Required.
	Info   func(context.Context) (Info, error)
	Logger *slog.Logger // required
	Limits Limits       // optional
}

func (c Config) check() error {
	var errs []error
	for _, f := range []struct {
		name    string
		missing bool
	}{
		{"Supervisor", c.Supervisor == nil},
		{"Images", c.Images == nil},
		{"Tenants", c.Tenants == nil},
		{"Info", c.Info == nil},
		{"Logger", c.Logger == nil},
	} {
		if f.missing {
			errs = append(errs, fmt.Errorf("api config: %s is required", f.name))
		}
	}
	return errors.Join(errs...)
}

// Server is the daemon's API.
type Server struct {
	grpc *grpc.Server
	// receivers are goroutines that end when their stream does, which is just
	// after their handler has returned.
	receivers sync.WaitGroup
}

// New returns a server that does not listen yet.
func New(cfg Config) (*Server, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg.Limits = cfg.Limits.withDefaults()
	s := &Server{}
	s.grpc = grpc.NewServer(options(cfg)...)
	cordonv1.RegisterSupervisorServer(s.grpc, &handlers{cfg: cfg, receivers: &s.receivers})
	return s, nil
}

// handlers are the last step of each call: convert, call, convert back.
type handlers struct {
	cordonv1.UnsafeSupervisorServer // so that a method without a handler does not build

	cfg       Config
	receivers *sync.WaitGroup
	lists     turns // of List
}

func options(cfg Config) []grpc.ServerOption {
	ch := &chain{
		log: cfg.Logger, tenants: cfg.Tenants,
		limit:    newCallLimit(cfg.Limits, time.Now),
		patience: firstMessageTimeout,
	}
	return []grpc.ServerOption{
		grpc.Creds(&peerCreds{limit: newConnLimit(cfg.Limits, time.Now), tenants: cfg.Tenants, log: cfg.Logger}),
		grpc.MaxRecvMsgSize(wire.MaxMessageBytes),
		grpc.MaxSendMsgSize(wire.MaxReplyBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(uint32(min(cfg.Limits.CallsInFlight, connStreams))),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: idleTimeout,
			// A Unix socket says at once when the other side is gone. A client
			// that does not answer pings is one that was stopped (Ctrl-Z), and
			// must find its command running when it goes on.
			Time: math.MaxInt64,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.InTapHandle(ch.admit),
		grpc.ChainUnaryInterceptor(ch.unary),
		grpc.ChainStreamInterceptor(ch.stream),
		// Methods that do not exist are refused by admit; none gets here.
		grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
			return errors.New("unknown method passed the method table")
		}),
		grpc.WaitForHandlers(true),
	}
}

// Run serves l until ctx ends, and returns when all calls have ended and all
// goroutines are gone. It takes ownership of l. A Server runs once.
func (s *Server) Run(ctx context.Context, l net.Listener) error {
	served := make(chan error, 1)
	go func() { served <- s.grpc.Serve(l) }()
	var err error
	select {
	case <-ctx.Done():
		s.stop()
		err = <-served
	case err = <-served:
		s.grpc.Stop()
	}
	s.receivers.Wait()
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve api: %w", err)
	}
	return nil
}

// stop lets calls end for a moment, and then cancels them.
func (s *Server) stop() {
	hard := time.AfterFunc(stopGrace, s.grpc.Stop)
	defer hard.Stop()
	s.grpc.GracefulStop()
}
