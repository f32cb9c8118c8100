package arch

import "strings"

// layers is the picture of the tree: what each package imports of ours,
// exactly. Arrows point down only: cmd, api, supervisor, jail; what acts on
// the host (jail/linux, ebpf, artifacts) is plugged into the interfaces that
// supervisor declares, and knows nothing of the others.
var layers = map[string][]string{
	// Pure ground.
	"internal/fault":      {},
	"internal/cleanup":    {},
	"internal/sys":        {},
	"internal/strictyaml": {"internal/fault"},
	"internal/peer":       {},
	"internal/feature":    {},

	// What is wanted, as data.
	"netpolicy":             {},
	"jail":                  {"internal/fault"},
	"jail/seccomp":          {},
	"supervisor/envelope":   {"internal/fault", "internal/strictyaml"},
	"supervisor/hostpolicy": {"internal/fault", "internal/strictyaml", "supervisor/envelope"},
	"supervisor/evidence":   {"jail", "supervisor/envelope"},

	// What decides.
	"supervisor": {
		"internal/fault", "jail", "supervisor/envelope", "supervisor/evidence", "supervisor/hostpolicy",
	},

	// What acts on the host, behind supervisor's interfaces.
	"jail/initproc": {"internal/sys"},
	"jail/linux": {
		"internal/cleanup", "internal/fault", "internal/sys",
		"jail", "jail/initproc", "jail/seccomp", "supervisor",
	},
	"ebpf": {"internal/cleanup", "internal/fault", "internal/sys", "supervisor"},
	"artifacts": {
		"artifacts/unpack", "internal/cleanup", "internal/fault", "internal/sys",
		"jail", "supervisor/envelope",
	},
	"artifacts/unpack": {"internal/fault", "internal/sys"},
	"egressproxy":      {},

	// What callers reach.
	"api/v1":   {},
	"api/wire": {"api/v1", "internal/fault", "supervisor/envelope"},
	"api": {
		"api/v1", "api/wire", "internal/fault", "internal/peer",
		"supervisor", "supervisor/envelope", "supervisor/hostpolicy",
	},
	"api/apitest": {
		"api", "internal/fault", "jail", "supervisor", "supervisor/envelope",
		"supervisor/hostpolicy",
	},
	"api/client": {"api/v1", "api/wire", "supervisor/envelope"},
	"broker":     {},

	// What wires it.
	"cmd/cordon-init": {"jail/initproc"},
	"cmd/cordon": {
		"api/client", "internal/fault", "internal/strictyaml",
		"supervisor/envelope", "supervisor/evidence",
	},
	"cmd/cordond": {
		"api", "artifacts", "artifacts/unpack", "ebpf", "internal/cleanup",
		"internal/fault", "internal/feature", "internal/sys", "jail", "jail/linux",
		"supervisor", "supervisor/hostpolicy",
	},
}

// A moduleRule says who may import what lies below a path.
type moduleRule struct {
	path  string
	only  []string // exact packages; none: nobody
	tests bool     // tests may, everywhere
	why   string
}

// modules is complete: a third-party module without a row may not be used.
var modules = []moduleRule{
	{
		path: "google.golang.org/grpc", only: []string{"api", "api/v1", "api/client"}, tests: true,
		why: "no transport type goes further than the API",
	},
	{
		path: "google.golang.org/protobuf", only: []string{"api", "api/client", "api/v1", "api/wire"}, tests: true,
		why: "messages are converted at the border",
	},
	{
		path: "golang.org/x/time", only: []string{"api"},
		why: "rate limits belong to the server chain",
	},
	{
		path: "github.com/cilium/ebpf", only: []string{"ebpf"},
		why: "one package loads programs into the kernel",
	},
	{
		path: "github.com/moby/sys/mountinfo", only: []string{"ebpf"},
		why: "to find the bpffs; the jail's mounts are read by jail/linux itself",
	},
	{
		path: "github.com/opencontainers", only: []string{"jail/linux"},
		why: "libcontainer and its types stay behind supervisor.Jailer",
	},
	{
		path: "github.com/containerd/cgroups/v3", only: []string{"jail/linux"},
		why: "cgroups are made and removed in one place",
	},
	{
		path: "github.com/vishvananda", only: []string{"jail/linux"},
		why: "a jail's loopback is set up where the jail is",
	},
	{
		path: "github.com/seccomp/libseccomp-golang", only: []string{"jail/linux"},
		why: "filters are compiled in one place",
	},
	{
		path: "go.etcd.io/bbolt", only: []string{"supervisor"},
		why: "the journal is the one store of the daemon",
	},
	{
		path: "github.com/gowebpki/jcs", only: []string{"supervisor/envelope", "supervisor/evidence", "supervisor/hostpolicy"},
		why: "what is digested or signed has one form, RFC 8785",
	},
	{
		path: "go.yaml.in/yaml", only: []string{"internal/strictyaml"},
		why: "documents are read strictly, in one place",
	},
	{
		path: "pault.ag/go/debian", only: []string{"artifacts"},
		why: "the host image is made of the host's package database",
	},
	{
		path: "github.com/spf13", only: []string{"cmd/cordon"},
		why: "flags are read in cmd",
	},
	{
		path: "golang.org/x/term", only: []string{"cmd/cordon"},
		why: "the terminal is the command line's",
	},
	{
		path: "golang.org/x/sys/unix", tests: true,
		only: []string{
			"api", "artifacts", "artifacts/unpack", "cmd/cordon-init", "ebpf",
			"internal/feature", "internal/peer", "internal/sys", "jail/initproc", "jail/linux",
		},
		why: "raw system calls go through internal/sys, or stay in the packages that act on the host",
	},
	{path: "golang.org/x/net/bpf", tests: true, why: "its machine runs compiled filters: for tests"},
	{path: "github.com/google/go-cmp", tests: true, why: "it panics where it cannot compare: for tests"},
	{path: "go.uber.org/goleak", tests: true, why: "it looks for leaks: for tests"},
	{path: "github.com/stretchr/testify", why: "tests use the standard library and go-cmp"},
	{path: "github.com/sirupsen/logrus", why: "the log is log/slog, handed in by Config"},
	{path: "github.com/pkg/errors", why: "errors are wrapped with %w"},
}

