package unpack

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"cordon/internal/fault"
)

// The worker's protocol, the whole of it:
//
//	daemon  -- argv: bytes files -->  worker
//	daemon  -- stdin: the tar ----->  worker   no reply until its end
//	daemon  <- stdout: one Report --  worker   a line of JSON, at the end
//	daemon  <- stderr: free text ---  worker   for the log, bounded
//
// Exit status 0 goes with Report.Fault nil, 1 with a fault, anything else is
// a worker that broke.

// MaxReport bounds the report line.
const MaxReport = 4096

// WorkerID is the uid and gid, inside the worker's user namespace, that it
// extracts as. The staging directory belongs to it.
const WorkerID = 65534

// MaxID is the highest in-image uid and gid.
const MaxID = 65535

// Limits bound one tree. Both are required.
type Limits struct {
	Bytes int64 // of all regular files together, logical size
	Files int64 // entries of every kind
}

// Args is the argv form of l.
func (l Limits) Args() []string {
	return []string{strconv.FormatInt(l.Bytes, 10), strconv.FormatInt(l.Files, 10)}
}

func parseLimits(args []string) (Limits, error) {
	if len(args) != 2 {
		return Limits{}, fmt.Errorf("parse arguments: want bytes and files, got %d", len(args))
	}
	var n [2]int64
	for i, a := range args {
		v, err := strconv.ParseInt(a, 10, 64)
		if err != nil {
			return Limits{}, fmt.Errorf("parse arguments: %w", err)
		}
		if v <= 0 {
			return Limits{}, fmt.Errorf("parse arguments: limit %d is not positive", v)
		}
		n[i] = v
	}
	return Limits{Bytes: n[0], Files: n[1]}, nil
}

// Report is the worker's one answer.
type Report struct {
	Fault    *ReportFault `json:"fault,omitempty"`
	Entries  int64        `json:"entries"`
	Bytes    int64        `json:"bytes"`
	Stripped Stripped     `json:"stripped"`
}

// Stripped counts what the tar held and the tree does not.
type Stripped struct {
	SpecialBits int64 `json:"special_bits"` // setuid, setgid, sticky
	Xattrs      int64 `json:"xattrs"`       // file capabilities among them
	Devices     int64 `json:"devices"`      // nodes under dev/
}

// ReportFault is a fault on its way to the daemon.
type ReportFault struct {
	Code   fault.Code `json:"code"`
	Field  string     `json:"field"`
	Cause  string     `json:"cause"`
	Remedy string     `json:"remedy"`
}

// write encodes the report; err becomes its fault.
func (r *Report) write(w io.Writer, err error) error {
	if err != nil {
		var f *fault.Fault
		if !errors.As(err, &f) {
			return err
		}
		cause := f.Cause
		if f.Err != nil {
			cause += ": " + f.Err.Error() // the wrapped error itself cannot cross
		}
		r.Fault = &ReportFault{Code: f.Code, Field: f.Field, Cause: cause, Remedy: f.Remedy}
	}
	line, jerr := json.Marshal(r)
	if jerr != nil {
		return fmt.Errorf("encode report: %w", jerr)
	}
	_, werr := w.Write(append(line, '\n'))
	return werr
}

// ParseReport decodes what a worker wrote to its stdout, and returns the
// worker's fault as an error. The line is a stranger's: it is bounded, the
// code must be one a worker has a use for, and text is made printable.
func ParseReport(line []byte) (Report, error) {
	if len(line) > MaxReport {
		return Report{}, fmt.Errorf("parse worker report: longer than %d bytes", MaxReport)
	}
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	var r Report
	if err := dec.Decode(&r); err != nil {
		return Report{}, fmt.Errorf("parse worker report: %w", err)
	}
	if r.Fault == nil {
		return r, nil
	}
	switch r.Fault.Code {
	case fault.HostileImage, fault.InvalidArgument, fault.TooLarge, fault.DiskFull:
	default:
		return Report{}, fmt.Errorf("parse worker report: unexpected code %q", r.Fault.Code)
	}
	return r, fault.New(r.Fault.Code, printable(r.Fault.Field),
		printable(r.Fault.Cause), printable(r.Fault.Remedy))
}

// printable keeps ASCII without control characters: no terminal escapes, no
// line breaks in a log.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
}
