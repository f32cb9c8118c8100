package seccomp

import "testing"

// call is a call by name with its first arguments.
func call(name string, args ...uint64) (uint32, [6]uint64) {
	n, ok := AMD64.Number(name)
	if !ok {
		panic("no call " + name)
	}
	var a [6]uint64
	copy(a[:], args)
	return n, a
}

const (
	hi  = 1 << 32
	eof = ^uint64(0)
)

// Of what is refused, and so has no name in the rules.
const afNetlink, sockRaw = 16, 3

func TestDefaultDecides(t *testing.T) {
	refuse := Errno(EPERM)
	tests := []struct {
		name string
		args []uint64
		want Action
	}{
		{"read", nil, Allow},
		{"execve", []uint64{eof, eof, eof}, Allow},
		{"clone3", nil, Errno(ENOSYS)},
		{"mount", nil, refuse},
		{"ptrace", nil, refuse},
		{"bpf", nil, refuse},
		{"io_uring_setup", nil, refuse},
		{"unshare", nil, refuse},
		{"keyctl", nil, refuse},
		{"capset", nil, refuse},
		{"listns", nil, refuse},

		{"socket", []uint64{afUnix, sockStream, 0}, Allow},
		{"socket", []uint64{afUnix, sockSeqpack | sockFlags, 0}, Allow},
		{"socket", []uint64{afUnix, sockRaw, 0}, refuse},
		{"socket", []uint64{afInet, sockStream, 0}, Allow},
		{"socket", []uint64{afInet6, sockStream | sockFlags, protoTCP}, Allow},
		{"socket", []uint64{afInet, sockDgram, protoUDP}, Allow},
		{"socket", []uint64{afInet, sockDgram, protoTCP}, refuse},
		{"socket", []uint64{afInet, sockDgram, 1}, refuse},     // ping
		{"socket", []uint64{afInet, sockDgram, 136}, refuse},   // UDP-Lite
		{"socket", []uint64{afInet, sockStream, 132}, refuse},  // SCTP
		{"socket", []uint64{afInet, sockSeqpack, 132}, refuse}, // SCTP
		{"socket", []uint64{afInet, sockRaw, 1}, refuse},
		{"socket", []uint64{afInet, sockRaw, 255}, refuse},
		{"socket", []uint64{afInet6, sockStream, protoMPTCP}, Errno(EPROTONOSUPPORT)},
		{"socket", []uint64{afInet, sockStream | sockFlags, protoMPTCP}, Errno(EPROTONOSUPPORT)},
		{"socket", []uint64{afUnix, sockStream, protoMPTCP}, refuse},
		{"socket", []uint64{afNetlink, sockRaw | sockFlags, 0}, refuse}, // its buffers are charged to nobody
		{"socket", []uint64{afNetlink, sockRaw, 12}, refuse},            // netfilter
		{"socket", []uint64{afNetlink, sockDgram, 16}, refuse},
		{"socket", []uint64{17, sockRaw, 0}, refuse},            // AF_PACKET
		{"socket", []uint64{38, sockSeqpack, 0}, refuse},        // AF_ALG
		{"socket", []uint64{40, sockStream, 0}, refuse},         // AF_VSOCK
		{"socket", []uint64{44, sockRaw, 0}, refuse},            // AF_XDP
		{"socket", []uint64{0, sockStream, 0}, refuse},          // AF_UNSPEC
		{"socket", []uint64{afInet, 0x12, 0}, refuse},           // beyond the type's four bits
		{"socket", []uint64{afInet | hi, sockStream, 0}, Allow}, // the kernel sees AF_INET
		{"socket", []uint64{17 | hi, sockRaw, 0}, refuse},       // and here AF_PACKET
		{"socket", []uint64{afInet, sockStream, protoMPTCP | hi}, Errno(EPROTONOSUPPORT)},
		{"socketpair", []uint64{afUnix, sockStream, 0}, Allow},
		{"socketpair", []uint64{afInet, sockStream, 0}, refuse},

		{"fcntl", []uint64{0, 3}, Allow},     // F_GETFL
		{"fcntl", []uint64{0, 1030}, Allow},  // F_DUPFD_CLOEXEC
		{"fcntl", []uint64{0, 1024}, refuse}, // F_SETLEASE: holds up others' open
		{"fcntl", []uint64{0, 1024 | hi}, refuse},
		{"fcntl", []uint64{0, 1026}, refuse},       // F_NOTIFY
		{"fcntl", []uint64{0, 1031}, refuse},       // F_SETPIPE_SZ
		{"setsockopt", []uint64{0, 1, 2}, Allow},   // SO_REUSEADDR
		{"setsockopt", []uint64{0, 6, 1}, Allow},   // TCP_NODELAY
		{"setsockopt", []uint64{0, 1, 26}, refuse}, // SO_ATTACH_FILTER
		{"setsockopt", []uint64{0, 1 | hi, 26 | hi}, refuse},
		{"setsockopt", []uint64{0, 1, 50}, refuse},   // SO_ATTACH_BPF
		{"setsockopt", []uint64{0, 1, 51}, refuse},   // SO_ATTACH_REUSEPORT_CBPF
		{"setsockopt", []uint64{0, 263, 1}, refuse},  // SOL_PACKET
		{"clone", []uint64{0x3d0f00}, Allow},         // pthread_create
		{"clone", []uint64{0x4011 | hi}, Allow},      // vfork; high bits are ignored
		{"clone", []uint64{0x1000 | 17}, Allow},      // with a pidfd
		{"clone", []uint64{cloneNewUser}, refuse},    //
		{"clone", []uint64{cloneNewNS | 17}, refuse}, //
		{"clone", []uint64{cloneNewNet | hi}, refuse},
		{"clone", []uint64{cloneIO}, refuse},

		{"ioctl", []uint64{0, 0x5401}, Allow},
		{"ioctl", []uint64{0, 0xffffffff80045430}, Allow}, // as a C library extends it
		{"ioctl", []uint64{0, 0x5412}, refuse},            // TIOCSTI
		{"ioctl", []uint64{0, 0x5412 | hi}, refuse},
		{"ioctl", []uint64{0, 0x541c}, refuse},     // TIOCLINUX
		{"ioctl", []uint64{0, 0x5423}, refuse},     // TIOCSETD
		{"ioctl", []uint64{0, 0x40086602}, refuse}, // FS_IOC_SETFLAGS
		{"ioctl", []uint64{0, 0x401c5820}, refuse}, // FS_IOC_FSSETXATTR
		{"ioctl", []uint64{0, 0x40049409}, refuse}, // FICLONE
		{"ioctl", []uint64{0, 0x4020940d}, refuse}, // FICLONERANGE
		{"ioctl", []uint64{0, 0xc0189436}, refuse}, // FIDEDUPERANGE
		{"ioctl", []uint64{0, 0xb701}, refuse},     // NS_GET_USERNS

		{"prctl", []uint64{15}, Allow},
		{"prctl", []uint64{22, 2}, Allow},
		{"prctl", []uint64{22, 1}, refuse},
		{"prctl", []uint64{22, 2 | hi}, refuse},
		{"prctl", []uint64{24}, refuse}, // PR_CAPBSET_DROP
		{"prctl", []uint64{35}, refuse}, // PR_SET_MM
		{"prctl", []uint64{47}, refuse}, // PR_CAP_AMBIENT
		{"prctl", []uint64{62}, refuse}, // PR_SCHED_CORE

		{"personality", []uint64{0}, Allow},
		{"personality", []uint64{0xffffffff}, Allow},
		{"personality", []uint64{eof}, Allow},
		{"personality", []uint64{0x0040000}, refuse}, // ADDR_NO_RANDOMIZE
		{"personality", []uint64{8}, refuse},

		{"mknod", []uint64{0, 0o100644}, Allow},
		{"mknod", []uint64{0, 0o010600}, Allow},
		{"mknod", []uint64{0, 0o140600}, Allow},
		{"mknod", []uint64{0, 0o020666}, refuse},
		{"mknodat", []uint64{0, 0, 0o644}, Allow},
		{"mknodat", []uint64{0, 0, 0o060600}, refuse},
		{"mknodat", []uint64{0, 0, 0o020600 | 1<<16}, refuse},

		{"seccomp", []uint64{1, 0}, Allow},
		{"seccomp", []uint64{1, 1}, Allow},
		{"seccomp", []uint64{1, 8}, refuse},
		{"seccomp", []uint64{1, 8 | 1}, refuse},
		{"seccomp", []uint64{0, 0}, refuse},
		{"seccomp", []uint64{2, 8}, Allow},
		{"seccomp", []uint64{4, 0}, refuse},

		{"sendto", []uint64{3, 0, 0, 0x4000}, Allow},
		{"sendto", []uint64{3, 0, 0, msgFastOpen}, refuse},
		{"sendmsg", []uint64{3, 0, msgFastOpen | 0x4000}, refuse},
		{"sendmsg", []uint64{3, 0, 0x4000}, Allow},
		{"sendmmsg", []uint64{3, 0, 1, msgFastOpen | hi}, refuse},
	}
	f := Default()
	for _, tt := range tests {
		n, args := call(tt.name, tt.args...)
		if got := f.Decide(uint32(AMD64), n, args); got != tt.want {
			t.Errorf("%s%#x: got %v, want %v", tt.name, tt.args, got, tt.want)
		}
	}
}

func TestOtherABIs(t *testing.T) {
	f := Default()
	tests := []struct {
		name         string
		arch, number uint32
		want         Action
	}{
		{"i386 read", 0x40000003, 3, KillProcess},
		{"arm64", 0xc00000b7, 0, KillProcess},
		{"no arch", 0, 0, KillProcess},
		{"x32 read", uint32(AMD64), X32Bit, KillProcess},
		{"x32 only", uint32(AMD64), X32Bit + 512, KillProcess},
		{"sign bit", uint32(AMD64), 1 << 31, Errno(ENOSYS)},
		{"sign bit and x32", uint32(AMD64), 1<<31 | X32Bit, KillProcess},
		{"skipped by a tracer", uint32(AMD64), NoCall, Errno(ENOSYS)},
		{"number of a later kernel", uint32(AMD64), AMD64.Last() + 1, Errno(ENOSYS)},
		{"never given out", uint32(AMD64), 400, Errno(ENOSYS)},
		{"x32 number without the bit", uint32(AMD64), 512, Errno(ENOSYS)},
		{"below x32", uint32(AMD64), X32Bit - 1, Errno(ENOSYS)},
	}
	for _, tt := range tests {
		if got := f.Decide(tt.arch, tt.number, [6]uint64{}); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}
