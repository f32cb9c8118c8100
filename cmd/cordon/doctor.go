package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"cordon/api/client"
	"cordon/supervisor/evidence"
)

// diagnosis is what doctor finds. Daemon is null, and Problem says why, when
// none answers; the terms are then not known, which is as good as not given.
type diagnosis struct {
	OK      bool          `json:"ok"`
	Socket  string        `json:"socket"`
	Daemon  *client.Info  `json:"daemon"`
	Problem *failure      `json:"problem"`
	Terms   []client.Term `json:"terms"`
	Host    []fact        `json:"host"`
}

// termNames are the terms when there is no daemon to ask.
var termNames = []struct{ letter, name string }{
	{"K", "kernel boundary"},
	{"P", "process, user and IPC isolation"},
	{"F", "filesystem and artifact isolation"},
	{"N", "network policy"},
	{"I", "identity and credentials"},
	{"R", "resource control"},
	{"T", "lifetime and remanence"},
	{"C", "control-plane integrity"},
}

func (a *app) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Say what this host guarantees, what it lacks, and what to do",
		Long: "Say what this host guarantees: the eight terms, each with what gives it and what is\n" +
			"still trusted; and what the host lacks. Exit status 1 when something needed is missing.",
		Example: "  cordon doctor",
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			info, err := a.info(cmd.Context())
			d := diagnose(info, err, hostFacts(a.host))
			d.Socket = a.socket
			if a.json {
				err = a.printJSON(d)
			} else {
				err = a.print(d.text())
			}
			if err == nil && !d.OK {
				return exited(statusFailure)
			}
			return err
		},
	}
}

// diagnose puts together what the daemon answered and what the host shows.
func diagnose(info client.Info, err error, host []fact) diagnosis {
	d := diagnosis{OK: err == nil, Host: host, Terms: []client.Term{}}
	if err != nil {
		d.Problem = &failures(err)[0]
		for _, t := range termNames {
			d.Terms = append(d.Terms, client.Term{Letter: t.letter, Name: t.name})
		}
	} else {
		d.Terms = append(d.Terms, info.Terms...)
		info.Tenants, info.Terms = list(info.Tenants), list(info.Terms)
		d.Daemon = &info
	}
	given := map[string]bool{}
	for _, t := range d.Terms {
		given[t.Letter] = t.Given
	}
	for _, t := range termNames {
		d.OK = d.OK && given[t.letter] // one that nobody speaks of is not given
	}
	for _, f := range host {
		d.OK = d.OK && f.OK
	}
	return d
}

func (d diagnosis) text() string {
	var p page
	if d.Daemon == nil {
		p.line("daemon", "NOT REACHABLE: %s", *d.Problem)
	} else {
		d.daemonLines(&p)
	}
	p.WriteByte('\n')
	for _, t := range d.Terms {
		d.termLines(&p, t)
	}
	p.WriteByte('\n')
	for _, f := range d.Host {
		mark, text := "ok", f.Name+": "+f.Found
		if !f.OK {
			mark, text = "MISSING", text+" ["+f.Remedy+"]"
		}
		p.line(mark, "%s", text)
	}
	p.WriteByte('\n')
	if d.OK {
		p.line("result", "all eight terms are given")
	} else {
		p.line("result", "something needed is missing: see above")
	}
	return p.String()
}

func (d diagnosis) daemonLines(p *page) {
	i := d.Daemon
	p.line("daemon", "cordond %s at %s", i.Version, d.Socket)
	p.line("runtime", "%s", i.RuntimeRevision)
	p.line("host", "Linux %s, cgroup %s, open leases: %d", i.Kernel, i.CgroupMode, i.Leases)
	tenants := "you may speak for none [have the host policy name one for you]"
	if len(i.Tenants) != 0 {
		tenants = fmt.Sprintf("you may speak for %q", i.Tenants)
	}
	p.line("tenants", "%s", tenants)
	if pub, err := evidence.ParsePublicKey([]byte(i.RecordKey)); err == nil {
		p.line("records", "signed by %s", evidence.KeyID(pub))
	}
}

func (d diagnosis) termLines(p *page, t client.Term) {
	mark := "given"
	switch {
	case d.Daemon == nil:
		mark = "?"
	case !t.Given:
		mark = "MISSING"
	}
	p.line(mark, "%s: %s", t.Letter, t.Name)
	if d.Daemon == nil {
		return
	}
	p.line("", "   proof: %s", orNone(t.Proof))
	p.line("", "   still trusted: %s", orNone(t.LeftOver))
}
