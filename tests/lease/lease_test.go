// Package lease holds a whole daemon, over its real API, to what one lease
// promises: real kernel, real jails, real files. It needs root.
//
// Attacks on the jail and on the API's decoding have packages of their own.
package lease

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"cordon/api/client"
	"cordon/internal/sys"
	"cordon/supervisor/envelope"
	"cordon/supervisor/evidence"
	"cordon/tests/daemon"
)

func TestMain(m *testing.M) { daemon.Main(m) }

// acquire leases a sandbox and releases it when the test ends.
func acquire(t *testing.T, d *daemon.Daemon, c *client.Client, e envelope.Envelope) *client.Lease {
	t.Helper()
	l, err := c.Acquire(context.Background(), e, client.AcquireOptions{})
	if err != nil {
		t.Fatalf("acquire: %v\n%s", err, d.Log())
	}
	t.Cleanup(func() {
		if d.Running() {
			if _, err := l.Release(context.Background()); err != nil {
				t.Errorf("release %s: %v", l.ID(), err)
			}
		}
	})
	return l
}

// sh runs a shell script in a lease.
func sh(t *testing.T, l *client.Lease, script string) (client.End, string, string) {
	t.Helper()
	var out, errb bytes.Buffer
	end, err := l.Run(context.Background(), client.Command{Argv: []string{"sh", "-c", script}, Stdout: &out, Stderr: &errb})
	if err != nil {
		t.Fatalf("run %q: %v", script, err)
	}
	return end, out.String(), errb.String()
}

