package supervisor

import (
	"encoding/json"
	"errors"
	"testing"

	"cordon/jail"
)

func TestTransitions(t *testing.T) {
	states := []State{Requested, Preparing, Active, Draining, Closing, Closed, Quarantined}
	allowed := map[[2]State]bool{
		{Requested, Preparing}: true, {Requested, Draining}: true,
		{Preparing, Active}: true, {Preparing, Draining}: true,
		{Active, Draining}: true, {Draining, Closing}: true,
		{Closing, Closed}: true, {Closing, Quarantined}: true,
		{Quarantined, Closed}: true,
	}
	for _, from := range append(states, 0, 99) {
		for _, to := range append(states, 0, 99) {
			got, err := from.to(to)
			if allowed[[2]State{from, to}] {
				if got != to || err != nil {
					t.Errorf("%s to %s: got %s, %v", from, to, got, err)
				}
				continue
			}
			var bad *TransitionError
			if got != from || !errors.As(err, &bad) || bad.From != from || bad.To != to {
				t.Errorf("%s to %s: got %s, %v", from, to, got, err)
			}
		}
	}
}

func TestStateText(t *testing.T) {
	for state, name := range stateNames {
		raw, err := json.Marshal(state)
		if err != nil || string(raw) != `"`+name+`"` {
			t.Errorf("%s: got %s, %v", name, raw, err)
		}
		var back State
		if err := json.Unmarshal(raw, &back); err != nil || back != state {
			t.Errorf("%s: came back as %s, %v", name, back, err)
		}
	}
	var s State
	if err := s.UnmarshalText([]byte("asleep")); err == nil {
		t.Error("unknown name: accepted")
	}
	if _, err := State(0).MarshalText(); err == nil {
		t.Error("zero state: encoded")
	}
}

func TestEndCauseText(t *testing.T) {
	for c := EndCause(0); c <= CauseReleased; c++ {
		raw, err := c.MarshalText()
		if err != nil || (c != 0 && len(raw) == 0) {
			t.Errorf("%d: got %q, %v", c, raw, err)
		}
		var back EndCause
		if err := back.UnmarshalText(raw); err != nil || back != c {
			t.Errorf("%q: came back as %v, %v", raw, back, err)
		}
	}
	var c EndCause
	if err := c.UnmarshalText([]byte("bored")); err == nil {
		t.Error("unknown name: accepted")
	}
}

