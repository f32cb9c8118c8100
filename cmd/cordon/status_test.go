package main

import (
	"testing"
	"time"

	"cordon/api/client"
	"cordon/supervisor/envelope"
)

func TestStatusAndCause(t *testing.T) {
	env := &envelope.Envelope{Resources: envelope.Resources{
		MemoryBytes: 512 << 20, WallClock: time.Minute, OutputBytes: 1 << 20, DiskBytes: 1 << 30, ProcessCount: 32,
	}}
	for _, c := range []struct {
		end    client.End
		status int
		cause  string
	}{
		{client.End{Cause: client.Exited}, 0, ""},
		{client.End{Cause: client.Exited, ExitCode: 3}, 3, ""},
		{client.End{Cause: client.Exited, ExitCode: 255, Witness: "init"}, 255, ""},
		{client.End{Cause: client.Exited, ExitCode: 127, StartCode: 127, Detail: "no such file", Witness: "init"}, 127, "not_started: cmd: no such file"},
		{client.End{Cause: client.Exited, StartCode: 126}, 126, "not_started: cmd: the daemon gave no reason [see its log]"},
		{client.End{Cause: client.Infrastructure, StartCode: 125, Detail: "a\nb"}, 125, `not_started: cmd: a\nb`},
		{client.End{Cause: client.Signalled, Signal: 15}, 143, "signalled: SIGTERM (15)"},
		{client.End{Cause: client.Signalled, Signal: 40, Witness: "init"}, 168, "signalled: signal 40 (by the word of the sandbox's own init)"},
		{client.End{Cause: client.OOMKilled}, 137, "oom_killed: it used more than its memory (512 MiB) [raise --memory]"},
		{client.End{Cause: client.TimedOut, Signal: 9}, 137, "timed_out: it used up its time (1m) [raise --timeout]"},
		{client.End{Cause: client.TimedOut, Detail: "after 3s"}, 137, "timed_out: after 3s (1m) [raise --timeout]"},
		{client.End{Cause: client.OutputExceeded, ExitCode: 1}, 137, "output_exceeded: it wrote more than its output may be (1 MiB) [raise --output-limit]"},
		{client.End{Cause: client.DiskExceeded}, 137, "disk_exceeded: it filled its disk space (1 GiB) [raise --disk]"},
		{client.End{Cause: client.PidsExceeded}, 137, "pids_exceeded: it had more than its processes (32) [raise --pids]"},
		{client.End{Cause: client.SeccompKilled}, 159, "seccomp_killed: it made a system call that no sandbox may make"},
		{client.End{Cause: client.EgressBudgetExceeded}, 137, "egress_budget_exceeded: it sent more than its network budget"},
		{client.End{Cause: client.CommandCancelled}, 137, "cancelled: its caller left"},
		{client.End{Cause: client.LeaseExpired}, 137, "lease_expired: the lease's time was over [acquire a longer one, or renew it]"},
		{client.End{Cause: client.Infrastructure, Detail: "no disk"}, 125, "infrastructure: no disk"},
		{client.End{}, 125, "infrastructure: the daemon gave no reason [see its log]"},
		{client.End{Cause: "of_tomorrow"}, 125, "of_tomorrow: the daemon gave no reason [see its log]"},
	} {
		if got := statusOf(c.end); got != c.status {
			t.Errorf("statusOf(%+v) = %d, want %d", c.end, got, c.status)
		}
		if got := causeOf(c.end, "cmd", env); got != c.cause {
			t.Errorf("causeOf(%+v) = %q, want %q", c.end, got, c.cause)
		}
	}
	if got := causeOf(client.End{Cause: client.OOMKilled}, "", nil); got != "oom_killed: it used more than its memory" {
		t.Errorf("a limit that is not known: %q", got)
	}
}
