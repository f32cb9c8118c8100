package ebpf

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The probe reads one command a line and answers one line: the errno's name,
// or "ok" with whatever the command gives back. It holds one socket at a time.
//
//	socket KIND        a new socket in place of the old
//	connect ADDR       on the socket, also for UDP
//	sendto ADDR        one byte, without connecting
//	fastopen ADDR      one byte with MSG_FASTOPEN
//	bind ADDR          gives back the port
//	serve              listen, accept one, echo one byte
//	repeat N CMD ADDR  gives back how many of N were EPERM
//	time N CMD ADDR    gives back the median in ns
type probe struct {
	fd     int
	family int
}

func probeMain(in io.Reader, out io.Writer) int {
	p := &probe{fd: -1}
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		answer, err := p.run(strings.Fields(lines.Text()))
		if err != nil {
			answer = errnoName(err)
		} else {
			answer = strings.TrimSpace("ok " + answer)
		}
		if _, err := fmt.Fprintln(out, answer); err != nil {
			return 1
		}
	}
	return 0
}

func errnoName(err error) string {
	var e unix.Errno
	if !errors.As(err, &e) {
		return err.Error()
	}
	return unix.ErrnoName(e)
}

func (p *probe) run(args []string) (string, error) {
	switch args[0] {
	case "socket":
		return "", p.socket(args[1])
	case "serve":
		return "", p.serve()
	case "repeat", "time":
		return p.many(args)
	default:
		return p.address(args[0], args[1])
	}
}

func (p *probe) socket(kind string) error {
	unix.Close(p.fd)
	k, ok := map[string][3]int{
		"tcp4":     {unix.AF_INET, unix.SOCK_STREAM, 0},
		"tcp6":     {unix.AF_INET6, unix.SOCK_STREAM, 0},
		"udp4":     {unix.AF_INET, unix.SOCK_DGRAM, 0},
		"udp6":     {unix.AF_INET6, unix.SOCK_DGRAM, 0},
		"ping4":    {unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP},
		"ping6":    {unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6},
		"raw4":     {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP},
		"raw6":     {unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_TCP},
		"mptcp4":   {unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP},
		"mptcp6":   {unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_MPTCP},
		"udplite4": {unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDPLITE},
		"unix":     {unix.AF_UNIX, unix.SOCK_STREAM, 0},
	}[kind]
	if !ok {
		return fmt.Errorf("no socket kind %q", kind)
	}
	p.family = k[0]
	var err error
	p.fd, err = unix.Socket(k[0], k[1]|unix.SOCK_CLOEXEC, k[2])
	return err
}

func (p *probe) address(op, addr string) (string, error) {
	to, err := p.sockaddr(addr)
	if err != nil {
		return "", err
	}
	switch op {
	case "connect":
		return "", unix.Connect(p.fd, to)
	case "sendto":
		return "", unix.Sendto(p.fd, []byte{'x'}, 0, to)
	case "fastopen":
		return "", unix.Sendto(p.fd, []byte{'x'}, unix.MSG_FASTOPEN, to)
	case "bind":
		if err := unix.Bind(p.fd, to); err != nil {
			return "", err
		}
		return p.port()
	default:
		return "", fmt.Errorf("no command %q", op)
	}
}

func (p *probe) sockaddr(s string) (unix.Sockaddr, error) {
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		return nil, err
	}
	if p.family == unix.AF_INET {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}, nil
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}, nil
}

func (p *probe) port() (string, error) {
	sa, err := unix.Getsockname(p.fd)
	if err != nil {
		return "", err
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return strconv.Itoa(sa.Port), nil
	case *unix.SockaddrInet6:
		return strconv.Itoa(sa.Port), nil
	}
	return "", fmt.Errorf("unexpected socket name %T", sa)
}

func (p *probe) serve() error {
	if err := unix.Listen(p.fd, 8); err != nil {
		return err
	}
	go func(fd int) {
		conn, _, err := unix.Accept(fd)
		if err != nil {
			return
		}
		defer unix.Close(conn)
		var b [1]byte
		if n, err := unix.Read(conn, b[:]); err == nil && n == 1 {
			_, _ = unix.Write(conn, b[:])
		}
	}(p.fd)
	return nil
}

func (p *probe) many(args []string) (string, error) {
	n, err := strconv.Atoi(args[1])
	if err != nil {
		return "", err
	}
	to, err := p.sockaddr(args[3])
	if err != nil {
		return "", err
	}
	op := func() error { return unix.Connect(p.fd, to) }
	if args[2] == "sendto" {
		op = func() error { return unix.Sendto(p.fd, []byte{'x'}, 0, to) }
	}
	refused := 0
	took := make([]time.Duration, n)
	for i := range n {
		start := time.Now()
		err := op()
		took[i] = time.Since(start)
		if errors.Is(err, unix.EPERM) {
			refused++
		}
	}
	if args[0] == "repeat" {
		return strconv.Itoa(refused), nil
	}
	slices.Sort(took)
	return strconv.FormatInt(took[n/2].Nanoseconds(), 10), nil
}
