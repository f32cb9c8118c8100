package linux

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/opencontainers/runc/libcontainer/configs"
	libseccomp "github.com/seccomp/libseccomp-golang"
	"golang.org/x/sys/unix"

	"cordon/jail/seccomp"
)

var (
	errNoArch      = errors.New("no compiler for this architecture")
	errTooLong     = errors.New("program is longer than the kernel takes")
	errCutShort    = errors.New("program does not consist of whole instructions")
	errNotACompare = errors.New("unknown comparison")
)

// Compile turns a filter into a program as seccomp(2) takes it: an array of
// sock_filter in the machine's byte order. The filter is validated first.
//
// libseccomp compiles the rules. What it cannot say is put in front: numbers
// that the table does not know get the filter's answer for them, which would
// otherwise be the answer for refused calls.
func Compile(f seccomp.Filter) ([]byte, error) {
	if err := f.Validate(); err != nil {
		return nil, fmt.Errorf("compile filter: %w", err)
	}
	lib, err := newLibFilter(f)
	if err != nil {
		return nil, err
	}
	defer lib.Release()
	for _, r := range f.Rules {
		if err := addRule(lib, r); err != nil {
			return nil, fmt.Errorf("compile rule %s: %w", r.Name, err)
		}
	}
	body, err := exportProgram(lib)
	if err != nil {
		return nil, fmt.Errorf("compile filter: %w", err)
	}
	var prog bytes.Buffer
	if err := binary.Write(&prog, binary.NativeEndian, unknownNumbers(f)); err != nil {
		return nil, fmt.Errorf("compile filter: %w", err)
	}
	prog.Write(body)
	size := binary.Size(unix.SockFilter{})
	if prog.Len()%size != 0 {
		return nil, fmt.Errorf("compile filter: %d bytes: %w", prog.Len(), errCutShort)
	}
	if n := prog.Len() / size; n > unix.BPF_MAXINSNS {
		return nil, fmt.Errorf("compile filter: %d instructions: %w", n, errTooLong)
	}
	return prog.Bytes(), nil
}

// newLibFilter makes a library filter without rules. The caller releases it.
func newLibFilter(f seccomp.Filter) (*libseccomp.ScmpFilter, error) {
	native, err := libseccomp.GetNativeArch()
	if err != nil {
		return nil, fmt.Errorf("find native architecture: %w", err)
	}
	// The library puts the native architecture into each filter.
	if f.Arch != seccomp.AMD64 || native != libseccomp.ArchAMD64 {
		return nil, fmt.Errorf("compile filter for arch %#x on %v: %w", uint32(f.Arch), native, errNoArch)
	}
	lib, err := libseccomp.NewFilter(libAction(f.Default))
	if err != nil {
		return nil, fmt.Errorf("make filter: %w", err)
	}
	// The library's own choice would end only the thread.
	if err := lib.SetBadArchAction(libAction(f.BadArch)); err != nil {
		lib.Release()
		return nil, fmt.Errorf("set action for other architectures: %w", err)
	}
	// 2 sorts the numbers into a tree instead of a list.
	if err := lib.SetOptimize(2); err != nil {
		lib.Release()
		return nil, fmt.Errorf("set optimization: %w", err)
	}
	return lib, nil
}

func libAction(a seccomp.Action) libseccomp.ScmpAction {
	if n, ok := a.Errno(); ok {
		return libseccomp.ActErrno.SetReturnCode(int16(n))
	}
	if a == seccomp.Allow {
		return libseccomp.ActAllow
	}
	return libseccomp.ActKillProcess
}

// addRule adds a rule by its number: the library of a stable distribution does
// not know the names of newer calls. Exact forbids the library to bend a rule
// that it cannot express.
func addRule(lib *libseccomp.ScmpFilter, r seccomp.Rule) error {
	call := libseccomp.ScmpSyscall(r.Number)
	if len(r.When) == 0 {
		return lib.AddRuleExact(call, libAction(r.Action))
	}
	for _, m := range r.When {
		conds := make([]libseccomp.ScmpCondition, len(m.Conds))
		for i, c := range m.Conds {
			var err error
			if conds[i], err = libCondition(c); err != nil {
				return err
			}
		}
		if err := lib.AddRuleConditionalExact(call, libAction(r.Action), conds); err != nil {
			return fmt.Errorf("alternative %v: %w", m, err)
		}
	}
	return nil
}

func libCondition(c seccomp.Cond) (libseccomp.ScmpCondition, error) {
	switch c.Op {
	case seccomp.Equal:
		return libseccomp.MakeCondition(uint(c.Arg), libseccomp.CompareEqual, c.Value)
	case seccomp.MaskedEqual:
		return libseccomp.MakeCondition(uint(c.Arg), libseccomp.CompareMaskedEqual, c.Mask, c.Value)
	default:
		return libseccomp.ScmpCondition{}, errNotACompare
	}
}

