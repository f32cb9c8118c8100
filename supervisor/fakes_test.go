package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"cordon/internal/fault"
	"cordon/jail"
	"cordon/supervisor/envelope"
	"cordon/supervisor/hostpolicy"
)

// fakeHost is a host that outlives supervisors: what leases leave on it, and
// which port calls go wrong. All ports are views of it.
type fakeHost struct {
	dir string // for artifacts

	mu        sync.Mutex
	fail      map[string]error // by port call, as "jail.freeze"
	calls     []string
	jails     map[string]*fakeJail // by lease id
	strays    map[string]bool      // lease ids with traces and no jail
	egress    map[uint64]time.Time
	attached  map[string]bool
	denied    uint64
	groups    uint64
	leftovers []string // what Close and Sweep cannot remove
	badCheck  bool
	noChecks  bool
	making    chan struct{} // Make waits for it, when set
	oomKills  uint64
}

func newFakeHost(dir string) *fakeHost {
	return &fakeHost{
		dir: dir, fail: make(map[string]error), jails: make(map[string]*fakeJail),
		strays: make(map[string]bool), egress: make(map[uint64]time.Time),
		attached: make(map[string]bool),
	}
}

// call notes a port call and returns the error that a test put there.
func (h *fakeHost) call(name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, name)
	return h.fail[name]
}

func (h *fakeHost) set(edit func(*fakeHost)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	edit(h)
}

func (h *fakeHost) failAt(name string, err error) {
	h.set(func(h *fakeHost) {
		if err == nil {
			delete(h.fail, name)
			return
		}
		h.fail[name] = err
	})
}

func (h *fakeHost) called() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.calls)
}

// remains lists everything that any lease has left.
func (h *fakeHost) remains() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out []string
	for id := range h.jails {
		out = append(out, "jail "+id)
	}
	for id := range h.strays {
		out = append(out, "stray "+id)
	}
	for id := range h.attached {
		out = append(out, "inputs "+id)
	}
	for group := range h.egress {
		out = append(out, fmt.Sprint("egress ", group))
	}
	slices.Sort(out)
	return out
}

type fakeJailer struct{ *fakeHost }

var _ Jailer = fakeJailer{}

func (f fakeJailer) Features() jail.Features {
	return jail.Features{Kernel: "6.18.5", CgroupMode: "hybrid", SwapAccount: true}
}

