// Command ran runs `go test` and demands more than its exit status: every
// test that the named packages declare has passed, none was skipped that
// skips.txt does not name with a reason, some test ran (with -each: of every
// package), and the
// machine is as it was before: no mount, cgroup, loop device, network
// namespace, pinned BPF object, process or file of ours is left.
//
// It prints what `go test` prints without -v, and the whole output of what
// failed or was skipped. It runs as whoever calls it, gives its children a
// temporary directory of their own (what they leave there is ours by its
// place), changes nothing on the host and removes only that directory. How a
// test is written does not belong here.
//
//	ran [-race] [-each] [-p N] [-timeout D] [-skips FILE] packages
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"
)

type options struct {
	race    bool
	each    bool
	procs   int
	timeout time.Duration
	skips   string
	pkgs    []string
}

func main() {
	var o options
	flag.BoolVar(&o.race, "race", false, "build with the race detector")
	flag.BoolVar(&o.each, "each", false, "demand a test from every package")
	flag.IntVar(&o.procs, "p", 0, "packages tested at the same time (0: go's default)")
	flag.DurationVar(&o.timeout, "timeout", 10*time.Minute, "limit for one package")
	flag.StringVar(&o.skips, "skips", "", "file that names the tests that may be skipped")
	flag.Parse()
	o.pkgs = flag.Args()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	problems, err := run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "ran:", err)
		os.Exit(2)
	}
	for _, p := range problems {
		fmt.Println("ran:", p)
	}
	if len(problems) != 0 {
		fmt.Println("FAIL")
		os.Exit(1)
	}
}

// run tests the packages and returns what is wrong, in words.
func run(ctx context.Context, o options) ([]string, error) {
	if len(o.pkgs) == 0 {
		return nil, errors.New("no packages named")
	}
	allowed, err := readSkips(o.skips)
	if err != nil {
		return nil, err
	}
	want, err := declared(ctx, o)
	if err != nil {
		return nil, err
	}
	tmp, err := tempDir()
	if err != nil {
		return nil, err
	}
	before, err := look(tmp)
	if err != nil {
		return nil, err
	}
	got, testErr := goTest(ctx, o, tmp)
	if testErr != nil && got == nil {
		return nil, testErr
	}
	problems := verdict(want, got, allowed)
	if testErr != nil {
		problems = append(problems, "go test: "+testErr.Error())
	}
	left, err := settle(ctx, before, tmp)
	if err != nil {
		return nil, err
	}
	for _, l := range left {
		problems = append(problems, "left on this machine: "+l)
	}
	pass, fail, skip := got.count()
	fmt.Printf("%d passed, %d failed, %d skipped\n", pass, fail, skip)
	if len(left) != 0 {
		// A mount may be among it, and removing would reach through.
		return problems, nil
	}
	return problems, os.RemoveAll(tmp)
}

// tempDir makes the one directory that everything started from here uses for
// its temporary files. Other uids and mapped ids must be able to pass through.
func tempDir() (string, error) {
	tmp, err := os.MkdirTemp("", "cordon-t-")
	if err != nil {
		return "", fmt.Errorf("temporary directory: %w", err)
	}
	return tmp, os.Chmod(tmp, 0o755)
}

// goTest runs `go test -json` and prints its events as they come.
func goTest(ctx context.Context, o options, tmp string) (*results, error) {
	args := []string{"test", "-json", "-count=1", "-timeout=" + o.timeout.String()}
	if o.race {
		args = append(args, "-race")
	}
	if o.procs > 0 {
		args = append(args, "-p="+strconv.Itoa(o.procs))
	}
	cmd := exec.CommandContext(ctx, "go", append(args, o.pkgs...)...)
	// Tests clean up on an interrupt only if they are asked, not killed.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	cmd.Env = append(slices.Clone(os.Environ()), "TMPDIR="+tmp)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("go test: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("go test: %w", err)
	}
	got, readErr := read(bufio.NewReader(out), os.Stdout)
	return got, errors.Join(readErr, cmd.Wait())
}
