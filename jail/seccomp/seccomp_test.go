package seccomp

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite golden files")

func TestGolden(t *testing.T) {
	for name, f := range map[string]Filter{"default": Default(), "init": Init()} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join("testdata", name+".golden")
			got := f.String()
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("policy changed (-golden +now):\n%s", diff)
			}
		})
	}
}

// TestEveryCallHasOnePlace fails when a kernel's new calls enter the table and
// nobody decided about them.
func TestEveryCallHasOnePlace(t *testing.T) {
	conditional := []string{
		"socket", "socketpair", "setsockopt", "fcntl", "clone", "clone3", "ioctl", "prctl", "seccomp",
		"personality", "mknod", "mknodat", "sendto", "sendmsg", "sendmmsg",
	}
	groups := append(allowed(), refused()...)
	groups = append(groups, group{why: "arguments"})
	places := make(map[string][]string)
	for _, g := range groups {
		names := g.names()
		if g.why == "arguments" {
			names = conditional
		}
		for _, name := range names {
			places[name] = append(places[name], g.why)
			if _, ok := AMD64.Number(name); !ok {
				t.Errorf("%s: not a call of this architecture", name)
			}
		}
	}
	for n := uint32(0); n <= AMD64.Last(); n++ {
		name := AMD64.Name(n)
		if name != "" && len(places[name]) != 1 {
			t.Errorf("%d %s: in %d places %q, want one", n, name, len(places[name]), places[name])
		}
	}
}

func TestProfilesAreValid(t *testing.T) {
	for name, f := range map[string]Filter{"default": Default(), "init": Init()} {
		if err := f.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if diff := cmp.Diff(Default(), Default()); diff != "" {
		t.Errorf("two calls differ:\n%s", diff)
	}
}

func TestZeroValuesRefuse(t *testing.T) {
	var f Filter
	if got := f.Decide(0, 0, [6]uint64{}); got != KillProcess {
		t.Errorf("zero filter: got %v, want kill", got)
	}
	if got := Action(0).Kernel(); got != 0x80000000 {
		t.Errorf("zero action: got %#x, want SECCOMP_RET_KILL_PROCESS", got)
	}
	if (Match{Conds: []Cond{{}}}).holds([6]uint64{}) {
		t.Error("a condition without a comparison holds")
	}
}

// TestInitAddsOnly holds PID 1's filter to Default and a short list.
func TestInitAddsOnly(t *testing.T) {
	count := func(f Filter) map[string]bool {
		out := make(map[string]bool)
		for _, r := range f.Rules {
			if len(r.When) == 0 {
				out[fmt.Sprintf("%s %v", r.Name, r.Action)] = true
			}
			for _, m := range r.When {
				out[fmt.Sprintf("%s %v when %v", r.Name, r.Action, m)] = true
			}
		}
		return out
	}
	less, more := count(Default()), count(Init())
	var added []string
	for k := range more {
		if !less[k] {
			added = append(added, k)
		}
	}
	slices.Sort(added)
	want := []string{
		"capset allow",
		"prctl allow when a0&0xffffffff == 0x18  (PR_CAPBSET_DROP)",
		"prctl allow when a0&0xffffffff == 0x2f  (PR_CAP_AMBIENT)",
	}
	if diff := cmp.Diff(want, added); diff != "" {
		t.Errorf("added (-want +got):\n%s", diff)
	}
	if len(more) != len(less)+len(want) {
		t.Errorf("init lacks something that default has")
	}
}

func TestValidateFindsFaults(t *testing.T) {
	read, fcntl := uint32(0), uint32(72)
	eq := func(arg uint8, v uint64) Match { return all("", Cond{Arg: arg, Op: Equal, Value: v}) }
	rule := func(a Action, when ...Match) Rule { return Rule{"fcntl", fcntl, a, when} }
	tests := []struct {
		name   string
		change func(*Filter)
		want   error
	}{
		{"nothing", func(*Filter) {}, nil},
		{"arch", func(f *Filter) { f.Arch = 7 }, errArch},
		{"default allows", func(f *Filter) { f.Default = Allow }, errPermits},
		{"unknown allows", func(f *Filter) { f.Unknown = Allow }, errPermits},
		{"other abi allows", func(f *Filter) { f.BadArch = Allow }, errPermits},
		{"default is no action", func(f *Filter) { f.Default = 99 }, errPermits},
		{"errno 0", func(f *Filter) { f.Rules[0].Action = Errno(0) }, errAction},
		{"rule is default", func(f *Filter) { f.Rules[0].Action = f.Default }, errIsDefault},
		{"wrong name", func(f *Filter) { f.Rules[0].Name = "write" }, errName},
		{"no name", func(f *Filter) { f.Rules[0] = Rule{Number: 400, Action: Allow} }, errName},
		{"order", func(f *Filter) { f.Rules = []Rule{rule(Allow), {"read", read, Allow, nil}} }, errOrder},
		{"no condition", func(f *Filter) { f.Rules[1] = rule(Allow, Match{}) }, errNoConds},
		{"argument 6", func(f *Filter) { f.Rules[1] = rule(Allow, eq(6, 0)) }, errArgument},
		{"argument twice", func(f *Filter) {
			f.Rules[1] = rule(Allow, all("", is(1, 2), bits(1, 1, 1)))
		}, errTwice},
		{"no comparison", func(f *Filter) { f.Rules[1] = rule(Allow, all("", Cond{})) }, errOp},
		{"value outside mask", func(f *Filter) { f.Rules[1] = rule(Allow, all("", bits(1, 2, 3))) }, errMask},
		{"empty mask", func(f *Filter) { f.Rules[1] = rule(Allow, all("", bits(1, 0, 0))) }, errMask},
		{"mask with equal", func(f *Filter) {
			f.Rules[1] = rule(Allow, all("", Cond{Op: Equal, Mask: 1}))
		}, errMask},
		{"overlap", func(f *Filter) {
			f.Rules = append(f.Rules, rule(Errno(ENOSYS), eq(2, 5)))
		}, errOverlap},
		{"overlap with always", func(f *Filter) { f.Rules = append(f.Rules, rule(Errno(ENOSYS))) }, errOverlap},
		{"apart", func(f *Filter) {
			f.Rules = append(f.Rules, rule(Errno(ENOSYS), all("", bits(1, 1, 0))))
		}, nil},
		{"two rules of one action", func(f *Filter) { f.Rules = append(f.Rules, rule(Allow, eq(1, 9))) }, errRepeated},
		{"alternative twice", func(f *Filter) {
			f.Rules[1].When = append(f.Rules[1].When, all("", is(1, 3)))
		}, errRepeated},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := Filter{
				Arch: AMD64, Unknown: Errno(ENOSYS), Default: Errno(EPERM),
				Rules: []Rule{{"read", read, Allow, nil}, rule(Allow, eq(1, 3))},
			}
			tt.change(&f)
			if err := f.Validate(); !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

func TestActionText(t *testing.T) {
	for a, want := range map[Action]string{
		KillProcess: "kill", Allow: "allow", Errno(EPERM): "EPERM", Errno(ENOSYS): "ENOSYS",
		Errno(EPROTONOSUPPORT): "EPROTONOSUPPORT", Errno(7): "errno 7", 99: "action(63)",
	} {
		if got := a.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	for a, want := range map[Action]uint32{Allow: 0x7fff0000, Errno(7): 0x50007, 99: 0x80000000} {
		if got := a.Kernel(); got != want {
			t.Errorf("%v: got %#x, want %#x", a, got, want)
		}
	}
}
