package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"cordon/api/client"
	"cordon/internal/fault"
	"cordon/supervisor/evidence"
)

// maxRecords bounds a file of records, one a line.
const maxRecords = 256 << 20

func (a *app) evidenceCommand() *cobra.Command {
	return a.group("evidence", "Show and check the signed records of leases",
		a.evidenceShowCommand(), a.evidenceVerifyCommand(), a.evidenceKeyCommand())
}

func (a *app) evidenceShowCommand() *cobra.Command {
	var (
		raw bool
		key string
	)
	cmd := &cobra.Command{
		Use:     "show LEASE",
		Short:   "Show the record of a lease that has ended",
		Example: "  cordon evidence show l-7f3a",
		Args:    arguments("LEASE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.connected(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return a.showRecord(ctx, c, args[0], key, raw)
			})
		},
	}
	cmd.Flags().BoolVar(&raw, "raw", false, "print the signed document, byte for byte")
	cmd.Flags().StringVar(&key, "key", "", "check with this public key, `FILE` or base64 (default: the daemon's)")
	return cmd
}

func (a *app) showRecord(ctx context.Context, c *client.Client, leaseID, key string, raw bool) error {
	rec, err := c.Record(ctx, leaseID)
	if err != nil {
		return err
	}
	if raw {
		return a.print(string(rec.JSON) + "\n")
	}
	if key == "" {
		info, err := c.Info(ctx)
		if err != nil {
			return err
		}
		key = info.RecordKey
	}
	pub, err := publicKey(key)
	if err != nil {
		return err
	}
	report, err := evidence.Verify(rec.JSON, pub)
	if err != nil {
		return recordFault(leaseID, err)
	}
	if a.json {
		return a.printJSON(struct {
			Link   evidence.Link   `json:"link"`
			Head   string          `json:"head"`
			Record evidence.Record `json:"record"`
		}{report.Link, report.Head, report.Record})
	}
	return a.print(recordText(report))
}

// publicKey reads a key from a file, or takes it as the base64 that it is.
func publicKey(fileOrText string) (ed25519.PublicKey, error) {
	text, err := readBounded(fileOrText, 4<<10)
	if errors.Is(err, fs.ErrNotExist) {
		// A mistyped file name is not base64 of the right length.
		pub, perr := evidence.ParsePublicKey([]byte(fileOrText))
		if perr != nil {
			return nil, fault.New(fault.InvalidArgument, "--key", "neither a file that exists nor a public key",
				"get the host's key with cordon evidence key")
		}
		return pub, nil
	}
	if err != nil {
		return nil, err
	}
	pub, err := evidence.ParsePublicKey(text)
	if err != nil {
		return nil, fault.Wrap(err, fault.InvalidArgument, fileOrText, "not a public key", "get the host's key with cordon evidence key")
	}
	return pub, nil
}

// recordFault is a record that is not what it should be.
func recordFault(what string, err error) error {
	return fault.New("invalid_record", what, err.Error(), "do not rely on it; see who had it, and whether the key is this host's")
}

// verifyFlags are all flags of evidence verify.
type verifyFlags struct {
	key, head      string
	chain, verbose bool
}

func (a *app) evidenceVerifyCommand() *cobra.Command {
	var f verifyFlags
	cmd := &cobra.Command{
		Use:   "verify --key KEY FILE...",
		Short: "Check records offline against a host's public key",
		Long: "Check records offline: signature, digests, the place in the host's chain, and that no\n" +
			"byte could be another. A file holds one record, or consecutive ones, one a line.",
		Example: "  cordon evidence verify --key host.pub record.json",
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return usage(cmd, "FILE is missing")
			case f.key == "":
				return usage(cmd, "--key is missing")
			case f.head != "" && len(args) > 1 && !f.chain:
				return usage(cmd, "--head is about one file, or about a --chain")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error { return a.verifyRecords(f, args) },
	}
	cmd.Flags().StringVar(&f.key, "key", "", "the host's public key: `FILE` or base64")
	cmd.Flags().StringVar(&f.head, "head", "", "the chain's head that the last record must have, as `sha256:...`")
	cmd.Flags().BoolVar(&f.chain, "chain", false, "the files follow one another, oldest first")
	cmd.Flags().BoolVarP(&f.verbose, "verbose", "v", false, "print what each record says")
	return cmd
}

