package ebpf

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// BenchmarkDenied gives the median of refused calls in a lease, as a process
// there sees it. The first few of a lease also write an event.
func BenchmarkDenied(b *testing.B) {
	for _, bb := range []struct{ name, socket, act, addr string }{
		{"connect4", "tcp4", "connect", "127.0.0.1:9"},
		{"connect6", "tcp6", "connect", "[::1]:9"},
		{"sendmsg4", "udp4", "sendto", "127.0.0.1:9"},
	} {
		b.Run(bb.name, func(b *testing.B) {
			h := newHost(b)
			_, lease, _ := h.admitted(b)
			p := startProbe(b, lease)
			p.do(b, "socket "+bb.socket)
			b.ResetTimer()
			answer := p.do(b, "time "+strconv.Itoa(b.N)+" "+bb.act+" "+bb.addr)
			b.StopTimer()
			ns, err := strconv.ParseFloat(strings.TrimPrefix(answer, "ok "), 64)
			if err != nil {
				b.Fatal(answer)
			}
			b.ReportMetric(ns, "p50-ns")
		})
	}
}

func BenchmarkAdmitForget(b *testing.B) {
	h := newHost(b)
	f := h.load(b)
	later := time.Now().Add(time.Hour)
	for b.Loop() {
		if err := f.Admit(12345, later); err != nil {
			b.Fatal(err)
		}
		if _, err := f.Forget(12345); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLoad(b *testing.B) {
	h := newHost(b)
	for b.Loop() {
		f, err := Load(h.config())
		if err != nil {
			b.Fatal(err)
		}
		if err := f.Remove(); err != nil {
			b.Fatal(err)
		}
	}
}
