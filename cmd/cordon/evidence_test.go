package main

import (
	"crypto/ed25519"
	"encoding/json"
	"strings"
	"testing"

	"cordon/jail"
	"cordon/supervisor/evidence"
)

// signed makes a chain out of records, one line each.
func signed(t *testing.T, d *daemon, recs ...evidence.Record) []string {
	t.Helper()
	var docs []string
	at := evidence.Position{HostID: "h-1"}
	for _, rec := range recs {
		doc, next, err := sign(rec, at, d.key)
		if err != nil {
			t.Fatal(err)
		}
		docs, at = append(docs, string(doc)+"\n"), next
	}
	return docs
}

func reportOf(t *testing.T, d *daemon, rec evidence.Record) evidence.Report {
	t.Helper()
	r, err := evidence.Verify([]byte(signed(t, d, rec)[0]), d.key.Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRecordIsReadableOnOneScreen(t *testing.T) {
	text := recordText(reportOf(t, newDaemon(t), exampleRecord()))
	fits(t, text)
	if strings.ContainsAny(text, "\x1b\a") {
		t.Error("what a tenant wrote reaches the terminal")
	}
	golden(t, "record.txt", text)
}

func TestRecordOfTrouble(t *testing.T) {
	rec := exampleRecord()
	quarantine(&rec)
	rec.Supersedes = "sha256:" + strings.Repeat("0", 64)
	rec.ReadBack[1] = jail.Check{Name: "pids.max", Want: "32", Got: "max"}
	rec.Cleanup.Errors = []string{"umount: device or resource busy"}
	rec.Gaps = []string{"usage could not be read"}
	rec.Exports[0].Complete, rec.Exports[0].Digest = false, ""
	rec.Network.Unlisted = 4
	rec.ExecsUnlisted = 2
	for range 20 {
		rec.Network.Destinations = append(rec.Network.Destinations, evidence.Destination{
			Hook: "connect6", Address: "2001:db8::1", Port: 53, Proto: "udp", Verdict: "deny", Errno: "EPERM", Count: 1,
		})
	}
	golden(t, "trouble.txt", recordText(reportOf(t, newDaemon(t), rec)))
}

func TestRecordOfNothing(t *testing.T) {
	rec := exampleRecord()
	rec.Execs, rec.Exports, rec.Inputs, rec.ReadBack = nil, nil, nil, nil
	rec.Network = evidence.Network{}
	rec.Identity = evidence.Identity{Tenant: "acme", RunID: "run-1", AttemptID: "1"}
	golden(t, "nothing.txt", recordText(reportOf(t, newDaemon(t), rec)))
}

func TestEvidenceShow(t *testing.T) {
	d := newDaemon(t)
	w := newWorld(t, d)
	w.want(1, "", "cordon: lease: no record\n", "evidence", "show", "l-1")
	w.want(0, "*", "*", "run", "both")
	w.want(0, "*", "", "evidence", "show", "l-1")
	if got := w.out.String(); !strings.Contains(got, "signed   valid, by ed25519:") {
		t.Errorf("show: %s", got)
	}
	w.want(0, string(d.record)+"\n", "", "evidence", "show", "--raw", "l-1")
	w.want(0, "*", "", "evidence", "show", "--json", "l-1")
	var got struct{ Record evidence.Record }
	if err := json.Unmarshal([]byte(w.out.String()), &got); err != nil || got.Record.Lease.ID != "l-1" {
		t.Errorf("%v: %s", err, w.out.String())
	}
	other := strings.Repeat("A", 43) + "="
	w.want(1, "", "*", "evidence", "show", "--key", other, "l-1")
	if !strings.Contains(w.err.String(), "signed by another key") {
		t.Errorf("stderr: %s", w.err.String())
	}
}

func TestEvidenceVerify(t *testing.T) {
	chdir(t)
	d := newDaemon(t)
	w := newWorld(t, d)
	w.want(0, "*", "", "evidence", "key")
	writeFile(t, "host.pub", w.out.String())
	w.want(0, "*", "", "evidence", "key", "--json")
	var key struct {
		Base64 string `json:"record_key"`
	}
	if err := json.Unmarshal([]byte(w.out.String()), &key); err != nil {
		t.Fatal(err)
	}
	w.env["CORDON_SOCKET"] = "/nowhere" // from here on, offline

	second := exampleRecord()
	second.Lease.ID = "l-2"
	docs := signed(t, d, exampleRecord(), second)
	writeFile(t, "1", docs[0])
	writeFile(t, "2", docs[1])
	writeFile(t, "both", docs[0]+docs[1])
	writeFile(t, "gap", docs[1]+docs[0])
	writeFile(t, "forged", strings.Replace(docs[0], `"fencing":7`, `"fencing":8`, 1))
	writeFile(t, "junk", "not a record")
	head := reportOf(t, d, exampleRecord()).Head

	for _, c := range []struct {
		args   string
		status int
		stdout string // part of it
	}{
		{"--key host.pub 1", 0, "1: ok: lease l-1, entry 1 of host h-1, head " + head},
		{"--key " + key.Base64 + " 1 2", 0, "2: ok: lease l-2, entry 2 of host h-1"},
		{"--key host.pub both", 0, "both: ok: lease l-2, entry 2 of host h-1"},
		{"--key host.pub -v 1", 0, "  remained: nothing, looked for processes"},
		{"--key host.pub --head " + head + " 1", 0, "ok"},
		{"--key host.pub --head " + head + " 2", 1, "2: FAILED: head is sha256:"},
		{"--key host.pub --chain 1 2", 0, "chain of 1, 2: ok: lease l-2"},
		{"--key host.pub --chain 2 1", 1, "chain of 2, 1: FAILED: verify chain: entry 2: sequence number does not follow"},
		{"--key host.pub gap", 1, "gap: FAILED: verify chain"},
		{"--key host.pub 1 forged 2", 1, "forged: FAILED: verify record: record does not match its digest"},
		{"--key host.pub junk", 1, "junk: FAILED"},
		{"--key host.pub missing", 1, "missing: FAILED"},
		{"--key " + strings.Repeat("A", 43) + "= 1", 1, "1: FAILED: verify record: signed by another key"},
	} {
		w.want(c.status, "*", "", append([]string{"evidence", "verify"}, strings.Fields(c.args)...)...)
		if !strings.Contains(w.out.String(), c.stdout) {
			t.Errorf("%s: %s", c.args, w.out.String())
		}
	}
	w.want(1, "", "*", "evidence", "verify", "--key", "hots.pub", "1")
	if !strings.Contains(w.err.String(), "neither a file that exists nor a public key") {
		t.Errorf("stderr: %s", w.err.String())
	}
	w.want(2, "", "*", "evidence", "verify", "--key", "host.pub", "--head", head, "1", "2")
	w.want(1, "*", "", "evidence", "verify", "--json", "--key", "host.pub", "1", "forged")
	var got []verified
	if err := json.Unmarshal([]byte(w.out.String()), &got); err != nil || len(got) != 2 || !got[0].OK || got[1].OK || got[1].Cause == "" {
		t.Errorf("%v: %s", err, w.out.String())
	}
}
