package linux

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// spare is the one child of a jail that waits before it is needed: joining
// the v2 tree takes the kernel 8-18 ms after idle, which a command need not
// wait for. Guarded by Jail.mu.
type spare struct {
	child  *Exec
	making chan struct{} // closed when the one being made is there or failed; nil otherwise
	taken  bool          // the one being made has its taker
}

// wantSpare has a spare made in the background, unless there is one or the
// jail is closed.
func (j *Jail) wantSpare() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed || j.spare.child != nil || j.spare.making != nil {
		return
	}
	j.spare.making, j.spare.taken = make(chan struct{}), false
	j.tasks.Go(j.makeSpare)
}

func (j *Jail) makeSpare() {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	var e *Exec
	s, err := newPipes()
	if err == nil {
		// Without a spare the next command makes its own child, and reports
		// what is wrong.
		if e, err = j.park(ctx, s); err != nil {
			e = nil
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.spare.child = e
	close(j.spare.making)
	j.spare.making = nil
}

// takeSpare returns the spare, waiting for one that is being made unless
// somebody waits for it already; nil when there is none.
func (j *Jail) takeSpare(ctx context.Context) *Exec {
	j.mu.Lock()
	making := j.spare.making
	if making != nil && !j.spare.taken {
		j.spare.taken = true
		j.mu.Unlock()
		select {
		case <-making:
		case <-ctx.Done():
			return nil
		}
		j.mu.Lock()
	}
	e := j.spare.child
	j.spare.child = nil
	j.mu.Unlock()
	if e != nil && e.pidfd.Ended() { // the kernel may have chosen it to make room
		_ = e.abandon()
		return nil
	}
	return e
}

// stopSpares ends every process of a jail that failed to be made, and with
// them the child that waits or is about to.
func (j *Jail) stopSpares() error {
	j.mu.Lock()
	j.closed = true
	j.mu.Unlock()
	return errors.Join(j.parts.group.kill(), j.dropSpare())
}

// startTasks is what a parked child may take of the limit while it starts.
const startTasks = 16

// makeRoom keeps children that wait out of the run's process count. On v1
// they join the pids group late, so there is nothing to do. In the v2 tree
// the commands' limit is raised by the tasks of those that wait.
func (j *Jail) makeRoom(change int) error {
	if j.host.groups.mode != "v2" {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.room += change
	limit := strconv.FormatInt(j.plan.Limits.Pids+int64(j.room), 10)
	file := filepath.Join(j.host.groups.v2path(filepath.Join(j.plan.LeaseID, workGroup)), "pids.max")
	if err := os.WriteFile(file, []byte(limit), 0); err != nil {
		return fmt.Errorf("make room for a child: %w", err)
	}
	return nil
}

// settleRoom lets a child that has started keep just the room that it takes.
func (e *Exec) settleRoom() error {
	tasks := int(fileUint(filepath.Join(e.jail.host.groups.v2path(e.rel()), "pids.current")))
	change := tasks - e.room
	e.room = tasks
	return e.jail.makeRoom(change)
}

// giveRoomBack is for a child that waits no more.
func (e *Exec) giveRoomBack() error {
	room := e.room
	e.room = 0
	return e.jail.makeRoom(-room)
}
