package linux

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/opencontainers/runc/libcontainer/configs"
	"golang.org/x/net/bpf"

	"cordon/jail/seccomp"
)

const (
	hi        = 1 << 32
	archI386  = 0x40000003
	archARM64 = 0xc00000b7
)

// sample is one system call as a filter sees it.
type sample struct {
	arch, number uint32
	args         [6]uint64
}

func (s sample) String() string {
	return fmt.Sprintf("arch %#x call %d %s%#x", s.arch, s.number, seccomp.AMD64.Name(s.number), s.args)
}

// machine runs a classic program as the kernel would.
type machine struct{ vm *bpf.VM }

func newMachine(t testing.TB, prog []byte) machine {
	t.Helper()
	raw := make([]bpf.RawInstruction, 0, len(prog)/8)
	for ; len(prog) >= 8; prog = prog[8:] {
		raw = append(raw, bpf.RawInstruction{
			Op: binary.NativeEndian.Uint16(prog), Jt: prog[2], Jf: prog[3], K: binary.NativeEndian.Uint32(prog[4:]),
		})
	}
	ins, ok := bpf.Disassemble(raw)
	if !ok || len(prog) != 0 {
		t.Fatalf("program does not decode: %d bytes left", len(prog))
	}
	vm, err := bpf.NewVM(ins)
	if err != nil {
		t.Fatal(err)
	}
	return machine{vm}
}

// run lays the call out as struct seccomp_data. The machine reads packets, in
// network order, and the program reads aligned words only, so each word is
// turned by itself.
func (m machine) run(t testing.TB, s sample) uint32 {
	var data [64]byte
	binary.BigEndian.PutUint32(data[dataNumber:], s.number)
	binary.BigEndian.PutUint32(data[dataArch:], s.arch)
	for i, a := range s.args {
		binary.BigEndian.PutUint32(data[16+8*i:], uint32(a))
		binary.BigEndian.PutUint32(data[20+8*i:], uint32(a>>32))
	}
	ret, err := m.vm.Run(data[:])
	if err != nil {
		t.Fatalf("%v: %v", s, err)
	}
	return uint32(ret)
}

func compiled(t testing.TB, f seccomp.Filter) machine {
	t.Helper()
	prog, err := Compile(f)
	if err != nil {
		t.Fatal(err)
	}
	return newMachine(t, prog)
}

func profiles() map[string]seccomp.Filter {
	return map[string]seccomp.Filter{"default": seccomp.Default(), "init": seccomp.Init()}
}

// corpus calls visit with every number of the table and beyond, in every ABI,
// and with the arguments at which the filter's rules could be off: each
// alternative met, each of its bits turned one by one, and all combinations
// of the values that any alternative names, with and without high bits.
func corpus(f seccomp.Filter, visit func(sample)) {
	numbers := []uint32{512, 547, 1 << 16, 1<<30 - 1, 1<<31 - 1, 1 << 31, 1<<32 - 2, 1<<32 - 1}
	for n := uint32(0); n <= f.Arch.Last()+40; n++ {
		numbers = append(numbers, n, n|1<<30, n|1<<31, n|1<<29)
	}
	for _, arch := range []uint32{uint32(f.Arch), archI386, archARM64, 0, uint32(f.Arch) ^ 1, 1<<32 - 1} {
		for _, n := range numbers {
			visit(sample{arch: arch, number: n})
			visit(sample{arch, n, [6]uint64{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}})
		}
	}
	for _, r := range f.Rules {
		for _, m := range r.When {
			turnBits(f, r, m, visit)
		}
	}
	for number, values := range argumentValues(f) {
		combine(sample{arch: uint32(f.Arch), number: number}, values, 0, visit)
	}
}

func turnBits(f seccomp.Filter, r seccomp.Rule, m seccomp.Match, visit func(sample)) {
	s := sample{arch: uint32(f.Arch), number: r.Number}
	for _, c := range m.Conds {
		s.args[c.Arg] = c.Value
	}
	visit(s)
	for arg := range s.args {
		for bit := range 64 {
			turned := s
			turned.args[arg] ^= 1 << bit
			visit(turned)
		}
	}
}

// argumentValues gathers, by number and argument, what the rules compare with
// and its neighbours.
func argumentValues(f seccomp.Filter) map[uint32]*[6][]uint64 {
	out := make(map[uint32]*[6][]uint64)
	for _, r := range f.Rules {
		for _, m := range r.When {
			v := out[r.Number]
			if v == nil {
				v = &[6][]uint64{}
				out[r.Number] = v
			}
			for _, c := range m.Conds {
				v[c.Arg] = append(v[c.Arg], c.Value, c.Value|hi, c.Value+1, c.Value-1,
					uint64(int64(int32(c.Value))), c.Value|0x80000, c.Value|0x800)
			}
		}
	}
	for _, v := range out {
		for arg := range v {
			v[arg] = unique(append(v[arg], 0, ^uint64(0)))
		}
	}
	return out
}

func unique(in []uint64) []uint64 {
	seen := make(map[uint64]bool)
	var out []uint64
	for _, v := range in {
		if !seen[v] {
			seen[v] = true
			out = append(out, v)
		}
	}
	return out
}

