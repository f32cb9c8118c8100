package linux

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cordon/jail"
)

// Signal sends a signal to the command's first process.
func (e *Exec) Signal(sig int) error { return e.pidfd.Signal(unix.Signal(sig)) }

func (e *Exec) killLeaf() error { return killGroup(e.jail.host.groups.v2path(e.rel())) }

// Kill ends every process of the command; Wait then returns when the last of
// them has ended.
func (e *Exec) Kill() error {
	e.killed.Store(true)
	return e.killLeaf()
}

// Stdin is the command's standard input.
func (e *Exec) Stdin() io.WriteCloser { return e.stdio.in }

// Stdout is the command's standard output, or its terminal.
func (e *Exec) Stdout() io.Reader { return e.stdio.out }

// Stderr is the command's standard error; nil with a terminal.
func (e *Exec) Stderr() io.Reader {
	if e.stdio.err == nil {
		return nil
	}
	return e.stdio.err
}

// Resize sets the terminal's size.
func (e *Exec) Resize(rows, cols uint16) error { return e.stdio.resize(rows, cols) }

// watch notes the end of the first process. Output that is buffered by then
// is still read; what a descendant writes after a grace is not waited for.
func (e *Exec) watch() {
	defer close(e.ended)
	_ = e.pidfd.Wait(context.Background())
	e.stdio.processEnded()
}

// Wait returns when the command's first process has ended.
func (e *Exec) Wait(ctx context.Context) (jail.ExecEnd, error) {
	select {
	case <-e.ended:
	case <-ctx.Done():
		return jail.ExecEnd{}, context.Cause(ctx)
	}
	ws, witness, err := e.status(ctx)
	if err != nil {
		return jail.ExecEnd{}, err
	}
	if e.killed.Load() {
		if err := e.jail.parts.group.waitEvent(ctx, e.jail.host.groups.v2path(e.rel()), "populated", "0"); err != nil {
			return jail.ExecEnd{}, err
		}
	}
	end := jail.ExecEnd{Witness: witness, Usage: e.jail.host.groups.usage(e.rel()), Descendants: e.alive()}
	end.OOMKills = end.Usage.OOMKills
	if ws.Signaled() {
		end.Signal = int(ws.Signal())
		end.SeccompKilled = ws.Signal() == unix.SIGSYS && seccompRecord(e.pid)
	} else {
		end.ExitCode = ws.ExitStatus()
	}
	return end, nil
}

// reapTimeout is how long PID 1 may take to reap a child that has ended.
const reapTimeout = 5 * time.Second

// status is how the process ended: the kernel's word where it can be had,
// else PID 1's.
func (e *Exec) status(ctx context.Context) (unix.WaitStatus, string, error) {
	ctx, cancel := context.WithTimeout(ctx, reapTimeout)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if ws, ok := e.pidfd.ExitStatus(); ok {
			return ws, "kernel", nil
		}
		if ws, ok := e.exited.get(); ok && !e.jail.host.features.PidfdInfo {
			return ws, "init", nil
		}
		select {
		case <-e.exited.ch:
			if !e.jail.host.features.PidfdInfo {
				continue
			}
			<-tick.C // reaped: the kernel's word is a moment away
		case <-tick.C:
		case <-ctx.Done():
			return 0, "", fmt.Errorf("exec %s: PID 1 did not reap it: %w", e.id, context.Cause(ctx))
		}
	}
}

// alive counts the command's processes, its first one's descendants.
func (e *Exec) alive() int {
	b, err := os.ReadFile(filepath.Join(e.jail.host.groups.v2path(e.rel()), "cgroup.procs"))
	if err != nil {
		return 0
	}
	return len(strings.Fields(string(b)))
}

// Close releases what the host holds. The leaf goes now if it is empty, else
// with the lease.
func (e *Exec) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	<-e.ended
	e.jail.forget(e)
	err := errors.Join(e.stdio.close(), e.pidfd.Close())
	if e.alive() == 0 {
		e.jail.inherit(e.rel())
		err = errors.Join(err, e.removeLeaf())
	}
	return err
}

// inherit keeps the counts of a leaf that is about to go.
func (j *Jail) inherit(rel string) {
	u := j.host.groups.usage(rel)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.refused += u.PidsRefused
	j.oomKills += u.OOMKills
}

func (e *Exec) removeLeaf() error {
	var errs []error
	for _, dir := range e.jail.host.groups.dirs(e.rel()) {
		errs = append(errs, removeTree(context.Background(), dir))
	}
	return errors.Join(errs...)
}