// verify checks a record offline with the daemon's public key.
func verify(t *testing.T, c *client.Client, r client.Record) evidence.Record {
	t.Helper()
	info, err := c.Info(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	key, err := base64.StdEncoding.DecodeString(info.RecordKey)
	if err != nil {
		t.Fatal(err)
	}
	report, err := evidence.Verify(r.JSON, ed25519.PublicKey(key))
	if err != nil {
		t.Fatalf("verify record: %v", err)
	}
	return report.Record
}

// wantCode checks the code of an error that the daemon answered.
func wantCode(t *testing.T, what string, err error, code string) {
	t.Helper()
	if ce, ok := errors.AsType[*client.Error](err); !ok || string(ce.Code) != code {
		t.Errorf("%s: %v, want code %s", what, err, code)
	}
}

func TestFirstLease(t *testing.T) {
	d := daemon.New(t, daemon.Options{})
	c := d.Client()
	e := d.Envelope(c)
	input := []byte("three\nshort\nlines\n")
	digest, err := c.PutInput(context.Background(), "root", bytes.NewReader(input), int64(len(input)), "")
	if err != nil {
		t.Fatal(err)
	}
	e.Filesystem.Inputs = []envelope.Input{{Name: "lines", Digest: digest.Digest}}
	l := acquire(t, d, c, e)

	end, out, errs := sh(t, l, `n=$(wc -l < /inputs/lines); echo "{\"lines\":$n}" > result.json; cat result.json; cat /etc/shadow; id -u`)
	if !end.OK() || out != "{\"lines\":3}\n10000\n" || !strings.Contains(errs, "/etc/shadow") {
		t.Errorf("end %+v, stdout %q, stderr %q", end, out, errs)
	}
	var artifact bytes.Buffer
	got, size, err := l.Export(context.Background(), "result.json", &artifact)
	if err != nil || artifact.String() != "{\"lines\":3}\n" || size != int64(artifact.Len()) {
		t.Errorf("export: %q %s %d %v", artifact.String(), got, size, err)
	}
	rec, err := l.Release(context.Background())
	if err != nil {
		t.Fatalf("release: %v\n%s", err, d.Log())
	}
	if left := d.Leftovers(l.ID()); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	r := verify(t, c, rec)
	if len(r.Exports) != 1 || r.Exports[0].Digest != got {
		t.Errorf("record's exports %+v, want %s", r.Exports, got)
	}
	if !r.Cleanup.Clean {
		t.Errorf("record's cleanup: %+v", r.Cleanup)
	}
	again, err := l.Release(context.Background())
	if err != nil || !bytes.Equal(again.JSON, rec.JSON) {
		t.Errorf("a second release: %v, same record %v", err, bytes.Equal(again.JSON, rec.JSON))
	}
}

// TestNothingLeavesTheSandbox tries every plain way out and looks at the
// errno and the record.
func TestNothingLeavesTheSandbox(t *testing.T) {
	d := daemon.New(t, daemon.Options{})
	c := d.Client()
	l := acquire(t, d, c, d.Envelope(c))
	const probe = `use Socket qw(:DEFAULT inet_pton pack_sockaddr_in6 AF_INET6); $| = 1;
		sub try { my ($name, $af, $type, $addr) = @_; socket(my $s, $af, $type, 0) or do { print "$name socket $!\n"; return };
			if ($type == SOCK_DGRAM) { send($s, "x", 0, $addr) ? print "$name SENT\n" : print "$name $!\n" }
			else { connect($s, $addr) ? print "$name CONNECTED\n" : print "$name $!\n" } }
		try("public", AF_INET, SOCK_STREAM, pack_sockaddr_in(443, inet_aton("203.0.113.7")));
		try("metadata", AF_INET, SOCK_STREAM, pack_sockaddr_in(80, inet_aton("169.254.169.254")));
		try("loopback", AF_INET, SOCK_STREAM, pack_sockaddr_in(80, inet_aton("127.0.0.1")));
		try("dns", AF_INET, SOCK_DGRAM, pack_sockaddr_in(53, inet_aton("192.0.2.53")));
		try("v6", AF_INET6, SOCK_STREAM, pack_sockaddr_in6(443, inet_pton(AF_INET6, "2001:db8::1")));
		try("mapped", AF_INET6, SOCK_STREAM, pack_sockaddr_in6(443, inet_pton(AF_INET6, "::ffff:203.0.113.7")));
		for ([17, 3, "packet"], [40, 1, "vsock"], [38, 5, "alg"], [16, 3, "netlink-uevent", 15], [2, 3, "raw", 1]) {
			socket(my $s, $_->[0], $_->[1], $_->[3] // 0) ? print "$_->[2] OPEN\n" : print "$_->[2] $!\n" }`
	var out, errb bytes.Buffer
	end, err := l.Run(context.Background(), client.Command{Argv: []string{"perl", "-e", probe}, Stdout: &out, Stderr: &errb})
	if err != nil || !end.OK() {
		t.Fatalf("probe: %+v, %v, %s", end, err, errb.String())
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 11 {
		t.Errorf("%d answers, want 11: %q", len(lines), lines)
	}
	for _, line := range lines {
		if !strings.HasSuffix(line, "Operation not permitted") {
			t.Errorf("answer %q, want EPERM", line)
		}
	}
	rec, err := l.Release(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	r := verify(t, c, rec)
	seen := map[string]bool{}
	for _, dest := range r.Network.Destinations {
		seen[fmt.Sprintf("%s:%d", dest.Address, dest.Port)] = dest.Verdict == "denied" || dest.Verdict == "deny"
	}
	for _, want := range []string{"203.0.113.7:443", "169.254.169.254:80", "127.0.0.1:80", "192.0.2.53:53"} {
		if !seen[want] {
			t.Errorf("the record has no denial of %s: %+v", want, r.Network)
		}
	}
}

func TestLimitsEndACommand(t *testing.T) {
	d := daemon.New(t, daemon.Options{})
	c := d.Client()
	e := d.Envelope(c)
	e.Resources.OutputBytes = 64 << 10
	for _, tc := range []struct {
		name   string
		argv   []string
		opt    client.Command
		want   client.Cause
		status int
	}{
		{"timeout", []string{"sh", "-c", "setsid sleep 300 & trap '' TERM; sleep 300"}, client.Command{Timeout: 300 * time.Millisecond}, client.TimedOut, 137},
		{"memory", []string{"perl", "-e", `my $x = "x" x (400 << 20)`}, client.Command{}, client.OOMKilled, 137},
		{"output", []string{"sh", "-c", "while :; do echo 0123456789012345678901234567890123456789; done"}, client.Command{}, client.OutputExceeded, 137},
		{"own signal", []string{"sh", "-c", "kill -9 $$"}, client.Command{}, client.Signalled, 137},
		{"own exit", []string{"sh", "-c", "exit 137"}, client.Command{}, client.Exited, 137},
		{"not found", []string{"no-such-program"}, client.Command{}, "", 127},
		{"not executable", []string{"/etc/passwd"}, client.Command{}, "", 126},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e.Identity.RunID = "limit-" + strings.ReplaceAll(tc.name, " ", "-")
			l := acquire(t, d, c, e)
			tc.opt.Argv = tc.argv
			start := time.Now()
			end, err := l.Run(context.Background(), tc.opt)
			if err != nil {
				t.Fatal(err)
			}
			if tc.want != "" && end.Cause != tc.want {
				t.Errorf("cause %s (%+v), want %s", end.Cause, end, tc.want)
			}
			if got := end.ExitStatus(); tc.status == 126 || tc.status == 127 {
				if got != tc.status {
					t.Errorf("exit status %d, want %d (%+v)", got, tc.status, end)
				}
			}
			if took := time.Since(start); took > 20*time.Second {
				t.Errorf("took %v", took)
			}
			if tc.want == client.TimedOut && end.DescendantsAlive != 0 {
				t.Errorf("%d descendants outlived the deadline", end.DescendantsAlive)
			}
		})
	}
}

// TestBulkStdin sends 500 MB through a command and back.
func TestBulkStdin(t *testing.T) {
	d := daemon.New(t, daemon.Options{})
	c := d.Client()
	e := d.Envelope(c)
	e.Resources.OutputBytes = 1 << 20
	l := acquire(t, d, c, e)
	const total = 500 << 20
	src := &pattern{left: total}
	var out bytes.Buffer
	end, err := l.Run(context.Background(), client.Command{Argv: []string{"wc", "-c"}, Stdin: src, Stdout: &out})
	if err != nil || !end.OK() || strings.TrimSpace(out.String()) != fmt.Sprint(total) {
		t.Errorf("wc counted %q, %+v, %v", out.String(), end, err)
	}
}

// pattern yields left bytes.
type pattern struct{ left int }

func (p *pattern) Read(b []byte) (int, error) {
	if p.left == 0 {
		return 0, io.EOF
	}
	n := min(len(b), p.left)
	for i := range b[:n] {
		b[i] = byte(i)
	}
	p.left -= n
	return n, nil
}

func TestExpiryLeavesNothing(t *testing.T) {
	d := daemon.New(t, daemon.Options{})
	c := d.Client()
	e := d.Envelope(c)
	e.Cleanup.Lease = 2 * time.Second
	l, err := c.Acquire(context.Background(), e, client.AcquireOptions{})
	if err != nil {
		t.Fatal(err)
	}
	end, err := l.Run(context.Background(), client.Command{Argv: []string{"sleep", "300"}})
	if err != nil || end.Cause != client.LeaseExpired {
		t.Errorf("the command ended as %+v, %v; want lease_expired", end, err)
	}
	r := verify(t, c, waitRecord(t, c, l.ID()))
	if r.End.Cause != "lease_expired" {
		t.Errorf("the record says %q", r.End.Cause)
	}
	if left := d.Leftovers(l.ID()); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	_, err = l.Run(context.Background(), client.Command{Argv: []string{"true"}})
	wantCode(t, "run in an expired lease", err, "wrong_state")
}

// waitRecord polls for the record of a lease that is about to end.
func waitRecord(t *testing.T, c *client.Client, id string) client.Record {
	t.Helper()
	var r client.Record
	var err error
	sys.PollUntil(20*time.Second, 20*time.Millisecond, func() bool {
		r, err = c.Record(context.Background(), id)
		return err == nil
	})
	if err != nil {
		t.Fatalf("no record of %s: %v", id, err)
	}
	return r
}

// TestKillNine is the crash: the daemon is killed with a command running, and
// the next one finds, ends, removes and records everything.
func TestKillNine(t *testing.T) {
	d := daemon.New(t, daemon.Options{})
	c := d.Client()
	e := d.Envelope(c)
	e.Resources.CPUMilli = 200
	var ids []string
	for i := range 3 {
		e.Identity.RunID = fmt.Sprint("crash-", i)
		l, err := c.Acquire(context.Background(), e, client.AcquireOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, l.ID())
		started := make(chan string, 1)
		go func() {
			_, _ = l.Run(context.Background(), client.Command{Argv: []string{"sh", "-c", "setsid sleep 300 & sleep 300"}, Started: func(id string) { started <- id }})
		}()
		<-started
	}
	d.Kill()
	d.Start()
	c = d.Client()
	for _, id := range ids {
		r := verify(t, c, waitRecord(t, c, id))
		if r.End.Cause != "infrastructure" {
			t.Errorf("%s ended as %q, want infrastructure", id, r.End.Cause)
		}
		if left := d.Leftovers(id); len(left) != 0 {
			t.Errorf("left of %s: %v", id, left)
		}
	}
	e.Identity.RunID = "after"
	if end, out, _ := sh(t, acquire(t, d, c, e), "echo fine"); !end.OK() || out != "fine\n" {
		t.Errorf("after the crash: %+v %q", end, out)
	}
}
