package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cordon/api/client"
	cordonv1 "cordon/api/v1"
	"cordon/supervisor/evidence"
)

func quarantine(rec *evidence.Record) {
	rec.State = "quarantined"
	rec.Cleanup.Clean = false
	rec.Cleanup.Items[0].Leftovers = []string{"pid 7"}
}

func TestLeaseAcquirePrintsTheSecretOnlyAsJSON(t *testing.T) {
	d := newDaemon(t)
	w := newWorld(t, d)
	w.want(0, "l-1\n", "", "lease", "acquire", "--artifact", "log", "--artifact", "log")
	if len(d.envelope.Artifacts.Allow) != 1 {
		t.Errorf("artifacts = %v", d.envelope.Artifacts.Allow)
	}
	w.want(0, "*", "", "lease", "acquire", "--json")
	var got acquired
	if err := json.Unmarshal([]byte(w.out.String()), &got); err != nil {
		t.Fatal(err)
	}
	if got.LeaseID != "l-1" || got.Secret != fakeSecret || got.Lease.State != "active" || len(got.ReadBack) != 1 ||
		got.Envelope.Resources.MemoryBytes == 0 {
		t.Errorf("acquired = %+v", got)
	}
	secret := filepath.Join(w.env["XDG_RUNTIME_DIR"], "cordon", "l-1.secret")
	if got := readFile(t, secret); got != fakeSecret+"\n" {
		t.Errorf("kept: %q", got)
	}
}

// TestLeaseAcquireGivesBackWhatNobodyCanUse: a secret that could neither be
// kept nor shown makes the lease useless.
func TestLeaseAcquireGivesBackWhatNobodyCanUse(t *testing.T) {
	d := newDaemon(t)
	w := newWorld(t, d)
	writeFile(t, filepath.Join(w.env["XDG_RUNTIME_DIR"], "cordon"), "in the way")
	w.want(1, "", "*", "lease", "acquire")
	if d.count("Release") != 1 {
		t.Error("not released")
	}
	w.want(0, "*", "*", "lease", "acquire", "--json")
	if d.count("Release") != 1 || !strings.Contains(w.out.String(), fakeSecret) {
		t.Errorf("stdout: %s", w.out.String())
	}
}

