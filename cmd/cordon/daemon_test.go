package main

import (
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	cordonv1 "cordon/api/v1"
	"cordon/api/wire"
	"cordon/jail"
	"cordon/supervisor/envelope"
	"cordon/supervisor/evidence"
)

const (
	fakeLease  = "l-1"
	fakeSecret = "00112233445566778899aabbccddeeff"
)

var fakeDigest = "sha256:" + strings.Repeat("ab", 32)

// daemon answers as cordond would, from a script. It enforces nothing: it is
// there to see what this program sends and how it takes the answers.
type daemon struct {
	cordonv1.UnimplementedSupervisorServer
	socket string
	key    ed25519.PrivateKey

	mu        sync.Mutex
	calls     []string // names of methods, in order
	envelope  envelope.Envelope
	start     *cordonv1.ExecStart
	resizes   []*cordonv1.TerminalSize
	signals   []int32
	inputs    map[string][]byte // by digest
	artifacts map[string][]byte // by path
	images    []*cordonv1.Image
	tenants   []string
	exports   []evidence.Export
	record    []byte

	// Hooks, where a test wants something else; set before the first call.
	state     cordonv1.LeaseState
	onAcquire func(context.Context) error
	onExec    func(*cordonv1.ExecStart, grpc.BidiStreamingServer[cordonv1.ExecRequest, cordonv1.ExecResponse]) error
	onRelease func(context.Context) error
	onRecord  func(*evidence.Record)
	terms     []*cordonv1.Term
	endless   bool // a snapshot takes for ever
}

func newDaemon(t *testing.T) *daemon {
	t.Helper()
	seed := sha256.Sum256([]byte("key of the tests"))
	d := &daemon{
		socket:    filepath.Join(t.TempDir(), "s"),
		key:       ed25519.NewKeyFromSeed(seed[:]),
		inputs:    map[string][]byte{},
		artifacts: map[string][]byte{},
		state:     cordonv1.LeaseState_LEASE_STATE_ACTIVE,
		tenants:   []string{"acme", "other"},
		images:    []*cordonv1.Image{{Digest: fakeDigest, Name: "host", Bytes: 84 << 20, Files: 5120}},
	}
	for _, n := range termNames {
		d.terms = append(d.terms, &cordonv1.Term{Letter: n.letter, Name: n.name, Given: true, Proof: "a proof", LeftOver: "the kernel"})
	}
	l, err := net.Listen("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	cordonv1.RegisterSupervisorServer(s, d)
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() {
		s.Stop()
		serving.Wait()
	})
	return d
}

func (d *daemon) called(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.calls = append(d.calls, name)
}

// count is how often a method was called.
func (d *daemon) count(name string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, c := range d.calls {
		if c == name {
			n++
		}
	}
	return n
}

func refuse(code codes.Code, detail *cordonv1.ErrorDetail) error {
	st, err := status.New(code, detail.GetCause()).WithDetails(detail)
	if err != nil {
		return err
	}
	return st.Err()
}

func (d *daemon) lease() *cordonv1.Lease {
	at := time.Date(2025, 3, 4, 5, 6, 7, 0, time.UTC)
	return &cordonv1.Lease{
		Id: fakeLease, State: d.state, Tenant: d.envelope.Identity.Tenant,
		RunId: d.envelope.Identity.RunID, AttemptId: "1", ImageDigest: d.envelope.ImageDigest,
		EnvelopeDigest: envelopeDigest(d.envelope), PlanDigest: "sha256:p", AcquiredAt: wire.Time(at),
		ExpiresAt: wire.Time(at.Add(15 * time.Minute)), MaxExpiresAt: wire.Time(at.Add(time.Hour)), Fencing: 7,
		Execs: []*cordonv1.ExecInfo{{Id: "e-1", Argv: []string{"sh", "-c", "a\x1b[31m"}, Running: true}},
	}
}

func envelopeDigest(e envelope.Envelope) string {
	digest, err := envelope.Digest(e)
	if err != nil {
		panic(err)
	}
	return digest
}