func TestComposeEnd(t *testing.T) {
	kernel := func(e jail.ExecEnd) jail.ExecEnd { e.Witness = "kernel"; return e }
	byInit := func(e jail.ExecEnd) jail.ExecEnd { e.Witness = "init"; return e }
	killed := kernel(jail.ExecEnd{Signal: 9})
	missing := byInit(jail.ExecEnd{Start: &jail.StartError{Code: 127, Step: "lookup", Text: "none"}})
	notExec := byInit(jail.ExecEnd{Start: &jail.StartError{Code: 126, Step: "exec", Text: "denied"}})
	noCwd := byInit(jail.ExecEnd{Start: &jail.StartError{Code: 125, Step: "cwd", Text: "none"}})
	timedOut, output := act{cause: CauseTimedOut}, act{cause: CauseOutputExceeded}
	died := act{cause: CauseInfrastructure, detail: "PID 1 died"}
	diedOOM := act{cause: CauseOOMKilled}
	tests := []struct {
		name string
		seen jail.ExecEnd
		did  act
		want End
	}{
		{"exit 0", kernel(jail.ExecEnd{}), act{}, End{Cause: CauseExited}},
		{"exit 3", kernel(jail.ExecEnd{ExitCode: 3}), act{}, End{Cause: CauseExited, ExitCode: 3}},
		{"exit 137 is no OOM kill", kernel(jail.ExecEnd{ExitCode: 137, OOMKills: 1}), act{}, End{Cause: CauseExited, ExitCode: 137}},
		{"exit by init's word", byInit(jail.ExecEnd{ExitCode: 3}), act{}, End{Cause: CauseExited, ExitCode: 3}},
		{"a code that no wait status holds", byInit(jail.ExecEnd{ExitCode: 1 << 60}), act{}, End{Cause: CauseExited}},
		{"a signal that is none", byInit(jail.ExecEnd{Signal: 1<<60 + 3}), act{}, End{Cause: CauseSignalled, Signal: 3}},
		{"signal", kernel(jail.ExecEnd{Signal: 15}), act{}, End{Cause: CauseSignalled, Signal: 15}},
		{"SIGKILL of unknown origin", killed, act{}, End{Cause: CauseSignalled, Signal: 9}},
		{"OOM kill", kernel(jail.ExecEnd{Signal: 9, OOMKills: 1}), act{}, End{Cause: CauseOOMKilled}},
		{"OOM kill of a child, then SIGTERM", kernel(jail.ExecEnd{Signal: 15, OOMKills: 1}), act{}, End{Cause: CauseSignalled, Signal: 15}},
		{"seccomp", kernel(jail.ExecEnd{Signal: 31, SeccompKilled: true}), act{}, End{Cause: CauseSeccompKilled}},
		{"SIGSYS that was sent", kernel(jail.ExecEnd{Signal: 31}), act{}, End{Cause: CauseSignalled, Signal: 31}},
		{"timeout", killed, timedOut, End{Cause: CauseTimedOut}},
		{"timeout, OOM kill of a child before", kernel(jail.ExecEnd{Signal: 9, OOMKills: 1}), timedOut, End{Cause: CauseTimedOut}},
		{"exit just before the kill", kernel(jail.ExecEnd{ExitCode: 4}), timedOut, End{Cause: CauseExited, ExitCode: 4}},
		{"SIGTERM just before the kill", kernel(jail.ExecEnd{Signal: 15}), timedOut, End{Cause: CauseSignalled, Signal: 15}},
		{"seccomp just before the kill", kernel(jail.ExecEnd{Signal: 31, SeccompKilled: true}), timedOut, End{Cause: CauseSeccompKilled}},
		{"timeout, init says exit 0", byInit(jail.ExecEnd{}), timedOut, End{Cause: CauseTimedOut}},
		{"timeout, nobody says anything", jail.ExecEnd{}, timedOut, End{Cause: CauseTimedOut}},
		{"output, killed", killed, output, End{Cause: CauseOutputExceeded}},
		{"output, exit 0 came first", kernel(jail.ExecEnd{}), output, End{Cause: CauseOutputExceeded}},
		{"output, seccomp", kernel(jail.ExecEnd{Signal: 31, SeccompKilled: true}), output, End{Cause: CauseOutputExceeded}},
		{"PID 1 died", killed, died, End{Cause: CauseInfrastructure, Detail: "PID 1 died"}},
		{"PID 1 died, own OOM kill", kernel(jail.ExecEnd{Signal: 9, OOMKills: 1}), died, End{Cause: CauseOOMKilled}},
		{"PID 1 died of OOM", killed, diedOOM, End{Cause: CauseOOMKilled}},
		{"PID 1 died, seccomp", kernel(jail.ExecEnd{Signal: 31, SeccompKilled: true}), died, End{Cause: CauseSeccompKilled}},
		{"exit, PID 1 died after", kernel(jail.ExecEnd{ExitCode: 1}), died, End{Cause: CauseExited, ExitCode: 1}},
		{"not found", missing, act{}, End{Cause: CauseExited, ExitCode: 127, StartCode: 127, Detail: "start command: lookup: none"}},
		{"not executable", notExec, act{}, End{Cause: CauseExited, ExitCode: 126, StartCode: 126, Detail: "start command: exec: denied"}},
		{"no such directory", noCwd, act{}, End{Cause: CauseInfrastructure, StartCode: 125, Detail: "start command: cwd: none"}},
		{"not found, then a timeout", missing, timedOut, End{Cause: CauseExited, ExitCode: 127, StartCode: 127, Detail: "start command: lookup: none"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := composeEnd(tt.seen, tt.did)
			witness := got.Witness
			got.Witness = ""
			if got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if wantWitness := tt.seen.Witness; witness != wantWitness && got.StartCode != 125 {
				t.Errorf("witness %q, want %q", witness, wantWitness)
			}
		})
	}
}

func TestComposeEndKeepsCounts(t *testing.T) {
	usage := jail.Usage{MemoryPeak: 7, PidsRefused: 2}
	got := composeEnd(jail.ExecEnd{Descendants: 3, Usage: usage, Witness: "kernel"}, act{})
	if got.Descendants != 3 || got.Usage.Usage != usage {
		t.Errorf("got %+v", got)
	}
}