func TestLeaseAcquireWithoutAReader(t *testing.T) {
	d := newDaemon(t)
	w := newWorld(t, d)
	w.stdout = brokenWriter{}
	w.want(1, "*", "cordon: write standard output: broken\n", "lease", "acquire")
	if d.count("Release") != 1 {
		t.Error("a lease whose id nobody got is not released")
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

func TestLeaseCommands(t *testing.T) {
	chdir(t)
	d := newDaemon(t)
	w := newWorld(t, d)
	w.want(0, "LEASE  STATE   TENANT  RUN  COMMANDS  EXPIRES\nl-1    active               1         2025-03-04T05:21:07Z\n", "", "lease", "ls")
	d.state = cordonv1.LeaseState_LEASE_STATE_CLOSED
	w.want(0, "LEASE  STATE  TENANT  RUN  COMMANDS  EXPIRES\n", "", "lease", "ls")
	w.want(0, "*", "", "lease", "ls", "--json", "-a")
	var leases []client.LeaseInfo
	if err := json.Unmarshal([]byte(w.out.String()), &leases); err != nil || len(leases) != 1 || leases[0].Fencing != 7 {
		t.Errorf("%v: %s", err, w.out.String())
	}
	w.want(0, "*", "", "lease", "show", "l-1") // without a secret
	if got := w.out.String(); !strings.Contains(got, `command  e-1 sh -c a\x1b[31m: running`) || strings.Contains(got, "\x1b") {
		t.Errorf("show: %s", got)
	}
	w.want(1, "", "cordon: lease l-2: you have no such lease [see cordon lease ls]\n", "lease", "show", "l-2")
	w.env["CORDON_LEASE_SECRET"] = fakeSecret
	w.want(0, "*", "", "lease", "show", "l-1")
	if d.count("Get") != 1 {
		t.Error("not asked for with the secret")
	}
	w.want(0, "2025-03-04T05:21:07Z\n", "", "lease", "renew", "l-1", "1h30m")
	if d.count("Renew 1h30m0s") != 1 {
		t.Errorf("calls: %v", d.calls)
	}
	w.want(0, "*", "", "lease", "release", "l-1", "--record", "r.json")
	if got := w.out.String(); !strings.HasPrefix(got, "sha256:") || len(got) != 72 {
		t.Errorf("release: %s", got)
	}
	w.want(1, "", "*", "lease", "release", "l-1", "--record", "r.json")
	w.want(0, "*", "", "lease", "release", "l-1", "--record", "r.json", "--force", "--json")
	var got struct {
		LeaseID string `json:"lease_id"`
		Record  evidence.Entry
	}
	if err := json.Unmarshal([]byte(w.out.String()), &got); err != nil || got.LeaseID != "l-1" || got.Record.Link.Sequence != 1 {
		t.Errorf("%v: %s", err, w.out.String())
	}
	d.onRecord = quarantine
	w.want(1, "*", "cordon: lease l-1: is quarantined: something of it may be left on the host [see cordon evidence show l-1]\n", "lease", "release", "l-1")
}

func TestImageAndInputCommands(t *testing.T) {
	chdir(t)
	d := newDaemon(t)
	w := newWorld(t, d)
	w.want(0, "NAME  SIZE    FILES  MADE                 DIGEST\nhost  84 MiB  5120   0001-01-01 00:00:00  "+fakeDigest+"\n", "", "image", "ls")
	w.want(0, fakeDigest+"\n", "", "image", "snapshot")
	w.stdin = strings.NewReader("a tar")
	w.want(0, digestOf([]byte("a tar"))+"\n", "", "image", "import", "mine", "-")
	writeFile(t, "root.tar", "another tar")
	w.want(0, digestOf([]byte("another tar"))+"\n", "", "image", "import", "mine", "root.tar")
	w.want(1, "", "cordon: none.tar: open: no such file or directory\n", "image", "import", "mine", "none.tar")
	w.want(0, "*", "", "image", "import", "mine", "root.tar", "--json")
	var img client.Image
	if err := json.Unmarshal([]byte(w.out.String()), &img); err != nil || img.Name != "mine" || img.Bytes != 11 {
		t.Errorf("%v: %s", err, w.out.String())
	}

	writeFile(t, "data", "data\n")
	digest := digestOf([]byte("data\n"))
	w.want(0, digest+"\n", "", "input", "put", "data")
	w.want(0, "{\n  \"digest\": \""+digest+"\",\n  \"size\": 5\n}\n", "", "input", "put", "--json", "--digest", digest, "data")
	before := d.count("PutInput")
	w.want(1, "", "cordon: data: has the digest "+digest+" [see whether it is the right file]\n", "input", "put", "--digest", fakeDigest, "data")
	w.want(1, "", "cordon: .: is not a regular file [put the data into a file first]\n", "input", "put", ".")
	if d.count("PutInput") != before {
		t.Error("sent all the same")
	}
}

func TestVersion(t *testing.T) {
	w := newWorld(t, newDaemon(t))
	w.want(0, "*", "", "version")
	if got := w.out.String(); !strings.Contains(got, "cordon  1.2.3 (go1") || !strings.Contains(got, "cordond 0.1.0 (runtime r1)") {
		t.Errorf("version: %s", got)
	}
	w = newWorld(t, nil)
	w.want(0, "*", "", "version", "--json")
	var v versions
	if err := json.Unmarshal([]byte(w.out.String()), &v); err != nil || v.Version != "1.2.3" || v.Daemon != nil {
		t.Errorf("%v: %s", err, w.out.String())
	}
}

// TestListsAreNeverNull is for programs that read our JSON.
func TestListsAreNeverNull(t *testing.T) {
	d := newDaemon(t)
	d.images = nil
	w := newWorld(t, d)
	w.want(0, "[]\n", "", "image", "ls", "--json")
}

func TestAbandonable(t *testing.T) {
	d := newDaemon(t)
	w := newWorld(t, d)
	w.stdin = blocked{t.Context()}
	go func() {
		eventually(t, "an upload", func() bool { return d.count("ImportImage") > 0 })
		w.signals <- os.Interrupt
	}()
	w.want(130, "", "cordon: interrupted by SIGINT (2)\n", "image", "import", "mine", "-")
}
