package main

import (
	"fmt"
	"syscall"

	"cordon/api/client"
	"cordon/supervisor/envelope"
)

// The exit statuses of the container convention.
const (
	statusFailed  = 125 // ours or the daemon's failure
	statusSignal  = 128 // plus the signal
	statusLimit   = statusSignal + int(syscall.SIGKILL)
	statusSeccomp = statusSignal + int(syscall.SIGSYS)
	statusPipe    = statusSignal + int(syscall.SIGPIPE)
)

// statusOf is the exit status for an end. What a limit ended was killed, and
// looks like it, whatever the command made of its last moments.
func statusOf(e client.End) int {
	if e.StartCode != 0 {
		return e.StartCode
	}
	switch e.Cause {
	case client.Exited:
		return e.ExitCode
	case client.Signalled:
		return statusSignal + e.Signal
	case client.SeccompKilled:
		return statusSeccomp
	case client.OOMKilled, client.TimedOut, client.OutputExceeded, client.DiskExceeded, client.PidsExceeded,
		client.EgressBudgetExceeded, client.CommandCancelled, client.LeaseExpired, client.Released:
		return statusLimit
	case client.Infrastructure:
		return statusFailed
	}
	return statusFailed
}

// causeOf is the typed cause as one line without a newline, or "" for a
// command that ended by itself. What is known of the command and of its
// limits makes it clearer; both may be left out.
func causeOf(e client.End, command string, env *envelope.Envelope) string {
	switch {
	case e.StartCode != 0:
		return plain(notStarted(e, command))
	case e.Cause == client.Exited:
		return ""
	}
	name, text := string(e.Cause), e.Detail
	if name == "" {
		name = string(client.Infrastructure)
	}
	if text == "" {
		text = causeText(e)
	}
	if limit, flag := limitOf(e.Cause, env); flag != "" {
		text += " (" + limit + ") [raise " + flag + "]"
	}
	if e.Witness == "init" {
		text += " (by the word of the sandbox's own init)"
	}
	return plain(name + ": " + text)
}

// notStarted has no witness: that nothing ran is only ever said by init, or by
// ourselves.
func notStarted(e client.End, command string) string {
	text := "not_started: "
	if command != "" {
		text += command + ": "
	}
	if e.Detail == "" {
		return text + unexplained
	}
	return text + e.Detail
}

const unexplained = "the daemon gave no reason [see its log]"

// causeText is for ends of which the daemon says no more than the cause.
func causeText(e client.End) string {
	switch e.Cause {
	case client.Signalled:
		return signalName(syscall.Signal(e.Signal))
	case client.OOMKilled:
		return "it used more than its memory"
	case client.TimedOut:
		return "it used up its time"
	case client.OutputExceeded:
		return "it wrote more than its output may be"
	case client.DiskExceeded:
		return "it filled its disk space"
	case client.PidsExceeded:
		return "it had more than its processes"
	case client.SeccompKilled:
		return "it made a system call that no sandbox may make"
	case client.EgressBudgetExceeded:
		return "it sent more than its network budget"
	case client.CommandCancelled:
		return "its caller left"
	case client.LeaseExpired:
		return "the lease's time was over [acquire a longer one, or renew it]"
	case client.Released:
		return "the lease was released"
	case client.Exited, client.Infrastructure:
	}
	return unexplained
}

// limitOf is the limit that a cause is about, and the flag of run that moves
// it; "" when it is about none, or the limits are not known.
func limitOf(c client.Cause, env *envelope.Envelope) (limit, flag string) {
	if env == nil {
		return "", ""
	}
	switch r := env.Resources; c {
	case client.OOMKilled:
		return formatBytes(r.MemoryBytes), "--memory"
	case client.TimedOut:
		return formatLength(r.WallClock), "--timeout"
	case client.OutputExceeded:
		return formatBytes(r.OutputBytes), "--output-limit"
	case client.DiskExceeded:
		return formatBytes(r.DiskBytes), "--disk"
	case client.PidsExceeded:
		return fmt.Sprint(r.ProcessCount), "--pids"
	case client.Exited, client.Signalled, client.SeccompKilled, client.EgressBudgetExceeded,
		client.CommandCancelled, client.LeaseExpired, client.Infrastructure, client.Released:
	}
	return "", ""
}

// signalName is the name of a signal with its number.
func signalName(s syscall.Signal) string {
	if name, ok := signalNames[s]; ok {
		return fmt.Sprintf("%s (%d)", name, int(s))
	}
	return fmt.Sprintf("signal %d", int(s))
}

// signalNames has what commands usually end by; the rest are numbers.
var signalNames = map[syscall.Signal]string{
	syscall.SIGHUP: "SIGHUP", syscall.SIGINT: "SIGINT", syscall.SIGQUIT: "SIGQUIT", syscall.SIGILL: "SIGILL",
	syscall.SIGTRAP: "SIGTRAP", syscall.SIGABRT: "SIGABRT", syscall.SIGBUS: "SIGBUS", syscall.SIGFPE: "SIGFPE",
	syscall.SIGKILL: "SIGKILL", syscall.SIGUSR1: "SIGUSR1", syscall.SIGSEGV: "SIGSEGV", syscall.SIGUSR2: "SIGUSR2",
	syscall.SIGPIPE: "SIGPIPE", syscall.SIGALRM: "SIGALRM", syscall.SIGTERM: "SIGTERM", syscall.SIGSYS: "SIGSYS",
	syscall.SIGXCPU: "SIGXCPU", syscall.SIGXFSZ: "SIGXFSZ",
}
