package supervisor

import (
	"context"
	"io"
	"os"
	"time"

	"cordon/jail"
	"cordon/supervisor/envelope"
)

// Jailer makes jails from plans; jail/linux implements it.
type Jailer interface {
	Features() jail.Features
	// Make builds the jail of plan, reads it back and returns it with PID 1
	// parked. On error nothing of it is left.
	Make(ctx context.Context, plan *jail.Plan) (Jail, error)
	// Sweep ends and removes everything of the named lease that an earlier
	// daemon left behind, and reports what it checked.
	Sweep(ctx context.Context, leaseID string) (jail.CleanupReport, error)
	// Strays lists lease ids that have traces on this host.
	Strays() ([]string, error)
}

// Jail is one live sandbox. Its methods are safe for concurrent use.
type Jail interface {
	CgroupID() uint64 // id of the lease's group in the v2 tree
	ReadBack() jail.ReadBack
	Exec(ctx context.Context, spec jail.ExecSpec) (Exec, error)
	// Freeze stops every process of the lease; Thaw lets them go on.
	Freeze(ctx context.Context) error
	Thaw() error
	Usage() (jail.Usage, error)
	// OpenArtifact opens a regular file of the workspace beneath its root,
	// following no link; the caller closes it. Call it frozen or dead.
	OpenArtifact(path string) (*os.File, error)
	// Done is closed when PID 1 has ended, for whatever reason.
	Done() <-chan struct{}
	// Close ends every process and removes everything, then lists again.
	// It is idempotent.
	Close(ctx context.Context) (jail.CleanupReport, error)
}

// Exec is one command in a jail. The reader side belongs to one goroutine.
type Exec interface {
	Stdin() io.WriteCloser // blocking; Close is end of file (or Ctrl-D on a tty)
	Stdout() io.Reader     // the terminal, with a tty
	Stderr() io.Reader     // nil with a tty
	Signal(sig int) error  // to the command's first process
	Resize(rows, cols uint16) error
	// Kill ends every process of the command, descendants included.
	Kill() error
	// Wait returns when the command's first process has ended. Stdout and
	// Stderr reach EOF soon after, even if a descendant holds them.
	Wait(ctx context.Context) (jail.ExecEnd, error)
	// Close releases what the host holds for the command. Its cgroup goes
	// when its last descendant has.
	Close() error
}

// Egress is the filter on the lease's cgroup; ebpf implements it.
type Egress interface {
	// Admit writes the lease's entry; without one everything is refused too,
	// but not counted by lease.
	Admit(cgroupID uint64, notAfter time.Time) error
	// Flows is what the lease tried so far.
	Flows(cgroupID uint64) (Flows, error)
	// Forget removes the entry and returns the last count.
	Forget(cgroupID uint64) (Flows, error)
}

// Flows are the network attempts of one lease.
type Flows struct {
	Denied       uint64        `json:"denied"` // exact
	Destinations []Destination `json:"destinations"`
	// Unlisted counts denied attempts that no entry of Destinations holds.
	Unlisted uint64 `json:"unlisted"`
}

// Destination is one address a lease tried to reach.
type Destination struct {
	Hook    string    `json:"hook"` // connect4, connect6, sendmsg4, ...
	Address string    `json:"address"`
	Port    uint16    `json:"port"`
	Proto   string    `json:"proto"` // tcp, udp
	Verdict string    `json:"verdict"`
	Errno   string    `json:"errno"`
	Count   uint64    `json:"count"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
}

// Store holds images and inputs; artifacts implements it.
type Store interface {
	// OpenImage returns a verified image; errors name the digest.
	OpenImage(digest string) (jail.Image, error)
	// Attach gathers a lease's inputs into one read-only directory and
	// verifies each digest. No inputs: an empty path.
	Attach(ctx context.Context, leaseID, tenant string, in []envelope.Input) (dir string, err error)
	// Detach removes what Attach made; idempotent.
	Detach(leaseID string) error
	// Attached lists the leases that have inputs attached.
	Attached() ([]string, error)
}

// InputChecker is a Store that can tell cheaply, and without an effect, that
// inputs are there. Attach verifies them all the same.
type InputChecker interface {
	CheckInputs(tenant string, in []envelope.Input) error
}
