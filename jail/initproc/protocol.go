// Package initproc is PID 1 of a jail, the parked child that becomes a
// command, and the messages both exchange with the host.
//
// Everything here runs inside the jail and is untrusted from the host's point
// of view: what it says is the tenant's word. It holds SETUID, SETGID and
// KILL in the jail's user namespace and nothing else. It imports neither
// libcontainer nor grpc and builds static without cgo. Decisions about leases
// do not belong here.
//
//	host (jail/linux)                 PID 1                    parked child
//	  |  <------ hello ----------------|
//	  |  -- spawn{id}+descriptors ---> |
//	  |                                |-- fork, exec self -----> | joins its cgroups
//	  |  <------ spawned{id} ----------|                          |
//	  |  <------ parked (SO_PASSCRED: the pid) --------------|
//	  |  -- setup{argv, env, ids, limits, filter} --------------> |
//	  |  <------ ready (everything dropped) or failed ------------|
//	  |  (host reads the child back from /proc)                   |
//	  |  -- go -------------------------------------------------> |
//	  |  <------ end of file (execve worked) or failed -----------|
//	  |  <------ exited{id, status} ---|
//
// PID 1's socket is SOCK_SEQPACKET, one JSON message a packet. A child's is a
// stream of frames: four bytes of length (big endian), then JSON.
package initproc

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// Descriptors that PID 1 and a parked child are started with.
const (
	ControlFD = 3 // PID 1's socket
	StageFD   = 3 // a parked child's socket
	LeafFD    = 4 // first of the child's cgroup files, opened for writing
)

// Path is where the program is mounted in every jail.
const Path = "/.cordon/init"

// MaxPacket bounds a message on PID 1's socket, MaxFrame one on a child's:
// argv and env of up to 2 MiB, in base64.
const (
	MaxPacket = 4096
	MaxFrame  = 4 << 20
)

// ToInit is a message to PID 1. It carries, as SCM_RIGHTS and in this order:
// the child's socket, stdin, stdout, stderr, and Leaves plus Late cgroup
// files. The child joins the first ones at once, which may take the kernel
// 8-18 ms, and the late ones when it becomes a command.
type ToInit struct {
	Spawn  string `json:"spawn"` // the exec's id
	Leaves int    `json:"leaves"`
	Late   int    `json:"late"`
}

// FromInit is a message of PID 1. Exactly one field is set.
type FromInit struct {
	Hello   bool    `json:"hello,omitempty"`
	Spawned string  `json:"spawned,omitempty"`
	Failed  *Failed `json:"failed,omitempty"`
	Exited  *Exited `json:"exited,omitempty"`
}

// Exited is a child's end as PID 1 reaped it.
type Exited struct {
	ID     string `json:"id"`
	Status uint32 `json:"status"` // wait(2) status
}

// Failed says which step went wrong. ID is set on PID 1's socket.
type Failed struct {
	ID    string `json:"id,omitempty"`
	Step  string `json:"step"`
	Errno int    `json:"errno"`
	Text  string `json:"text"`
}

// Setup is what a parked child is to become. Bytes, since argv and env need
// not be UTF-8.
type Setup struct {
	Argv     [][]byte `json:"argv"`
	Env      [][]byte `json:"env"`
	Cwd      []byte   `json:"cwd"`
	UID      uint32   `json:"uid"`
	GID      uint32   `json:"gid"`
	TTY      bool     `json:"tty"`
	Rlimits  []Rlimit `json:"rlimits"`
	OOMScore int      `json:"oom_score"`
	Filter   []byte   `json:"filter"` // struct sock_filter array
}

// Rlimit is a resource to set, soft and hard alike.
type Rlimit struct {
	Resource int    `json:"resource"`
	Value    uint64 `json:"value"`
}

// ToStage is a message to a parked child. Exactly one field is set.
type ToStage struct {
	Setup *Setup `json:"setup,omitempty"`
	Go    bool   `json:"go,omitempty"`
}

// FromStage is a message of a parked child. Exactly one field is set.
type FromStage struct {
	Parked bool    `json:"parked,omitempty"`
	Ready  bool    `json:"ready,omitempty"`
	Failed *Failed `json:"failed,omitempty"`
}

// WriteFrame writes one frame in one write.
func WriteFrame(w io.Writer, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode frame: %w", err)
	}
	if len(body) > MaxFrame {
		return fmt.Errorf("encode frame: %d bytes are over the limit of %d", len(body), MaxFrame)
	}
	frame := binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(body)), uint32(len(body)))
	if _, err := w.Write(append(frame, body...)); err != nil {
		return fmt.Errorf("write frame: %w", err)
	}
	return nil
}

// ReadFrame reads one frame of at most limit bytes. It returns io.EOF only at
// a frame's border.
func ReadFrame(r io.Reader, limit int, v any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if int64(n) > int64(limit) {
		return fmt.Errorf("read frame: %d bytes are over the limit of %d", n, limit)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return fmt.Errorf("read frame: %w", io.ErrUnexpectedEOF)
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("decode frame: %w", err)
	}
	return nil
}