func (f fakeJailer) Make(ctx context.Context, plan *jail.Plan) (Jail, error) {
	f.mu.Lock()
	gate := f.making
	f.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err := f.call("jailer.make"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.groups++
	j := &fakeJail{
		host: f.fakeHost, plan: plan, group: f.groups, died: make(chan struct{}),
		execs: make(map[string]*fakeExec), thawed: make(chan struct{}),
	}
	close(j.thawed)
	f.jails[plan.LeaseID] = j
	return j, nil
}

func (f fakeJailer) Sweep(_ context.Context, id string) (jail.CleanupReport, error) {
	if err := f.call("jailer.sweep"); err != nil {
		return jail.CleanupReport{}, err
	}
	f.mu.Lock()
	j := f.jails[id]
	f.mu.Unlock()
	if j != nil {
		j.endAll()
	}
	return f.removed(id, "swept"), nil
}

func (f fakeJailer) Strays() ([]string, error) {
	if err := f.call("jailer.strays"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for id := range f.jails {
		out = append(out, id)
	}
	for id := range f.strays {
		out = append(out, id)
	}
	slices.Sort(out)
	return out, nil
}

// removed takes a lease off the host, unless something sticks.
func (h *fakeHost) removed(id, looked string) jail.CleanupReport {
	h.mu.Lock()
	defer h.mu.Unlock()
	item := jail.CleanupItem{Kind: "cgroups", Looked: looked}
	if h.leftovers != nil {
		item.Leftovers = h.leftovers
		return jail.CleanupReport{Items: []jail.CleanupItem{item}}
	}
	delete(h.jails, id)
	delete(h.strays, id)
	return jail.CleanupReport{Items: []jail.CleanupItem{item}}
}

type fakeJail struct {
	host  *fakeHost
	plan  *jail.Plan
	group uint64
	died  chan struct{}

	mu     sync.Mutex
	dead   bool
	execs  map[string]*fakeExec
	frozen bool
	thawed chan struct{} // closed while thawed
}

var _ Jail = (*fakeJail)(nil)

func (j *fakeJail) CgroupID() uint64      { return j.group }
func (j *fakeJail) Done() <-chan struct{} { return j.died }

func (j *fakeJail) ReadBack() jail.ReadBack {
	j.host.mu.Lock()
	defer j.host.mu.Unlock()
	if j.host.noChecks {
		return jail.ReadBack{}
	}
	checks := []jail.Check{{Name: "memory.max", Want: "1", Got: "1", OK: true}}
	if j.host.badCheck {
		checks = append(checks, jail.Check{Name: "pids.max", Want: "128", Got: "max"})
	}
	return jail.ReadBack{Checks: checks}
}

func (j *fakeJail) Exec(ctx context.Context, spec jail.ExecSpec) (Exec, error) {
	if err := j.host.call("jail.exec"); err != nil {
		return nil, err
	}
	j.mu.Lock()
	thawed := j.thawed
	j.mu.Unlock()
	select {
	case <-thawed: // a frozen jail starts nothing
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	x := newFakeExec(spec)
	j.mu.Lock()
	j.execs[spec.ID] = x
	j.mu.Unlock()
	go x.run(spec.Argv)
	return x, nil
}

func (j *fakeJail) Freeze(context.Context) error {
	if err := j.host.call("jail.freeze"); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.frozen {
		j.frozen, j.thawed = true, make(chan struct{})
	}
	return nil
}

func (j *fakeJail) Thaw() error {
	if err := j.host.call("jail.thaw"); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.frozen {
		j.frozen = false
		close(j.thawed)
	}
	return nil
}

func (j *fakeJail) isFrozen() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.frozen
}

func (j *fakeJail) Usage() (jail.Usage, error) {
	err := j.host.call("jail.usage")
	j.host.mu.Lock()
	defer j.host.mu.Unlock()
	return jail.Usage{CPUUser: 1500 * time.Microsecond, MemoryPeak: 4096, OOMKills: j.host.oomKills}, err
}

func (j *fakeJail) OpenArtifact(path string) (*os.File, error) {
	if err := j.host.call("jail.open"); err != nil {
		return nil, err
	}
	if !j.isFrozen() {
		return nil, errors.New("opened while thawed")
	}
	return os.Open(filepath.Join(j.host.dir, path))
}

// die is the death of PID 1: every process of the jail goes with it.
func (j *fakeJail) die() {
	j.endAll()
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.dead {
		j.dead = true
		close(j.died)
	}
}

func (j *fakeJail) endAll() {
	j.mu.Lock()
	execs := make([]*fakeExec, 0, len(j.execs))
	for _, x := range j.execs {
		execs = append(execs, x)
	}
	j.mu.Unlock()
	for _, x := range execs {
		x.kill()
	}
}

func (j *fakeJail) Close(context.Context) (jail.CleanupReport, error) {
	err := j.host.call("jail.close")
	if err != nil {
		return jail.CleanupReport{}, err
	}
	j.die()
	return j.host.removed(j.plan.LeaseID, "listed again"), nil
}

// fakeExec is a command that is a Go function.
type fakeExec struct {
	spec    jail.ExecSpec
	stdinR  *io.PipeReader
	stdinW  *io.PipeWriter
	stdoutR *io.PipeReader
	stdoutW *io.PipeWriter
	stderrR *io.PipeReader
	stderrW *io.PipeWriter
	killed  chan struct{}
	once    sync.Once
	ended   chan struct{}
	end     jail.ExecEnd
	mu      sync.Mutex
	signals []int
	size    [2]uint16
	kills   int
	written int64 // bytes of stdout that were taken
}

var _ Exec = (*fakeExec)(nil)

func newFakeExec(spec jail.ExecSpec) *fakeExec {
	x := &fakeExec{spec: spec, killed: make(chan struct{}), ended: make(chan struct{})}
	x.stdinR, x.stdinW = io.Pipe()
	x.stdoutR, x.stdoutW = io.Pipe()
	x.stderrR, x.stderrW = io.Pipe()
	return x
}

func (x *fakeExec) Stdin() io.WriteCloser { return x.stdinW }
func (x *fakeExec) Stdout() io.Reader     { return x.stdoutR }

func (x *fakeExec) Stderr() io.Reader {
	if x.spec.TTY {
		return nil
	}
	return x.stderrR
}

func (x *fakeExec) Signal(sig int) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.signals = append(x.signals, sig)
	return nil
}

func (x *fakeExec) Resize(rows, cols uint16) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.size = [2]uint16{rows, cols}
	return nil
}

func (x *fakeExec) Kill() error {
	x.mu.Lock()
	x.kills++
	x.mu.Unlock()
	x.kill()
	return nil
}

// kill ends the command without anybody having asked for it.
func (x *fakeExec) kill() { x.once.Do(func() { close(x.killed) }) }

func (x *fakeExec) Wait(ctx context.Context) (jail.ExecEnd, error) {
	select {
	case <-x.ended:
		return x.end, nil
	case <-ctx.Done():
		return jail.ExecEnd{}, ctx.Err()
	}
}

func (x *fakeExec) Close() error { return x.stdinR.Close() }

// run plays the command and ends its streams. A kill closes the streams at
// once, as the death of their last writer does.
func (x *fakeExec) run(argv []string) {
	result := make(chan jail.ExecEnd, 1)
	go func() { result <- x.play(argv) }()
	select {
	case x.end = <-result:
	case <-x.killed:
		x.end = jail.ExecEnd{Signal: sigkill, Witness: witnessKernel}
		x.stdinR.CloseWithError(errDead)
		x.stdoutW.CloseWithError(io.EOF)
		x.stderrW.CloseWithError(io.EOF)
		<-result
	}
	x.stdinR.CloseWithError(errDead)
	close(x.ended)
	x.stdoutW.Close()
	x.stderrW.Close()
}

