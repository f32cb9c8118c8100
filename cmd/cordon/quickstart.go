package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"cordon/api/client"
	"cordon/internal/fault"
	"cordon/supervisor/envelope"
	"cordon/supervisor/evidence"
)

// quickstartJob is the program that the quickstart runs in its sandbox.
//
//go:embed quickstart.sh
var quickstartJob []byte

const (
	resultFile   = "result.json"
	recordFile   = "record.json"
	keyFile      = "host.pub"
	quickLimit   = 32 // processes
	maxStatus    = 256 << 20
	maxJobOutput = 4 << 10 // shown when the job fails
)

// quickstart is one run of it.
type quickstart struct {
	*running
	dir    string
	status []byte // dpkg's database, as the job gets it
	info   client.Info
	image  client.Image
	tale   story
}

func (a *app) quickstartCommand() *cobra.Command {
	var dir, status string
	cmd := &cobra.Command{
		Use:   "quickstart",
		Short: "Run a real job that also misbehaves, and show what became of it",
		Long: "Run a real job that also misbehaves: it reports on this machine's Debian packages,\n" +
			"and tries to read /etc/shadow, to reach the network, and to fork without end. Shown is\n" +
			"what stopped it, what came out, and what was left. Exit status 1 if anything was not\n" +
			"as it should be.",
		Example: "  cordon quickstart",
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.quickstart(cmd.Context(), dir, status)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "cordon-quickstart", "put the result and the record into this `directory`")
	cmd.Flags().StringVar(&status, "packages", "/var/lib/dpkg/status", "dpkg's database, the job's input: a `file`")
	return cmd
}

func (a *app) quickstart(ctx context.Context, dir, status string) error {
	q := &quickstart{running: &running{a: a}, dir: dir, tale: story{w: a.stdout, silent: a.json}}
	var err error
	if q.status, err = readBounded(status, maxStatus); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // nothing in it is a secret
		return err
	}
	q.i = newInterrupts(a.signals())
	defer q.i.close()
	if q.c, err = a.dial(ctx); err != nil {
		return err
	}
	defer q.c.Close() //nolint:errcheck // nothing is in flight any more
	if err := q.act(ctx, status); err != nil {
		return err
	}
	return q.end()
}

// act is the whole of the story. An error is something that kept it from being
// told; what went otherwise than it should is in the tale.
func (q *quickstart) act(ctx context.Context, statusName string) error {
	q.tale.say("A real job in a real sandbox: honest work, and four things it must not do.\n\n")
	e, err := q.prepare(ctx, statusName)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := q.acquire(ctx, e); err != nil {
		return err
	}
	defer q.release(ctx)
	if err := q.i.caught(); err != nil {
		return err
	}
	lease := q.lease
	q.tale.add(judgeLease(lease, time.Since(began)))
	job, err := q.runJob(ctx)
	if err != nil {
		return err
	}
	q.tale.add(job)
	result, got, err := q.fetch(ctx)
	if err != nil {
		return err
	}
	q.release(ctx)
	if q.rec.JSON == nil {
		return errors.Join(q.errs...)
	}
	report, err := q.keepRecord()
	if err != nil {
		return err
	}
	q.tale.add(judgeWork(result, countPackages(string(q.status))))
	q.tale.add(judgeAttempts(result.Attempts, report.Record)...)
	q.tale.add(judgeArtifact(got, report.Record), judgeCleanup(report.Record), judgeRecord(report, lease))
	return nil
}

// prepare brings image and inputs into the store and writes the envelope.
func (q *quickstart) prepare(ctx context.Context, statusName string) (envelope.Envelope, error) {
	ctx, leave := q.i.enter(ctx, cancelling)
	defer leave()
	e := envelope.New()
	var err error
	if q.info, err = q.c.Info(ctx); err != nil {
		return e, because(ctx, err)
	}
	if e.Identity.Tenant, err = defaultTenant(ctx, q.c); err != nil {
		return e, because(ctx, err)
	}
	if q.image, err = q.a.findImage(ctx, q.c, hostImage); err != nil {
		return e, because(ctx, err)
	}
	q.tale.add(step{true, "image", fmt.Sprintf("host: packages of this machine, %s in %d files", formatBytes(q.image.Bytes), q.image.Files)})
	for _, in := range []struct {
		name string
		data []byte
	}{{"status", q.status}, {"job.sh", quickstartJob}} {
		digest, err := q.put(ctx, e.Identity.Tenant, in.name, in.data)
		if err != nil {
			return e, because(ctx, err)
		}
		e.Filesystem.Inputs = append(e.Filesystem.Inputs, envelope.Input{Name: in.name, Digest: digest})
	}
	q.tale.add(step{true, "input", fmt.Sprintf("%s, %s, read-only", statusName, formatBytes(int64(len(q.status))))})
	e.ImageDigest = q.image.Digest
	e.Identity.RunID = newRunID(time.Now())
	e.Resources = envelope.Resources{
		MemoryBytes: 256 << 20, ProcessCount: quickLimit, DiskBytes: 64 << 20, OutputBytes: 1 << 20, WallClock: time.Minute,
	}
	e.Cleanup.Lease = leaseMargin
	e.Artifacts.Allow = []string{resultFile}
	e = envelope.Complete(e)
	return e, envelope.Validate(e)
}