// combine visits all combinations of values; arguments that no rule looks at
// have two.
func combine(s sample, values *[6][]uint64, arg int, visit func(sample)) {
	if arg == len(values) {
		visit(s)
		return
	}
	for _, v := range values[arg] {
		s.args[arg] = v
		combine(s, values, arg+1, visit)
	}
}

func TestCompiledEqualsDecide(t *testing.T) {
	for name, f := range profiles() {
		t.Run(name, func(t *testing.T) {
			m := compiled(t, f)
			n, wrong := 0, 0
			corpus(f, func(s sample) {
				n++
				want := f.Decide(s.arch, s.number, s.args)
				if got := m.run(t, s); got != want.Kernel() && wrong < 20 {
					wrong++
					t.Errorf("%v: program %#x, want %v", s, got, want)
				}
			})
			t.Logf("%d calls compared", n)
		})
	}
}

// TestCompiledEqualsDecideAtRandom draws from all values of all rules for any
// number, so that no rule leaks into another.
func TestCompiledEqualsDecideAtRandom(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for name, f := range profiles() {
		t.Run(name, func(t *testing.T) {
			m := compiled(t, f)
			var pool []uint64
			for _, v := range argumentValues(f) {
				for _, list := range v {
					pool = append(pool, list...)
				}
			}
			for range 300000 {
				s := sample{arch: uint32(f.Arch), number: f.Rules[rnd.IntN(len(f.Rules))].Number}
				for i := range s.args {
					s.args[i] = pool[rnd.IntN(len(pool))]
					if rnd.IntN(4) == 0 {
						s.args[i] = rnd.Uint64()
					}
				}
				want := f.Decide(s.arch, s.number, s.args)
				if got := m.run(t, s); got != want.Kernel() {
					t.Fatalf("%v: program %#x, want %v", s, got, want)
				}
			}
		})
	}
}

func FuzzCompiledEqualsDecide(f *testing.F) {
	filter := seccomp.Init()
	m := compiled(f, filter)
	f.Add(uint32(seccomp.AMD64), uint32(41), uint64(2), uint64(1), uint64(262), uint64(0), uint64(0), uint64(0))
	f.Add(uint32(seccomp.AMD64), uint32(16), uint64(0), uint64(0xffffffff80045430), uint64(0), uint64(0), uint64(0), uint64(0))
	f.Add(uint32(archI386), uint32(102), uint64(1), uint64(0), uint64(0), uint64(0), uint64(0), uint64(0))
	f.Add(uint32(seccomp.AMD64), uint32(1<<30|41), uint64(2), uint64(1), uint64(0), uint64(0), uint64(0), uint64(0))
	f.Add(uint32(seccomp.AMD64), uint32(1<<32-1), uint64(0), uint64(0), uint64(0), uint64(0), uint64(0), uint64(0))
	f.Fuzz(func(t *testing.T, arch, number uint32, a, b, c, d, e, g uint64) {
		s := sample{arch, number, [6]uint64{a, b, c, d, e, g}}
		want := filter.Decide(s.arch, s.number, s.args)
		if got := m.run(t, s); got != want.Kernel() {
			t.Errorf("%v: program %#x, want %v", s, got, want)
		}
	})
}

func TestCompileRefuses(t *testing.T) {
	good := seccomp.Default()
	bad := map[string]func(*seccomp.Filter){
		"zero filter":   func(f *seccomp.Filter) { *f = seccomp.Filter{} },
		"another arch":  func(f *seccomp.Filter) { f.Arch = archARM64 },
		"allow default": func(f *seccomp.Filter) { f.Default = seccomp.Allow },
		"wrong number":  func(f *seccomp.Filter) { f.Rules = append([]seccomp.Rule{}, f.Rules...); f.Rules[0].Number = 1 },
	}
	for name, change := range bad {
		f := good
		change(&f)
		if _, err := Compile(f); err == nil {
			t.Errorf("%s: compiled", name)
		}
	}
}

func TestLibcontainerConfig(t *testing.T) {
	c := libcontainerSeccomp(seccomp.Default())
	if c.DefaultAction != configs.Errno || *c.DefaultErrnoRet != seccomp.EPERM {
		t.Errorf("default: %v %v", c.DefaultAction, *c.DefaultErrnoRet)
	}
	for _, s := range c.Syscalls {
		seen := [6]bool{}
		for _, a := range s.Args {
			if seen[a.Index] {
				t.Errorf("%s: argument %d twice, which libcontainer takes as alternatives", s.Name, a.Index)
			}
			seen[a.Index] = true
			if a.Op != configs.EqualTo && a.Op != configs.MaskEqualTo {
				t.Errorf("%s: comparison %d", s.Name, a.Op)
			}
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	for name, f := range profiles() {
		b.Run(name, func(b *testing.B) {
			size := 0
			for b.Loop() {
				prog, err := Compile(f)
				if err != nil {
					b.Fatal(err)
				}
				size = len(prog) / 8
			}
			b.ReportMetric(float64(size), "instructions")
		})
	}
}
