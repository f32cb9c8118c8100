// Command vm runs the tests that act on the host, and one real job through
// the quickstart, inside a machine as users have it: Debian 12 with its stock
// kernel, systemd and pure cgroup v2, booted in QEMU. The host that builds
// Cordon may be laid out otherwise and then never sees that side of the code.
//
// It needs root, for mmdebstrap and mke2fs, and no network but for the host's
// own package sources when the root file system is not in the cache. It builds
// the root file system once, keeps it by a digest of its recipe, and starts
// one QEMU without any network, which it ends. Everything else is in a
// temporary directory that it removes. What is tested, and how, belongs to the
// packages themselves; what must be equal on every host belongs to tests/ran.
//
//	vm [-bin DIR] [-cache DIR] [-accel auto|kvm|tcg] [-timeout D] [-skips FILE] packages
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

type options struct {
	bin     string
	cache   string
	accel   string
	skips   string
	timeout time.Duration
	pkgs    []string
}

func main() {
	var o options
	flag.StringVar(&o.bin, "bin", "bin", "directory with cordond, cordon and cordon-init")
	flag.StringVar(&o.cache, "cache", defaultCache(), "where root file systems are kept")
	flag.StringVar(&o.accel, "accel", "auto", "kvm, tcg, or auto: kvm if a guest comes up with it, else tcg")
	flag.StringVar(&o.skips, "skips", "", "file that names the tests that may be skipped")
	flag.DurationVar(&o.timeout, "timeout", 15*time.Minute, "limit for the guest, from its start to its end")
	flag.Parse()
	o.pkgs = flag.Args()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	problems, err := run(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "vm:", err)
		os.Exit(2)
	}
	for _, p := range problems {
		fmt.Println("vm:", p)
	}
	if len(problems) != 0 {
		fmt.Println("FAIL")
		os.Exit(1)
	}
}

func defaultCache() string {
	dir := os.Getenv("XDG_CACHE_HOME")
	if dir == "" {
		dir = "/var/cache"
	}
	return filepath.Join(dir, "cordon-vm")
}

// run boots a guest and returns what is wrong, in words.
func run(ctx context.Context, o options) (_ []string, err error) {
	switch {
	case len(o.pkgs) == 0:
		return nil, errors.New("no packages named")
	case os.Getuid() != 0:
		return nil, errors.New("a root file system is made: run this as root")
	}
	allowed, err := readSkips(o.skips)
	if err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp("", "cordon-vm-")
	if err != nil {
		return nil, fmt.Errorf("temporary directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()

	system, err := cachedSystem(ctx, o.cache)
	if err != nil {
		return nil, err
	}
	tests, err := compile(ctx, filepath.Join(tmp, "disk"), o.pkgs)
	if err != nil {
		return nil, err
	}
	disk, err := makeDisk(ctx, tmp, o.bin, tests)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	got, err := boot(ctx, o, machine{system: system, disk: disk, tmp: tmp})
	if err != nil {
		return nil, err
	}
	pass, fail, skip := got.count()
	fmt.Printf("vm: %d passed, %d failed, %d skipped in %s with %s [kernel %s, %s, %s]\n", pass, fail, skip,
		time.Since(start).Round(time.Second), got.accel, got.facts["kernel"], got.facts["cgroup"], got.facts["systemd"])
	return verdict(tests, got, allowed), nil
}