func (q *quickstart) put(ctx context.Context, tenant, name string, data []byte) (string, error) {
	sum := sha256.Sum256(data)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	p := q.a.progressLine()
	defer p.close()
	size := int64(len(data))
	_, err := q.c.PutInput(ctx, tenant, &counted{Reader: bytes.NewReader(data), p: p, what: "sending " + name, total: size}, size, digest)
	return digest, err
}

// runJob runs the job with its output kept, to be shown if it fails.
func (q *quickstart) runJob(ctx context.Context) (step, error) {
	ctx, leave := q.i.enter(ctx, cancelling)
	defer leave()
	p := q.a.progressLine()
	defer p.close()
	p.say("the job runs")
	var out tail
	end, err := q.lease.Run(ctx, client.Command{
		Argv:   []string{"sh", "/inputs/job.sh", "/inputs/status", resultFile, strconv.Itoa(quickLimit)},
		Stdout: &out, Stderr: &out,
	})
	if err != nil {
		return step{}, because(ctx, err)
	}
	return judgeJob(end, q.env.Identity.UID, out.String()), nil
}

// tail keeps the end of what is written.
type tail struct{ bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	n, err := t.Buffer.Write(p)
	if over := t.Len() - maxJobOutput; over > 0 {
		t.Next(over)
	}
	return n, err
}

// fetch takes the result out, and reads it back from the disk.
func (q *quickstart) fetch(ctx context.Context) (jobResult, exported, error) {
	ctx, leave := q.i.enter(ctx, cancelling)
	defer leave()
	to := target{path: filepath.Join(q.dir, resultFile), force: true}
	got, err := exportTo(ctx, q.lease, resultFile, to)
	if err != nil {
		return jobResult{}, got, because(ctx, err)
	}
	data, err := readBounded(to.path, maxJobResult)
	if err != nil {
		return jobResult{}, got, err
	}
	result, err := parseResult(data)
	if err != nil {
		return jobResult{}, got, fault.Wrap(err, fault.InvalidArgument, to.path, "is not what the job should have written", "look at it")
	}
	return result, got, nil
}

// keepRecord writes record and key, and verifies the record as anybody could
// later: from the two files, without the daemon.
func (q *quickstart) keepRecord() (evidence.Report, error) {
	pub, err := evidence.ParsePublicKey([]byte(q.info.RecordKey))
	if err != nil {
		return evidence.Report{}, err
	}
	pem, err := evidence.EncodePublicKey(pub)
	if err != nil {
		return evidence.Report{}, err
	}
	recordPath, keyPath := filepath.Join(q.dir, recordFile), filepath.Join(q.dir, keyFile)
	if err := (target{path: recordPath, force: true}).write(recordLine(q.rec)); err != nil {
		return evidence.Report{}, err
	}
	err = (target{path: keyPath, force: true}).write(func(w io.Writer) error {
		_, err := w.Write(pem)
		return err
	})
	if err != nil {
		return evidence.Report{}, err
	}
	doc, err := readBounded(recordPath, maxRecords)
	if err != nil {
		return evidence.Report{}, err
	}
	if pub, err = publicKey(keyPath); err != nil {
		return evidence.Report{}, err
	}
	report, err := evidence.VerifyDocument(doc, pub)
	if err != nil {
		return report, recordFault(recordPath, err)
	}
	return report, nil
}

// end closes the story and says what to do next.
func (q *quickstart) end() error {
	if q.a.json {
		if err := q.a.printJSON(struct {
			OK    bool   `json:"ok"`
			Steps []step `json:"steps"`
			Dir   string `json:"dir"`
		}{q.tale.failed == 0, q.tale.steps, q.dir}); err != nil {
			return err
		}
	} else {
		q.tale.say(closing(q.a.name, q.a.socket, q.dir, q.tale.failed))
	}
	switch {
	case q.tale.err != nil:
		return wrapOutput(q.tale.err)
	case q.tale.failed != 0:
		return exited(statusFailure)
	}
	return nil
}

// jobResult is result.json.
type jobResult struct {
	Schema   string        `json:"schema"`
	Packages packageReport `json:"packages"`
	Attempts attempts      `json:"attempts"`
}

// attempts are what the job says became of its attempts. It is the sandbox's
// word; the record has the host's.
type attempts struct {
	Shadow   attempt `json:"shadow"`
	Metadata attempt `json:"metadata"`
	Public   attempt `json:"public"`
	Forks    attempt `json:"forks"`
}

type attempt struct {
	Succeeded bool   `json:"succeeded"`
	Errno     int    `json:"errno"`
	Name      string `json:"name"`
	Text      string `json:"text"`
	Limit     int    `json:"limit"`
	Started   int    `json:"started"`
}

const maxJobResult = 1 << 20

func parseResult(data []byte) (jobResult, error) {
	var r jobResult
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil {
		return r, err
	}
	if r.Schema != "cordon.quickstart/1" {
		return r, fmt.Errorf("schema %q is not known", r.Schema)
	}
	return r, nil
}
