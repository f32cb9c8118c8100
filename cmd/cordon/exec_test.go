package main

import (
	"io"
	"strings"
	"syscall"
	"testing"
)

func TestExecFindsTheSecret(t *testing.T) {
	chdir(t)
	d := newDaemon(t)
	w := newWorld(t, d)
	missing := "cordon: lease l-1: this user has no secret of it here " +
		"[use --secret-file or CORDON_LEASE_SECRET, or acquire the lease as this user]\n"
	w.want(125, "", missing, "exec", "l-1", "both")

	w.want(0, "l-1\n", "", "lease", "acquire")
	w.want(0, "out\n", "err\n", "exec", "l-1", "both")
	w.want(0, "out\n", "err\n", "exec", "l-1", "--", "both")
	w.want(5, "", "", "exec", "l-1", "exit", "5")
	w.want(137, "", "cordon: oom_killed: it used more than its memory\n", "exec", "l-1", "cause", "oom_killed")

	// The environment goes before what was kept, and a file before both.
	w.env["CORDON_LEASE_SECRET"] = "wrong"
	w.want(125, "", "cordon: lease: no such lease [acquire one]\n", "exec", "l-1", "both")
	writeFile(t, "secret", fakeSecret+"\n")
	w.want(0, "*", "*", "exec", "--secret-file", "secret", "l-1", "both")
	w.want(125, "", "*", "exec", "--secret-file", "nowhere", "l-1", "both")
	delete(w.env, "CORDON_LEASE_SECRET")

	if d.count("Release") != 0 {
		t.Error("exec released the lease")
	}
	w.want(125, "", "*", "exec", "../l-1", "both")
	if !strings.Contains(w.err.String(), "is not a lease id") {
		t.Errorf("stderr: %s", w.err.String())
	}
}

func TestExecFlags(t *testing.T) {
	d := newDaemon(t)
	w := newWorld(t, d)
	w.env["CORDON_LEASE_SECRET"] = fakeSecret
	w.want(0, "*", "*", "exec", "--timeout", "3s", "--keep", "l-1", "both", "-t")
	if d.start.GetTimeout().AsDuration().String() != "3s" || !d.start.GetKeep() || len(d.start.GetArgv()) != 2 {
		t.Errorf("start = %v", d.start)
	}
	w.want(3, "", "*", "exec", "--json", "l-1", "exit", "3")
	if !strings.HasPrefix(w.err.String(), `{"exit_status":3,"end":{"cause":"exited"`) {
		t.Errorf("stderr: %s", w.err.String())
	}
}

func TestExecDetach(t *testing.T) {
	d := newDaemon(t)
	w := newWorld(t, d)
	w.env["CORDON_LEASE_SECRET"] = fakeSecret
	w.want(0, "e-1\n", "", "exec", "--detach", "l-1", "wait")
	if !d.start.GetKeep() {
		t.Error("the command ends with its stream")
	}
	w.want(0, "{\n  \"exec_id\": \"e-1\"\n}\n", "", "exec", "-d", "--json", "l-1", "wait")
	w.want(125, "", "*", "exec", "-d", "-t", "l-1", "wait")
}

func TestExecKeptGoesOnAfterAHangup(t *testing.T) {
	d := newDaemon(t)
	w := newWorld(t, d)
	w.env["CORDON_LEASE_SECRET"] = fakeSecret
	w.stdin = blocked{t.Context()}
	go func() {
		eventually(t, "a command", func() bool { return d.count("Exec") > 0 })
		// Started comes before what follows is read.
		w.signals <- syscall.SIGUSR1
		eventually(t, "a signal", func() bool { d.mu.Lock(); defer d.mu.Unlock(); return len(d.signals) > 0 })
		w.signals <- syscall.SIGHUP
	}()
	w.want(129, "", "cordon: command e-1 goes on [cordon attach l-1 e-1]\ncordon: interrupted by SIGHUP (1)\n",
		"exec", "--keep", "l-1", "stubborn")
}

func TestAttach(t *testing.T) {
	d := newDaemon(t)
	w := newWorld(t, d)
	w.env["CORDON_LEASE_SECRET"] = fakeSecret
	input, keys := io.Pipe()
	w.stdin = input
	go func() {
		eventually(t, "a size", func() bool { d.mu.Lock(); defer d.mu.Unlock(); return len(d.resizes) > 0 })
		_ = keys.Close()
	}()
	w.want(3, "tail\n", "", "attach", "-t", "l-1", "e-9")
	if d.count("Attach e-9") != 1 || len(d.resizes) != 1 {
		t.Errorf("calls %v, sizes %v", d.calls, d.resizes)
	}
}

func TestExport(t *testing.T) {
	chdir(t)
	d := newDaemon(t)
	d.artifacts["out/result.json"] = []byte("{}\n")
	w := newWorld(t, d)
	w.env["CORDON_LEASE_SECRET"] = fakeSecret
	digest := digestOf([]byte("{}\n"))
	w.want(0, "result.json  3 B  "+digest+"\n", "", "export", "l-1", "out/result.json")
	w.want(1, "", "cordon: result.json: exists already [choose another name, or use --force]\n", "export", "l-1", "out/result.json")
	w.want(0, "*", "", "export", "--force", "l-1", "out/result.json", "-o", "result.json")
	w.want(0, "{}\n", "", "export", "l-1", "out/result.json", "-o", "-")
	w.want(0, "{}\n", `{"path":"out/result.json","file":"-","digest":"`+digest+`","size":3}`+"\n",
		"export", "l-1", "out/result.json", "-o", "-", "--json")
	w.want(1, "", "cordon: nope: the run wrote no such file\n", "export", "l-1", "nope")
	d.artifacts["bad"] = []byte("corrupt")
	w.want(1, "", "*", "export", "l-1", "bad")
	if got := names(t, "."); len(got) != 1 {
		t.Errorf("left: %v", got)
	}
	if !strings.Contains(w.err.String(), "[discard what was written, and export again]") {
		t.Errorf("stderr: %s", w.err.String())
	}
}
