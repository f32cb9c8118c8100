// Package conformance holds the API against clients that nobody here wrote.
//
// It needs root, for the daemon under test. What the project's own client can
// do belongs to tests/lease.
package conformance

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"cordon/tests/daemon"
)

func TestMain(m *testing.M) { daemon.Main(m) }

// grpcurl is built from its Go module, pinned in tools/go.mod.
func grpcurl(t *testing.T) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "grpcurl")
	cmd := exec.Command("go", "build", "-modfile="+filepath.Join(top(), "tools", "go.mod"), "-o", out, "github.com/fullstorydev/grpcurl/cmd/grpcurl")
	cmd.Dir = top()
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build grpcurl: %v: %s", err, b)
	}
	return out
}

func top() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// call sends JSON messages to one method and returns the JSON answers.
func call(t *testing.T, bin, socket, method string, messages ...string) ([]map[string]any, string, error) {
	t.Helper()
	cmd := exec.Command(bin, "-plaintext", "-unix", "-import-path", filepath.Join(top(), "api", "v1"),
		"-proto", "supervisor.proto", "-d", "@", socket, "cordon.v1.Supervisor/"+method)
	cmd.Stdin = strings.NewReader(strings.Join(messages, "\n"))
	var errb strings.Builder
	cmd.Stderr = &errb
	out, err := cmd.Output()
	var answers []map[string]any
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for dec.More() {
		var m map[string]any
		if derr := dec.Decode(&m); derr != nil {
			t.Fatalf("%s answered %q: %v", method, out, derr)
		}
		answers = append(answers, m)
	}
	return answers, errb.String(), err
}

// TestGRPCurl acquires, runs a command in and releases a lease with grpcurl
// and the .proto file alone.
func TestGRPCurl(t *testing.T) {
	d := daemon.New(t, daemon.Options{})
	e := d.Envelope(d.Client())
	bin := grpcurl(t)
	must := func(method string, messages ...string) []map[string]any {
		t.Helper()
		answers, stderr, err := call(t, bin, d.Socket, method, messages...)
		if err != nil {
			t.Fatalf("%s: %v: %s\n%s", method, err, stderr, d.Log())
		}
		return answers
	}

	got := must("Acquire", `{"idempotencyKey":"k1","envelope":{"imageDigest":"`+e.ImageDigest+`","identity":{"tenant":"root","runId":"curl"}}}`)
	lease := got[0]["lease"].(map[string]any)["id"].(string)
	secret := got[0]["leaseSecret"].(string)
	ref := `"ref":{"leaseId":"` + lease + `","leaseSecret":"` + secret + `"}`

	got = must("Exec", `{"start":{`+ref+`,"argv":["cat"]}}`,
		`{"stdin":"`+base64.StdEncoding.EncodeToString([]byte("by hand\n"))+`"}`, `{"closeStdin":true}`)
	var out string
	for _, m := range got {
		if s, ok := m["stdout"].(string); ok {
			b, err := base64.StdEncoding.DecodeString(s)
			if err != nil {
				t.Fatal(err)
			}
			out += string(b)
		}
	}
	end, _ := got[len(got)-1]["end"].(map[string]any)
	if out != "by hand\n" || end["cause"] != "END_CAUSE_EXITED" {
		t.Errorf("exec answered %v", got)
	}

	got = must("Release", `{`+ref+`}`)
	record, _ := got[0]["record"].(map[string]any)
	if record["json"] == "" || record["head"] == "" {
		t.Errorf("release answered %v", got)
	}
	if left := d.Leftovers(lease); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}

	// What the API does not have, it does not have.
	if out, err := exec.Command(bin, "-plaintext", "-unix", d.Socket, "list").CombinedOutput(); err == nil {
		t.Errorf("reflection answered: %s", out)
	}
	if _, stderr, err := call(t, bin, d.Socket, "Get", `{"ref":{"leaseId":"`+lease+`","leaseSecret":"`+strings.Repeat("0", 32)+`"}}`); err == nil || !strings.Contains(stderr, "NotFound") {
		t.Errorf("a wrong secret: %v %s", err, stderr)
	}
	if _, err := os.Stat(d.Socket); err != nil {
		t.Error(err)
	}
}
