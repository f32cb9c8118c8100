package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// machine is what a guest is booted from.
type machine struct {
	system system
	disk   string
	tmp    string
}

// A guest that does not say that it is up by then never will: with KVM on a
// host where it does not work, QEMU runs but the guest hangs early.
const (
	upWithKVM = 30 * time.Second
	upWithTCG = 3 * time.Minute
)

// errNotUp is a guest that did not come up, as opposed to one that went wrong.
var errNotUp = errors.New("it did not come up")

// boot runs a guest to its end. That /dev/kvm is there says little: whether a
// stock kernel comes up with it is found out by booting one.
func boot(ctx context.Context, o options, m machine) (*results, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("it runs longer than %s", o.timeout))
	defer cancel()
	switch o.accel {
	case "kvm":
		return m.run(ctx, "kvm", upWithKVM)
	case "tcg":
		return m.run(ctx, "tcg", upWithTCG)
	case "auto":
	default:
		return nil, fmt.Errorf("accel %q: want auto, kvm or tcg", o.accel)
	}
	if kvm, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err == nil {
		_ = kvm.Close()
		got, err := m.run(ctx, "kvm", upWithKVM)
		if !errors.Is(err, errNotUp) || ctx.Err() != nil {
			return got, err
		}
		fmt.Println("vm: no guest comes up with KVM here: going on without")
	}
	return m.run(ctx, "tcg", upWithTCG)
}

// run starts one QEMU and waits for its end. Neither image is written to.
func (m machine) run(ctx context.Context, accel string, patience time.Duration) (*results, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Should this program be killed, QEMU ends with the thread that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", m.args(accel)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+m.tmp) // what the guest writes to its root
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	serial, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("boot: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("boot: %w", err)
	}
	alarm := time.AfterFunc(patience, func() { cancel(errNotUp) })
	got := &results{accel: accel, up: func() { alarm.Stop() }}
	readErr := got.read(serial, os.Stdout)
	_, _ = io.Copy(io.Discard, serial) // after an error, so that QEMU can end
	err = cmd.Wait()
	alarm.Stop()
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case err == nil:
		err = readErr
	}
	if err == nil && got.facts == nil {
		err = errNotUp
	}
	if err != nil {
		return nil, fmt.Errorf("guest with %s: %w; its last lines:\n%s", accel, err, got.last())
	}
	return got, nil
}

// args are a machine with nothing that the guest does not need. It is no
// microvm, which starts faster but has neither HPET nor ACPI timer: emulated on
// a busy host its kernel then cannot tell how fast the TSC is, hangs, or goes
// on with a clock of 4 ms.
func (m machine) args(accel string) []string {
	drive := func(id, file string) []string {
		return []string{"-drive", "id=" + id + ",file=" + file + ",format=raw,if=none,snapshot=on", "-device", "virtio-blk-pci,drive=" + id}
	}
	args := []string{
		"-machine", "q35,accel=" + accel, "-cpu", "max", "-smp", "2", "-m", "2048",
		"-nodefaults", "-no-user-config", "-nographic", "-serial", "stdio", "-no-reboot",
		"-kernel", m.system.kernel, "-initrd", m.system.initrd,
		"-append", "console=ttyS0 root=LABEL=" + rootLabel + " rw quiet loglevel=3 panic=-1 " +
			"systemd.show_status=no systemd.getty_auto=no systemd.firstboot=off",
	}
	args = append(args, drive("root", m.system.root)...)
	return append(args, drive("disk", m.disk)...)
}