var errDead = errors.New("broken pipe")

func exitedWith(code int) jail.ExecEnd { return jail.ExecEnd{ExitCode: code, Witness: witnessKernel} }

// play is the command's own doing; it returns early when it is killed.
func (x *fakeExec) play(argv []string) jail.ExecEnd {
	number := 0
	if len(argv) > 1 {
		number, _ = strconv.Atoi(argv[1])
	}
	switch argv[0] {
	case "exit":
		return exitedWith(number)
	case "cat":
		if _, err := io.Copy(x.stdoutW, struct{ io.Reader }{x.stdinR}); err != nil {
			return exitedWith(1)
		}
	case "echo":
		fmt.Fprintln(x.stdoutW, strings.Join(argv[1:], " "))
	case "both":
		fmt.Fprint(x.stdoutW, "out")
		fmt.Fprint(x.stderrW, "err")
	case "yes": // so many bytes, a KiB at a time
		for left := number; left > 0; left -= 1 << 10 {
			n, err := x.stdoutW.Write([]byte(strings.Repeat("y", min(left, 1<<10))))
			x.mu.Lock()
			x.written += int64(n)
			x.mu.Unlock()
			if err != nil {
				return exitedWith(1)
			}
		}
	case "sleep": // seconds
		select {
		case <-time.After(time.Duration(number) * time.Second):
		case <-x.killed:
		}
	case "oom":
		return jail.ExecEnd{Signal: sigkill, Witness: witnessKernel, OOMKills: 1}
	case "sigsys":
		return jail.ExecEnd{Signal: 31, Witness: witnessKernel, SeccompKilled: true}
	case "kill-self":
		return jail.ExecEnd{Signal: sigkill, Witness: witnessKernel}
	case "missing":
		return jail.ExecEnd{Witness: "init", Start: &jail.StartError{Code: 127, Step: "lookup", Errno: 2, Text: "no such command"}}
	case "panic-host":
		return exitedWith(0)
	}
	return exitedWith(0)
}

type fakeEgress struct{ *fakeHost }

var _ Egress = fakeEgress{}

func (f fakeEgress) Admit(group uint64, notAfter time.Time) error {
	if err := f.call("egress.admit"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.egress[group] = notAfter
	return nil
}

func (f fakeEgress) Flows(uint64) (Flows, error) {
	err := f.call("egress.flows")
	f.mu.Lock()
	defer f.mu.Unlock()
	return Flows{Denied: f.denied}, err
}

func (f fakeEgress) Forget(group uint64) (Flows, error) {
	if err := f.call("egress.forget"); err != nil {
		return Flows{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.egress, group)
	return Flows{Denied: f.denied, Destinations: []Destination{{Hook: "connect4", Address: "192.0.2.1", Port: 443, Proto: "tcp", Verdict: "deny", Errno: "EPERM", Count: f.denied}}}, nil
}

type fakeStore struct{ *fakeHost }

var (
	_ Store        = fakeStore{}
	_ InputChecker = fakeStore{}
)

func (f fakeStore) OpenImage(digest string) (jail.Image, error) {
	if err := f.call("store.image"); err != nil {
		return jail.Image{}, err
	}
	return jail.Image{Digest: digest, Path: "/images/" + digest}, nil
}

func (f fakeStore) CheckInputs(string, []envelope.Input) error { return f.call("store.inputs") }

func (f fakeStore) Attach(_ context.Context, id, _ string, in []envelope.Input) (string, error) {
	if err := f.call("store.attach"); err != nil {
		return "", err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attached[id] = true
	if len(in) == 0 {
		return "", nil
	}
	return "/inputs/" + id, nil
}

func (f fakeStore) Detach(id string) error {
	if err := f.call("store.detach"); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.attached, id)
	return nil
}

func (f fakeStore) Attached() ([]string, error) {
	if err := f.call("store.attached"); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []string
	for id := range f.attached {
		out = append(out, id)
	}
	return out, nil
}

// fakeAdmission admits everybody as tenant acme for at most an hour, and so
// many leases at once.
type fakeAdmission struct {
	most int64
	mu   sync.Mutex
	seen []hostpolicy.InUse
}

var _ Admission = (*fakeAdmission)(nil)

func (a *fakeAdmission) Admit(_ hostpolicy.Peer, e envelope.Envelope, use hostpolicy.InUse) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = append(a.seen, use)
	if e.Identity.Tenant == "stranger" {
		return fault.New(fault.PermissionDenied, "identity.tenant", "no", "ask")
	}
	if use.Host.Leases >= a.most {
		return fault.New(fault.HostFull, "leases", "no more", "wait")
	}
	return nil
}

func (a *fakeAdmission) Speaks(_ hostpolicy.Peer, tenant string) (hostpolicy.Tenant, bool) {
	return hostpolicy.Tenant{Name: tenant, Max: hostpolicy.Max{Lease: time.Hour}}, true
}

func (a *fakeAdmission) Digest() string { return "sha256:policy" }
