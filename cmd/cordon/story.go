package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"cordon/api/client"
	"cordon/supervisor/evidence"
)

// step is one thing that should be, and whether it was.
type step struct {
	OK   bool   `json:"ok"`
	Name string `json:"name"`
	Text string `json:"text"`
}

// story tells the quickstart's steps as they come.
type story struct {
	w      io.Writer
	silent bool
	steps  []step
	failed int
	err    error // the first of writing
}

func (s *story) say(text string) {
	if !s.silent && s.err == nil {
		_, s.err = io.WriteString(s.w, text)
	}
}

func (s *story) add(steps ...step) {
	const mark, name = 5, 9
	for _, st := range steps {
		s.steps = append(s.steps, st)
		word := "ok"
		if !st.OK {
			word = "FAIL"
			s.failed++
		}
		lead := fmt.Sprintf("%-*s%-*s", mark, word, name, st.Name)
		for _, l := range wrap(plain(st.Text), pageWidth-mark-name) {
			s.say(lead + l + "\n")
			lead = strings.Repeat(" ", mark+name)
		}
	}
}

// closing is the end of the story.
func closing(program, socket, dir string, failed int) string {
	var b strings.Builder
	if failed != 0 {
		fmt.Fprintf(&b, "\n%d FAILED: this host does not contain a job as it should. Do not rely on it.\n", failed)
	}
	fmt.Fprintf(&b, "\nIn %s: %s, %s, %s. Next:\n", dir, resultFile, recordFile, keyFile)
	fmt.Fprintf(&b, "  %s evidence verify -v \\\n      --key %s/%s %s/%s\n", program, dir, keyFile, dir, recordFile)
	fmt.Fprintf(&b, "  cat %s/%s\n", dir, resultFile)
	if socket == client.DefaultSocket {
		fmt.Fprintf(&b, "  %s run -t -- bash\n", program)
	} else {
		// This daemon may be one for the quickstart alone.
		fmt.Fprintf(&b, "  %s --help\n", program)
	}
	return b.String()
}

func judgeLease(l *client.Lease, took time.Duration) step {
	held := 0
	for _, c := range l.ReadBack {
		if c.OK {
			held++
		}
	}
	return step{
		held == len(l.ReadBack) && held > 0, "lease",
		fmt.Sprintf("%s in %s; the kernel confirms %d of %d facts", l.ID(), formatLength(took), held, len(l.ReadBack)),
	}
}

func judgeJob(end client.End, uid uint32, output string) step {
	if end.OK() {
		return step{true, "job", fmt.Sprintf("ran for %s as uid %d, and ended by itself", formatLength(end.Usage.Wall), uid)}
	}
	return step{false, "job", endText(end) + ": " + strings.TrimSpace(output)}
}

func judgeWork(r jobResult, want packageReport) step {
	got := r.Packages
	text := fmt.Sprintf("counted %d packages, %s; counted again out here: ", got.Installed, formatBytes(got.InstalledKiB<<10))
	if !got.equal(want) {
		return step{false, "work", text + fmt.Sprintf("NOT the same (%d, %s)", want.Installed, formatBytes(want.InstalledKiB<<10))}
	}
	return step{got.Installed > 0, "work", text + "the same"}
}

// judgeAttempts wants each attempt to have failed in the way that the layer
// in charge makes it fail, and the host to have seen it.
func judgeAttempts(a attempts, rec evidence.Record) []step {
	return []step{
		judgeShadow(a.Shadow),
		judgeConnect(a.Metadata, rec.Network, "169.254.169.254", 80),
		judgeConnect(a.Public, rec.Network, "203.0.113.7", 443),
		judgeForks(a.Forks, rec.Usage),
	}
}

func judgeShadow(a attempt) step {
	s := step{Name: "refused", Text: "read /etc/shadow: "}
	switch {
	case a.Succeeded:
		s.Text += "IT WAS READ"
	case a.Name == "ENOENT":
		s.OK = true
		s.Text += "ENOENT; the sandbox's own /etc has none"
	case a.Name == "EACCES" || a.Name == "EPERM":
		s.OK = true
		s.Text += a.Name + "; not for the job's user"
	default:
		s.Text += "stopped by " + orNone(a.Name) + ", which is not how it should be"
	}
	return s
}

func judgeConnect(a attempt, seen evidence.Network, address string, port uint16) step {
	s := step{Name: "refused", Text: fmt.Sprintf("connect %s:%d: ", address, port)}
	count := int64(0)
	for _, d := range seen.Destinations {
		if d.Address == address && d.Port == port && d.Errno == "EPERM" {
			count += d.Count
		}
	}
	switch {
	case a.Succeeded:
		s.Text += "IT WAS REACHED"
	case a.Name != "EPERM":
		s.Text += "stopped by " + orNone(a.Name) + ", and not by the filter"
	case count == 0:
		s.Text += "EPERM, but the host has not seen it"
	default:
		s.OK = true
		s.Text += "EPERM by eBPF, counted by the host: " + fmt.Sprint(count)
	}
	return s
}

func judgeForks(a attempt, used evidence.Usage) step {
	s := step{Name: "refused", Text: fmt.Sprintf("fork without end: %d ran, then ", a.Started)}
	switch {
	case a.Succeeded || a.Started >= quickLimit:
		s.Text = fmt.Sprintf("fork without end: %d RAN, and the limit is %d", a.Started, quickLimit)
	case a.Name != "EAGAIN":
		s.Text += orNone(a.Name) + ", which is not the limit"
	case used.PidsRefused == 0:
		s.Text += "EAGAIN, but the host has not seen it"
	default:
		s.OK = true
		s.Text += fmt.Sprintf("EAGAIN by the cgroup's limit of %d", quickLimit)
	}
	return s
}

func judgeArtifact(got exported, rec evidence.Record) step {
	s := step{Name: "artifact", Text: fmt.Sprintf("%s, %s, %s; nothing else left", got.Path, formatBytes(got.Size), shortDigest(got.Digest))}
	s.OK = len(rec.Exports) == 1 && rec.Exports[0].Complete &&
		rec.Exports[0].Path == got.Path && rec.Exports[0].Digest == got.Digest && rec.Exports[0].Bytes == got.Size
	if !s.OK {
		s.Text = fmt.Sprintf("%s: the record says otherwise: %s", got.Path, strings.Join(exportTexts(rec.Exports), "; "))
	}
	return s
}

func judgeCleanup(rec evidence.Record) step {
	return step{rec.Cleanup.Clean && rec.State == "closed", "closed", strings.Join(cleanupTexts(rec), "; ")}
}

// judgeRecord wants the record to be about this lease: one that verifies may
// still be another's.
func judgeRecord(r evidence.Report, l *client.Lease) step {
	s := step{Name: "record", Text: fmt.Sprintf("entry %d of this host's chain; signature checked offline: valid", r.Link.Sequence)}
	switch {
	case r.Record.Lease.ID != l.ID():
		s.Text = "it is about the lease " + r.Record.Lease.ID
	case r.Record.Digests.Envelope != l.Acquired.EnvelopeDigest:
		s.Text = "it is about another envelope: " + r.Record.Digests.Envelope
	default:
		s.OK = true
	}
	return s
}