func (d *daemon) Acquire(ctx context.Context, r *cordonv1.AcquireRequest) (*cordonv1.AcquireResponse, error) {
	d.called("Acquire")
	e, err := wire.EnvelopeOf(r.GetEnvelope())
	if err != nil {
		return nil, err
	}
	if d.onAcquire != nil {
		if err := d.onAcquire(ctx); err != nil {
			return nil, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.envelope, d.exports = e, nil
	return &cordonv1.AcquireResponse{
		Lease: d.lease(), LeaseSecret: fakeSecret, Envelope: wire.Envelope(e),
		ReadBack: []*cordonv1.Check{{Name: "memory.max", Want: "1", Got: "1", Ok: true}},
	}, nil
}

// authorize is what every call about a lease goes through.
func authorize(ref *cordonv1.LeaseRef) error {
	if ref.GetLeaseId() == fakeLease && ref.GetLeaseSecret() == fakeSecret {
		return nil
	}
	return refuse(codes.NotFound, &cordonv1.ErrorDetail{Code: "not_found", Field: "lease", Cause: "no such lease", Remedy: "acquire one"})
}

func (d *daemon) Renew(_ context.Context, r *cordonv1.RenewRequest) (*cordonv1.RenewResponse, error) {
	d.called("Renew " + r.GetExtend().AsDuration().String())
	return &cordonv1.RenewResponse{Lease: d.lease()}, authorize(r.GetRef())
}

func (d *daemon) Get(_ context.Context, r *cordonv1.GetRequest) (*cordonv1.GetResponse, error) {
	d.called("Get")
	return &cordonv1.GetResponse{Lease: d.lease()}, authorize(r.GetRef())
}

func (d *daemon) List(context.Context, *cordonv1.ListRequest) (*cordonv1.ListResponse, error) {
	d.called("List")
	return &cordonv1.ListResponse{Leases: []*cordonv1.Lease{d.lease()}}, nil
}

func (d *daemon) ListImages(context.Context, *cordonv1.ListImagesRequest) (*cordonv1.ListImagesResponse, error) {
	d.called("ListImages")
	return &cordonv1.ListImagesResponse{Images: d.images}, nil
}

func (d *daemon) SnapshotHost(_ *cordonv1.SnapshotHostRequest, s grpc.ServerStreamingServer[cordonv1.SnapshotHostResponse]) error {
	d.called("SnapshotHost")
	if d.endless {
		<-s.Context().Done()
		return s.Context().Err()
	}
	_ = s.Send(&cordonv1.SnapshotHostResponse{Kind: &cordonv1.SnapshotHostResponse_Progress{Progress: "copying"}})
	return s.Send(&cordonv1.SnapshotHostResponse{Kind: &cordonv1.SnapshotHostResponse_Image{
		Image: &cordonv1.Image{Digest: fakeDigest, Name: "host"},
	}})
}

func (d *daemon) ImportImage(s grpc.ClientStreamingServer[cordonv1.ImportImageRequest, cordonv1.ImportImageResponse]) error {
	d.called("ImportImage")
	var name string
	var data []byte
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if h := r.GetHeader(); h != nil {
			name = h.GetName()
		}
		data = append(data, r.GetData()...)
	}
	return s.SendAndClose(&cordonv1.ImportImageResponse{Image: &cordonv1.Image{
		Digest: digestOf(data), Name: name, Bytes: int64(len(data)),
	}})
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (d *daemon) PutInput(s grpc.ClientStreamingServer[cordonv1.PutInputRequest, cordonv1.PutInputResponse]) error {
	d.called("PutInput")
	var header *cordonv1.PutInputHeader
	var data []byte
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if h := r.GetHeader(); h != nil {
			header = h
		}
		data = append(data, r.GetData()...)
	}
	if int64(len(data)) != header.GetSize() || digestOf(data) != header.GetDigest() {
		return refuse(codes.InvalidArgument, &cordonv1.ErrorDetail{Code: "digest_mismatch", Field: "input", Cause: "other bytes"})
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inputs[header.GetDigest()] = data
	return s.SendAndClose(&cordonv1.PutInputResponse{Digest: header.GetDigest(), Size: header.GetSize()})
}

func (d *daemon) Export(r *cordonv1.ExportRequest, s grpc.ServerStreamingServer[cordonv1.ExportResponse]) error {
	d.called("Export " + r.GetPath())
	if err := authorize(r.GetRef()); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	data, ok := d.artifacts[r.GetPath()]
	if !ok {
		return refuse(codes.NotFound, &cordonv1.ErrorDetail{Code: "not_found", Field: r.GetPath(), Cause: "the run wrote no such file"})
	}
	size := int64(len(data))
	_ = s.Send(&cordonv1.ExportResponse{Kind: &cordonv1.ExportResponse_Header{Header: &cordonv1.ExportHeader{Path: r.GetPath(), Size: size}}})
	_ = s.Send(&cordonv1.ExportResponse{Kind: &cordonv1.ExportResponse_Data{Data: data}})
	digest := digestOf(data)
	if strings.Contains(string(data), "corrupt") {
		digest = fakeDigest
	}
	d.exports = append(d.exports, evidence.Export{
		Path: r.GetPath(), Complete: true, Bytes: size, Digest: digest, Scan: evidence.ScanNotPerformed,
	})
	return s.Send(&cordonv1.ExportResponse{Kind: &cordonv1.ExportResponse_Trailer{Trailer: &cordonv1.ExportTrailer{Sha256: digest, Size: size}}})
}

func (d *daemon) Release(ctx context.Context, r *cordonv1.ReleaseRequest) (*cordonv1.ReleaseResponse, error) {
	d.called("Release")
	if err := authorize(r.GetRef()); err != nil {
		return nil, err
	}
	if d.onRelease != nil {
		if err := d.onRelease(ctx); err != nil {
			return nil, err
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	rec := exampleRecord()
	rec.Envelope, rec.Exports = envelope.Complete(d.envelope), d.exports
	rec.Digests.Image, rec.Digests.Envelope = d.envelope.ImageDigest, envelopeDigest(d.envelope)
	if d.onRecord != nil {
		d.onRecord(&rec)
	}
	doc, at, err := sign(rec, evidence.Position{HostID: "h-1"}, d.key)
	if err != nil {
		return nil, err
	}
	d.record = doc
	return &cordonv1.ReleaseResponse{Record: &cordonv1.SignedRecord{Json: doc, Head: at.Head}}, nil
}

func (d *daemon) GetRecord(_ context.Context, r *cordonv1.GetRecordRequest) (*cordonv1.GetRecordResponse, error) {
	d.called("GetRecord")
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.GetLeaseId() != fakeLease || d.record == nil {
		return nil, refuse(codes.NotFound, &cordonv1.ErrorDetail{Code: "not_found", Field: "lease", Cause: "no record"})
	}
	return &cordonv1.GetRecordResponse{Record: &cordonv1.SignedRecord{Json: d.record}}, nil
}

func (d *daemon) Info(context.Context, *cordonv1.InfoRequest) (*cordonv1.InfoResponse, error) {
	d.called("Info")
	pub := d.key.Public().(ed25519.PublicKey)
	return &cordonv1.InfoResponse{
		Version: "0.1.0", RuntimeRevision: "r1", Kernel: "6.18.5", CgroupMode: "hybrid", Leases: 1,
		RecordKey: base64.StdEncoding.EncodeToString(pub), Tenants: d.tenants, Terms: d.terms,
	}, nil
}

// Exec knows a few commands; see act.
func (d *daemon) Exec(s grpc.BidiStreamingServer[cordonv1.ExecRequest, cordonv1.ExecResponse]) error {
	d.called("Exec")
	first, err := s.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if err := authorize(start.GetRef()); err != nil {
		return err
	}
	d.mu.Lock()
	d.start = start
	d.mu.Unlock()
	if err := s.Send(&cordonv1.ExecResponse{Kind: &cordonv1.ExecResponse_Started{Started: &cordonv1.ExecStarted{ExecId: "e-1"}}}); err != nil {
		return err
	}
	if d.onExec != nil {
		return d.onExec(start, s)
	}
	return d.act(start.GetArgv(), s)
}

func (d *daemon) Attach(s grpc.BidiStreamingServer[cordonv1.AttachRequest, cordonv1.ExecResponse]) error {
	first, err := s.Recv()
	if err != nil {
		return err
	}
	d.called("Attach " + first.GetAttach().GetExecId())
	if err := authorize(first.GetAttach().GetRef()); err != nil {
		return err
	}
	_ = s.Send(stdout([]byte("tail\n")))
	for {
		r, err := s.Recv()
		if err != nil || r.GetCloseStdin() {
			return s.Send(ended(&cordonv1.End{Cause: cordonv1.EndCause_END_CAUSE_EXITED, ExitCode: 3}))
		}
		d.note(r.GetSignal(), r.GetResize())
	}
}

func (d *daemon) note(sig int32, size *cordonv1.TerminalSize) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if sig != 0 {
		d.signals = append(d.signals, sig)
	}
	if size != nil {
		d.resizes = append(d.resizes, size)
	}
}

func stdout(b []byte) *cordonv1.ExecResponse {
	return &cordonv1.ExecResponse{Kind: &cordonv1.ExecResponse_Stdout{Stdout: b}}
}

func ended(e *cordonv1.End) *cordonv1.ExecResponse {
	return &cordonv1.ExecResponse{Kind: &cordonv1.ExecResponse_End{End: e}}
}

// act plays the commands of the tests:
//
//	both        writes "out" and "err"
//	cat         writes its standard input to standard output
//	exit N      exits with N
//	cause NAME  ends with a cause
//	missing     cannot be started
//	wait        ends by the first signal it gets
//	stubborn    ends by SIGKILL only
//	vanish      breaks the connection
//	flood       writes until the stream breaks
func (d *daemon) act(argv []string, s grpc.BidiStreamingServer[cordonv1.ExecRequest, cordonv1.ExecResponse]) error {
	exit := func(code int) error {
		return s.Send(ended(&cordonv1.End{Cause: cordonv1.EndCause_END_CAUSE_EXITED, ExitCode: int32(code), Witness: "kernel"}))
	}
	switch argv[0] {
	case "both":
		_ = s.Send(stdout([]byte("out\n")))
		_ = s.Send(&cordonv1.ExecResponse{Kind: &cordonv1.ExecResponse_Stderr{Stderr: []byte("err\n")}})
		return exit(0)
	case "exit":
		code, err := strconv.Atoi(argv[1])
		if err != nil {
			return err
		}
		return exit(code)
	case "cause":
		return s.Send(ended(&cordonv1.End{Cause: wire.Cause(argv[1])}))
	case "missing":
		return s.Send(ended(&cordonv1.End{
			Cause: cordonv1.EndCause_END_CAUSE_EXITED, ExitCode: 127, StartCode: 127, Detail: "start command: lookup: no such file",
		}))
	case "vanish":
		return status.Error(codes.Unavailable, "connection reset")
	case "flood":
		for s.Send(stdout(make([]byte, 32<<10))) == nil {
		}
		return nil
	case "cat":
		return d.cat(s, exit)
	}
	for { // wait, stubborn
		r, err := s.Recv()
		if err != nil {
			return err
		}
		d.note(r.GetSignal(), r.GetResize())
		if sig := r.GetSignal(); sig == 9 || sig != 0 && argv[0] == "wait" {
			return s.Send(ended(&cordonv1.End{Cause: cordonv1.EndCause_END_CAUSE_SIGNALLED, Signal: sig, Witness: "kernel"}))
		}
	}
}

func (d *daemon) cat(s grpc.BidiStreamingServer[cordonv1.ExecRequest, cordonv1.ExecResponse], exit func(int) error) error {
	for {
		r, err := s.Recv()
		if err != nil {
			return err
		}
		d.note(r.GetSignal(), r.GetResize())
		switch {
		case r.GetCloseStdin():
			return exit(0)
		case len(r.GetStdin()) != 0:
			_ = s.Send(stdout(r.GetStdin()))
			_ = s.Send(&cordonv1.ExecResponse{Kind: &cordonv1.ExecResponse_StdinTaken{StdinTaken: uint32(len(r.GetStdin()))}})
		}
	}
}

func sign(rec evidence.Record, at evidence.Position, key ed25519.PrivateKey) ([]byte, evidence.Position, error) {
	ready, err := evidence.Prepare(rec)
	if err != nil {
		return nil, at, err
	}
	return ready.Sign(at, key)
}

// exampleRecord is a record with something of everything, some of it hostile
// to a terminal.
func exampleRecord() evidence.Record {
	at := time.Date(2025, 3, 4, 5, 6, 7, 0, time.UTC)
	env := envelope.Complete(envelope.Envelope{
		ImageDigest: fakeDigest, Artifacts: envelope.Artifacts{Allow: []string{"result.json"}, Hash: true},
	})
	return evidence.Record{
		Schema: evidence.Schema, State: "closed",
		Lease: evidence.Lease{
			ID: fakeLease, Fencing: 7, OwnerUID: 1000, IDBase: 1 << 20, RequestedAt: at, ActiveAt: at.Add(31 * time.Millisecond),
			ExpiresAt: at.Add(15 * time.Minute), EndedAt: at.Add(2 * time.Second), ClosedAt: at.Add(2100 * time.Millisecond),
		},
		Identity: evidence.Identity{
			Tenant: "acme", RunID: "run-1", AttemptID: "1", Principal: "alice@example.org", DelegatedActor: "agent\x1b]0;owned\a",
		},
		Envelope: env,
		Digests:  evidence.Digests{Envelope: envelopeDigest(env), HostPolicy: "sha256:h", Plan: "sha256:" + strings.Repeat("12", 32), Image: fakeDigest},
		Host:     evidence.Host{Version: "0.1.0", RuntimeRevision: "r1", Kernel: "6.18.5", CgroupMode: "hybrid"},
		Inputs:   []evidence.Input{{Name: "status", Digest: "sha256:" + strings.Repeat("cd", 32)}},
		ReadBack: []jail.Check{{Name: "memory.max", Want: "1", Got: "1", OK: true}, {Name: "pids.max", Want: "32", Got: "32", OK: true}},
		Usage:    evidence.Usage{CPUUserUS: 410000, MemoryPeakBytes: 31 << 20, PidsRefused: 1, OutputBytes: 1200},
		Network: evidence.Network{Denied: 3, Destinations: []evidence.Destination{
			{Hook: "connect4", Address: "169.254.169.254", Port: 80, Proto: "tcp", Verdict: "deny", Errno: "EPERM", Count: 2},
			{Hook: "connect4", Address: "203.0.113.7", Port: 443, Proto: "tcp", Verdict: "deny", Errno: "EPERM", Count: 1},
		}},
		Execs: []evidence.Exec{
			{ID: "e-1", Argv0: "sh\n", StartedAt: at, EndedAt: at, End: evidence.End{Cause: "exited", Witness: "kernel"}, Usage: evidence.Usage{WallUS: 1100000}},
			{ID: "e-2", Argv0: "hog", StartedAt: at, EndedAt: at, End: evidence.End{Cause: "oom_killed", Witness: "kernel"}, Usage: evidence.Usage{WallUS: 70000}},
		},
		Exports: []evidence.Export{{Path: "result.json", Complete: true, Bytes: 2150, Digest: "sha256:" + strings.Repeat("ef", 32), Scan: evidence.ScanNotPerformed}},
		End:     evidence.End{Cause: "released"},
		Cleanup: evidence.Cleanup{Clean: true, Attempts: 1, Items: []jail.CleanupItem{
			{Kind: "processes", Looked: "/proc", Leftovers: []string{}},
			{Kind: "cgroups", Looked: "/sys", Leftovers: []string{}},
			{Kind: "mounts", Looked: "/proc", Leftovers: []string{}},
			{Kind: "loop_devices", Looked: "/sys", Leftovers: []string{}},
			{Kind: "egress_entry", Looked: "map", Leftovers: []string{}},
			{Kind: "files", Looked: "/var", Leftovers: []string{}},
			{Kind: "inputs", Looked: "/var", Leftovers: []string{}},
		}},
		Remanence: evidence.Remanence{Checked: []string{"files"}, NotChecked: []string{"disk blocks of the removed volume"}},
	}
}
