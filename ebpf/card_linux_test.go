package ebpf

import (
	"encoding/binary"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// card is a network card whose wire is the test: what the kernel sends comes
// out of the file, what is written to it arrives.
type card struct{ file *os.File }

func newCard(t *testing.T) card {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skipf("no tun device: %v", err)
	}
	ifr, err := unix.NewIfreq("tun0")
	if err != nil {
		t.Fatal(err)
	}
	ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), "tun0")
	t.Cleanup(func() { file.Close() })
	setAddress(t, unix.SIOCSIFADDR, []byte{10, 77, 0, 1})
	setAddress(t, unix.SIOCSIFNETMASK, []byte{255, 255, 255, 0})
	interfaceUp(t, "tun0")
	return card{file}
}

func setAddress(t *testing.T, request uint, addr []byte) {
	t.Helper()
	ifr, err := unix.NewIfreq("tun0")
	if err != nil {
		t.Fatal(err)
	}
	if err := ifr.SetInet4Addr(addr); err != nil {
		t.Fatal(err)
	}
	interfaceControl(t, request, ifr)
}

// answers reports whether a TCP packet to the port appears on the wire before
// stop says so.
func (c card) answers(t *testing.T, port uint16, stop func() bool) bool {
	t.Helper()
	buf := make([]byte, 2048)
	for !stop() {
		if err := c.file.SetReadDeadline(time.Now().Add(5 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		n, err := c.file.Read(buf)
		if err != nil || n < 40 || buf[0]>>4 != 4 || buf[9] != unix.IPPROTO_TCP {
			continue
		}
		if binary.BigEndian.Uint16(buf[22:]) == port {
			return true
		}
	}
	return false
}

// syn is a connection request from 10.77.0.2 to 10.77.0.1.
func syn(from, to uint16) []byte {
	p := make([]byte, 40)
	p[0], p[8], p[9] = 0x45, 64, unix.IPPROTO_TCP
	binary.BigEndian.PutUint16(p[2:], 40)
	copy(p[12:], []byte{10, 77, 0, 2, 10, 77, 0, 1})
	tcp := p[20:]
	binary.BigEndian.PutUint16(tcp, from)
	binary.BigEndian.PutUint16(tcp[2:], to)
	tcp[12], tcp[13] = 5<<4, 0x02
	binary.BigEndian.PutUint16(tcp[14:], 1024)
	binary.BigEndian.PutUint16(p[10:], checksum(p[:20]))
	pseudo := append(append([]byte{}, p[12:20]...), 0, unix.IPPROTO_TCP, 0, 20)
	binary.BigEndian.PutUint16(tcp[16:], checksum(append(pseudo, tcp...)))
	return p
}

func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// TestPacketsLeaveOnlyByLoopback gives the namespace a card, as no sandbox
// has, and lets the kernel itself answer for a socket of the lease: no system
// call takes part, so only the packet hook can stop it.
func TestPacketsLeaveOnlyByLoopback(t *testing.T) {
	h := newHost(t)
	f, lease, id := h.admitted(t)
	wire := newCard(t)
	port := func(p *remote) uint16 {
		s, ok := strings.CutPrefix(p.do(t, "socket tcp4", "bind 0.0.0.0:0"), "ok ")
		n, err := strconv.ParseUint(s, 10, 16)
		if !ok || err != nil {
			t.Fatalf("bind: %s, %v", s, err)
		}
		if got := p.do(t, "serve"); got != "ok" {
			t.Fatal(got)
		}
		return uint16(n)
	}
	request := func(from, to uint16) {
		if _, err := wire.file.Write(syn(from, to)); err != nil {
			t.Fatal(err)
		}
	}
	limit := time.Now().Add(waitLimit)
	request(4001, port(startProbe(t, h.outside)))
	if !wire.answers(t, 4001, func() bool { return time.Now().After(limit) }) {
		t.Fatal("negative control: a listener outside does not answer on the card")
	}
	request(4002, port(startProbe(t, lease)))
	dropped := func() uint64 {
		c, err := f.Counters(id)
		if err != nil {
			t.Fatal(err)
		}
		return c.Denied["skb_egress"]
	}
	if wire.answers(t, 4002, func() bool { return dropped() > 0 || time.Now().After(limit) }) {
		t.Fatal("a listener in the lease answers on the card")
	}
	if dropped() == 0 {
		t.Fatal("no answer was made, none was dropped: the test proves nothing")
	}
	flows, err := f.Flows(id)
	if err != nil {
		t.Fatal(err)
	}
	d := flows.Destinations[0]
	if d.Hook != "skb_egress" || d.Address != "10.77.0.2" || d.Port != 4002 || d.Proto != "tcp" {
		t.Errorf("dropped packet: %+v", d)
	}
}
