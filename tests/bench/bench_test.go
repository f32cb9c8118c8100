// Package bench measures the whole of a lease beside programs that do less,
// in one run on one machine, as medians and ratios.
//
// It needs root, and runc and bwrap from Debian's packages. Nothing here
// passes or fails on a figure: these machines are noisy.
package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"cordon/api/client"
	"cordon/supervisor/envelope"
	"cordon/tests/daemon"
)

func TestMain(m *testing.M) { daemon.Main(m) }

// way is one way to run a true in isolation.
type way struct {
	name string
	does string
	run  func(i int) error
}

// BenchmarkTrue runs each way once an iteration, interleaved and spaced, so
// that the machine's moods fall on all of them alike.
func BenchmarkTrue(b *testing.B) {
	d := daemon.New(b, daemon.Options{})
	c := d.Client()
	e := d.Envelope(c)
	e.Resources.CPUMilli = 400 // two leases at once within the default tenant's core
	rootfs := filepath.Join(d.State, "images", strings.Replace(e.ImageDigest, ":", "-", 1), "rootfs")
	held, err := c.Acquire(context.Background(), e, client.AcquireOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer held.Release(context.Background())

	ways := []way{
		{"cordon lease", "acquire + exec + release over gRPC: limits, volume, seccomp, eBPF, read-back, record", leaseOnce(c, e)},
		{"cordon run", "the same from the command line, a new process", cliOnce(d)},
		{"cordon exec", "one command in a held lease over gRPC", execOnce(held)},
		{"runc run", "no user namespace, no seccomp, no volume, no record", runcOnce(b, rootfs)},
		{"bwrap", "all namespaces, no limits, no seccomp", bwrapOnce(rootfs)},
	}
	took := make([][]time.Duration, len(ways))
	rounds := 0
	for b.Loop() {
		for w := range ways {
			<-time.After(30 * time.Millisecond) // spaced: what a user sees
			start := time.Now()
			if err := ways[w].run(rounds); err != nil {
				b.Fatalf("%s: %v\n%s", ways[w].name, err, d.Log())
			}
			took[w] = append(took[w], time.Since(start))
		}
		rounds++
	}
	report(b, ways, took)
}

func report(b *testing.B, ways []way, took [][]time.Duration) {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\n%d rounds\tp50\tp95\tof runc run\tof bwrap\twhat it does\n", len(took[0]))
	for i := range took {
		slices.Sort(took[i])
	}
	p := func(i, percent int) time.Duration { return took[i][(len(took[i])-1)*percent/100] }
	for i, way := range ways {
		fmt.Fprintf(w, "%s\t%.1f ms\t%.1f ms\t%.2f\t%.2f\t%s\n", way.name, ms(p(i, 50)), ms(p(i, 95)),
			float64(p(i, 50))/float64(p(3, 50)), float64(p(i, 50))/float64(p(4, 50)), way.does)
		b.ReportMetric(ms(p(i, 50)), strings.ReplaceAll(way.name, " ", "-")+"-ms")
	}
	_ = w.Flush()
	b.Log(out.String())
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func leaseOnce(c *client.Client, e envelope.Envelope) func(int) error {
	return func(i int) error {
		e := e
		e.Identity.RunID = fmt.Sprint("bench-", i)
		l, err := c.Acquire(context.Background(), e, client.AcquireOptions{})
		if err != nil {
			return err
		}
		end, err := l.Run(context.Background(), client.Command{Argv: []string{"true"}})
		if err != nil || !end.OK() {
			return fmt.Errorf("true ended as %+v: %w", end, err)
		}
		_, err = l.Release(context.Background())
		return err
	}
}

func execOnce(l *client.Lease) func(int) error {
	return func(int) error {
		end, err := l.Run(context.Background(), client.Command{Argv: []string{"true"}})
		if err != nil || !end.OK() {
			return fmt.Errorf("true ended as %+v: %w", end, err)
		}
		return nil
	}
}

func cliOnce(d *daemon.Daemon) func(int) error {
	return func(int) error {
		return quiet(exec.Command(filepath.Join(d.Bin, "cordon"), "--socket", d.Socket, "run", "--cpu", "0.4", "--", "true"))
	}
}

func bwrapOnce(rootfs string) func(int) error {
	return func(int) error {
		return quiet(exec.Command("bwrap", "--unshare-all", "--ro-bind", rootfs, "/", "--proc", "/proc", "--dev", "/dev", "true"))
	}
}

// runcOnce takes the configuration that runc itself writes, with no terminal.
func runcOnce(b *testing.B, rootfs string) func(int) error {
	b.Helper()
	bundle := b.TempDir()
	cmd := exec.Command("runc", "spec")
	cmd.Dir = bundle
	if err := quiet(cmd); err != nil {
		b.Fatalf("runc spec: %v [make setup-bench]", err)
	}
	file := filepath.Join(bundle, "config.json")
	raw, err := os.ReadFile(file)
	if err != nil {
		b.Fatal(err)
	}
	var cfg map[string]any
	if err := json.Unmarshal(raw, &cfg); err != nil {
		b.Fatal(err)
	}
	proc := cfg["process"].(map[string]any)
	proc["terminal"], proc["args"] = false, []string{"true"}
	cfg["root"] = map[string]any{"path": rootfs, "readonly": true}
	raw, err = json.Marshal(cfg)
	if err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		b.Fatal(err)
	}
	state := b.TempDir()
	return func(i int) error {
		return quiet(exec.Command("runc", "--root", state, "run", "--bundle", bundle, fmt.Sprint("cordon-bench-", os.Getpid(), "-", i)))
	}
}

func quiet(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