// A keptRule names what packages must not reach, directly or through ours.
type keptRule struct {
	pkgs []string
	from []string
	why  string
}

var kept = []keptRule{
	{
		pkgs: []string{"jail", "jail/seccomp", "netpolicy", "supervisor/envelope", "supervisor/hostpolicy"},
		from: []string{
			"os", "os/...", "net", "net/http/...", "syscall", "unsafe", "C",
			"golang.org/x/sys/...", "math/rand/...", "crypto/rand", "log/...",
			"github.com/cilium/...", "github.com/opencontainers/...", "google.golang.org/...",
		},
		why: "it is pure: facts come in as arguments, the same input gives the same bytes on any OS",
	},
	{
		pkgs: []string{"supervisor", "supervisor/evidence"},
		from: []string{
			// Not syscall, whose error numbers tell a full disk; its functions
			// are in calls below.
			"os/exec", "net", "net/http/...", "unsafe", "C",
			"golang.org/x/sys/...", "github.com/cilium/...", "github.com/opencontainers/...",
			"github.com/containerd/...", "google.golang.org/...",
		},
		why: "it decides; what acts on the host is plugged into its interfaces",
	},
	{
		pkgs: []string{"jail/initproc"},
		from: []string{
			"os/exec", "net", "net/http/...", "C", "google.golang.org/...",
			"github.com/opencontainers/...", "github.com/containerd/...", "go.yaml.in/...",
		},
		why: "PID 1 of a jail is static and tiny",
	},
	{
		pkgs: []string{"api/client", "broker"},
		from: []string{
			"supervisor", "artifacts/...", "ebpf", "jail/...", "C",
			"github.com/opencontainers/...", "github.com/cilium/...",
		},
		why: "controllers link it: the daemon's insides stay out",
	},
}

// cgoPackages may use cgo; linuxPackages are for Linux as a whole, so that a
// suffix on each file would say nothing.
var (
	cgoPackages   = []string{"cmd/cordond", "jail/linux"}
	linuxPackages = []string{"jail/linux", "cmd/cordon-init", "cmd/cordond"}
)

// A callRule holds functions of the standard library to packages.
type callRule struct {
	calls []string // "path.Name"; "path.*" is all of a package
	only  []string // these may
	never []string // these may not; none: all others may not
	tests bool     // test files too
	why   string
}

func (r callRule) matches(call string) bool {
	for _, c := range r.calls {
		base, all := strings.CutSuffix(c, "*")
		if call == c || all && strings.HasPrefix(call, base) && !strings.Contains(call[len(base):], "/") {
			return true
		}
	}
	return false
}

var calls = []callRule{
	{
		calls: []string{"time.Now", "time.Since", "time.Until", "time.After", "time.NewTimer", "time.NewTicker"},
		never: []string{"jail", "jail/seccomp", "netpolicy", "supervisor/envelope", "supervisor/hostpolicy"},
		why:   "a pure package reads no clock",
	},
	{
		calls: []string{"time.Sleep"}, tests: true,
		// PollUntil, for kernel state without an event; and bubbles of
		// testing/synctest, where time is the event.
		only: []string{"internal/sys", "supervisor", "artifacts"},
		why:  "wait for the event, not for a while",
	},
	{
		calls: []string{"syscall.Syscall", "syscall.RawSyscall", "syscall.Open", "syscall.Mount", "syscall.Kill"},
		never: []string{"supervisor"},
		why:   "it decides; what acts on the host is plugged into its interfaces",
	},
	{
		calls: []string{"os.Getenv", "os.LookupEnv", "os.Environ", "flag.*"},
		only:  []string{"cmd/..."},
		why:   "flags and environment are read in cmd",
	},
	{
		calls: []string{"os.Exit", "log.*"},
		only:  []string{"cmd/..."},
		why:   "errors are returned; main ends the program",
	},
	{
		calls: []string{"fmt.Print", "fmt.Println", "fmt.Printf"},
		why:   "only a command line prints",
	},
	{
		calls: []string{"os/exec.Command", "os/exec.CommandContext"},
		only:  []string{"artifacts", "jail/linux"}, // the unpack worker; the maker, mkfs.ext4
		why:   "programs are started in few places",
	},
	{
		calls: []string{"net.Dial*", "net.Listen*", "net.FileConn", "net.FileListener"},
		only:  []string{"api", "api/client"},
		why:   "sockets are opened in few places",
	},
	{
		calls: []string{"os.IsNotExist", "os.IsExist", "os.IsPermission", "os.IsTimeout"}, tests: true,
		why: "they do not see wrapped errors: use errors.Is",
	},
}