// exportProgram reads the compiled program back through a file in memory: the
// library's call for a buffer is newer than 2.5.
func exportProgram(lib *libseccomp.ScmpFilter) ([]byte, error) {
	fd, err := unix.MemfdCreate("seccomp", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	file := os.NewFile(uintptr(fd), "seccomp")
	defer file.Close()
	if err := lib.ExportBPF(file); err != nil {
		return nil, fmt.Errorf("export program: %w", err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(file)
}

// Offsets in the kernel's struct seccomp_data.
const (
	dataNumber = 0
	dataArch   = 4
)

// unknownNumbers answers for numbers without a name, and lets all others and
// other ABIs fall through to what follows.
func unknownNumbers(f seccomp.Filter) []unix.SockFilter {
	const (
		load = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		jump = unix.BPF_JMP | unix.BPF_K
	)
	gaps := unnamed(f.Arch)
	// Two instructions for each gap, then the way past the answer.
	answer := uint8(6 + 2*len(gaps) + 1)
	prog := []unix.SockFilter{{Code: load, K: dataArch}}
	// test appends a comparison; the targets are indices of instructions, 0
	// is the next one.
	test := func(op uint16, k uint32, yes, no uint8) {
		from := func(to uint8) uint8 {
			if to == 0 {
				return 0
			}
			return to - uint8(len(prog)) - 1
		}
		prog = append(prog, unix.SockFilter{Code: jump | op, K: k, Jt: from(yes), Jf: from(no)})
	}
	test(unix.BPF_JEQ, uint32(f.Arch), 0, answer+1)
	prog = append(prog, unix.SockFilter{Code: load, K: dataNumber})
	test(unix.BPF_JEQ, seccomp.NoCall, answer, 0)
	test(unix.BPF_JSET, seccomp.X32Bit, answer+1, 0)
	test(unix.BPF_JGT, f.Arch.Last(), answer, 0)
	for _, g := range gaps {
		test(unix.BPF_JGE, g[0], 0, uint8(len(prog))+2)
		test(unix.BPF_JGT, g[1], 0, answer)
	}
	return append(prog,
		unix.SockFilter{Code: jump | unix.BPF_JA, K: 1},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: f.Unknown.Kernel()})
}

// unnamed lists the ranges of numbers that were never given out, first and
// last, up to the largest number with a name.
func unnamed(a seccomp.Arch) [][2]uint32 {
	var gaps [][2]uint32
	for n := uint32(0); n <= a.Last(); n++ {
		switch {
		case a.Name(n) != "":
		case len(gaps) > 0 && gaps[len(gaps)-1][1] == n-1:
			gaps[len(gaps)-1][1] = n
		default:
			gaps = append(gaps, [2]uint32{n, n})
		}
	}
	return gaps
}

// libcontainerSeccomp says a valid filter in libcontainer's words. What that
// library can say is less, and never weaker:
//
//   - Calls of other ABIs end the thread, not the process.
//   - Names that the installed libseccomp does not know are skipped, and
//     refused with ENOSYS by a test that libcontainer adds, or as default.
//   - Numbers never given out, between those that were, are refused as default.
//
// Each alternative becomes an entry of its own, since several conditions on
// one argument in one entry would be taken as alternatives of each other.
func libcontainerSeccomp(f seccomp.Filter) *configs.Seccomp {
	action, ret := containerAction(f.Default)
	out := &configs.Seccomp{
		DefaultAction:   action,
		DefaultErrnoRet: ret,
		Architectures:   []string{"amd64"},
	}
	for _, r := range f.Rules {
		action, ret := containerAction(r.Action)
		if len(r.When) == 0 {
			out.Syscalls = append(out.Syscalls, &configs.Syscall{Name: r.Name, Action: action, ErrnoRet: ret})
		}
		for _, m := range r.When {
			out.Syscalls = append(out.Syscalls, &configs.Syscall{
				Name: r.Name, Action: action, ErrnoRet: ret, Args: containerArgs(m),
			})
		}
	}
	return out
}

func containerAction(a seccomp.Action) (configs.Action, *uint) {
	if n, ok := a.Errno(); ok {
		ret := uint(n)
		return configs.Errno, &ret
	}
	if a == seccomp.Allow {
		return configs.Allow, nil
	}
	return configs.KillProcess, nil
}

func containerArgs(m seccomp.Match) []*configs.Arg {
	args := make([]*configs.Arg, len(m.Conds))
	for i, c := range m.Conds {
		// The zero Operator, for an Op that Validate refuses, is an error to
		// libcontainer.
		args[i] = &configs.Arg{Index: uint(c.Arg)}
		switch c.Op {
		case seccomp.Equal:
			args[i].Op, args[i].Value = configs.EqualTo, c.Value
		case seccomp.MaskedEqual:
			args[i].Op, args[i].Value, args[i].ValueTwo = configs.MaskEqualTo, c.Mask, c.Value
		}
	}
	return args
}