// verified is one line of evidence verify --json.
type verified struct {
	File     string   `json:"file"`
	OK       bool     `json:"ok"`
	Cause    string   `json:"cause,omitempty"`
	LeaseID  string   `json:"lease_id,omitempty"`
	HostID   string   `json:"host_id,omitempty"`
	Sequence int64    `json:"sequence,omitempty"`
	Head     string   `json:"head,omitempty"`
	KeyID    string   `json:"key_id,omitempty"`
	Says     []string `json:"says,omitempty"`
}

func (a *app) verifyRecords(f verifyFlags, files []string) error {
	pub, err := publicKey(f.key)
	if err != nil {
		return err
	}
	var (
		results []verified
		entries [][]byte
		bad     bool
	)
	for _, name := range files {
		doc, err := readBounded(name, maxRecords)
		var report evidence.Report
		if err == nil {
			report, err = evidence.VerifyDocument(doc, pub)
		}
		if err == nil && f.chain {
			entries = append(entries, lines(doc)...)
		} else if err == nil {
			err = checkHead(report, f.head)
		}
		results = append(results, verdict(name, report, err))
		bad = bad || err != nil
	}
	if f.chain && !bad {
		report, err := evidence.VerifyChain(entries, pub)
		if err == nil {
			err = checkHead(report, f.head)
		}
		results = append(results, verdict("chain of "+strings.Join(files, ", "), report, err))
		bad = err != nil
	}
	if err := a.printVerdicts(results, f.verbose); err != nil {
		return err
	}
	if bad {
		return exited(statusFailure)
	}
	return nil
}

// checkHead compares the chain's head with the one that somebody kept, which
// shows that nothing at its end was cut off or replaced.
func checkHead(r evidence.Report, want string) error {
	if want != "" && r.Head != want {
		return fmt.Errorf("head is %s, not the one that was kept", r.Head)
	}
	return nil
}

func lines(doc []byte) [][]byte {
	var out [][]byte
	for l := range strings.SplitSeq(strings.TrimRight(string(doc), "\n"), "\n") {
		out = append(out, []byte(l))
	}
	return out
}

func verdict(name string, r evidence.Report, err error) verified {
	if err != nil {
		return verified{File: name, Cause: err.Error()}
	}
	return verified{
		File: name, OK: true, LeaseID: r.Record.Lease.ID, HostID: r.Link.HostID, Sequence: r.Link.Sequence,
		Head: r.Head, KeyID: r.Link.KeyID, Says: r.Statements,
	}
}

func (a *app) printVerdicts(results []verified, verbose bool) error {
	if a.json {
		return a.printJSON(results)
	}
	for _, v := range results {
		text := fmt.Sprintf("%s: FAILED: %s", v.File, v.Cause)
		if v.OK {
			text = fmt.Sprintf("%s: ok: lease %s, entry %d of host %s, head %s", v.File, v.LeaseID, v.Sequence, v.HostID, v.Head)
		}
		text = plain(text) + "\n"
		if verbose {
			for _, s := range v.Says {
				text += "  " + plain(s) + "\n"
			}
		}
		if err := a.print(text); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) evidenceKeyCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "key",
		Short:   "Print the public key that this host's records are checked with",
		Example: "  cordon evidence key >host.pub",
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.connected(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				info, err := c.Info(ctx)
				if err != nil {
					return err
				}
				pub, err := evidence.ParsePublicKey([]byte(info.RecordKey))
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(map[string]string{"key_id": evidence.KeyID(pub), "record_key": info.RecordKey})
				}
				pem, err := evidence.EncodePublicKey(pub)
				if err != nil {
					return err
				}
				return a.print(string(pem))
			})
		},
	}
}
