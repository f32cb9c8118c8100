package artifacts

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"cordon/artifacts/unpack"
	"cordon/internal/sys"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// waitTime is generous: the machine may be busy with other tests.
const waitTime = 20 * time.Second

// TestWorkerPosture looks at a worker that waits for its first byte, from
// outside, and compares all of what it has with what it may have.
func TestWorkerPosture(t *testing.T) {
	requireRoot(t)
	s := openStore(t, nil)
	st, err := s.newStaging(s.workerOwner())
	if err != nil {
		t.Fatal(err)
	}
	leak, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY, 0) // without close-on-exec
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leak)
	w, err := s.startWorker(t.Context(), st.rootfs)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := w.wait(); err == nil {
			t.Error("the worker took no input for an archive")
		}
	}()
	pid := waitForWorker(t, os.Getpid())
	for _, tid := range namesIn(t, "/proc/self/task") {
		if cwd, _ := os.Readlink("/proc/self/task/" + tid + "/cwd"); cwd == st.rootfs {
			t.Errorf("thread %s keeps the staging directory in use", tid)
		}
	}
	if !sys.PollUntil(waitTime, 5*time.Millisecond, func() bool { return confined(pid) }) {
		t.Fatalf("worker %d was not confined in time: %v", pid, threadStates(t, pid))
	}

	extracting := fmt.Sprintf("caps 0 %016x %016x 0 nnp 1 ids %d", workerCapsWanted, workerCapsWanted, testIDBase+unpack.WorkerID)
	other := fmt.Sprintf("caps 0 %016x %016x 0 nnp 1 ids %d", 0, 0, testIDBase+unpack.WorkerID)
	states := threadStates(t, pid)
	if states[extracting] != 1 || states[extracting]+states[other] != total(states) {
		t.Errorf("threads are in states %v, want one %q and the rest %q", states, extracting, other)
	}
	for _, fd := range namesIn(t, proc(pid, "fd")) {
		to, err := os.Readlink(proc(pid, "fd", fd))
		// The root it extracts below, which is the staging directory, and the
		// runtime's poller.
		if n, _ := strconv.Atoi(fd); err != nil || n > 2 && to != "/" && !strings.HasPrefix(to, "anon_inode:[event") {
			t.Errorf("descriptor %s is %s, %v", fd, to, err)
		}
	}
	for _, ns := range []string{"user", "mnt", "pid", "net", "ipc", "uts"} {
		theirs, err1 := os.Readlink(proc(pid, "ns", ns))
		ours, err2 := os.Readlink("/proc/self/ns/" + ns)
		if err1 != nil || err2 != nil || theirs == ours {
			t.Errorf("%s namespace: %s, ours %s, %v %v", ns, theirs, ours, err1, err2)
		}
	}
	mounts := strings.Split(strings.TrimSpace(readFile(t, proc(pid, "mountinfo"))), "\n")
	if len(mounts) != 1 || !regexp.MustCompile(` / \S*nosuid,nodev,noexec`).MatchString(mounts[0]) {
		t.Errorf("mounts are %q, want one with nosuid,nodev,noexec", mounts)
	}
	want := must(inodeOf(st.rootfs))
	dirs := []string{proc(pid, "root"), proc(pid, "cwd")}
	for _, fd := range namesIn(t, proc(pid, "fd")) {
		if to, _ := os.Readlink(proc(pid, "fd", fd)); to == "/" {
			dirs = append(dirs, proc(pid, "fd", fd))
		}
	}
	for _, d := range dirs {
		if got, err := inodeOf(d); err != nil || got != want {
			t.Errorf("%s is %v, %v; not the staging directory %v", d, got, err, want)
		}
	}
	if diff := cmp.Diff("0 1300000000 65536", strings.Join(strings.Fields(readFile(t, proc(pid, "uid_map"))), " ")); diff != "" {
		t.Errorf("uid map (-want +got):\n%s", diff)
	}
	if groups := regexp.MustCompile(`(?m)^Groups:\s*$`).FindString(readFile(t, proc(pid, "status"))); groups == "" {
		t.Error("the worker has supplementary groups")
	}
}

// workerCapsWanted is CHOWN and FOWNER, written out.
const workerCapsWanted = 1<<0 | 1<<3

// A worker's thread keeps no_new_privs and another directory; the daemon's
// threads must not come to have either.
func TestWorkerLeavesThreadsAlone(t *testing.T) {
	requireRoot(t)
	s := openStore(t, nil)
	want := fmt.Sprintf("nnp 0 cwd %s", must(os.Getwd()))
	for i := range 5 {
		if _, err := s.ImportImage(t.Context(), fmt.Sprint("i", i), bytes.NewReader(tarOf(t, file(fmt.Sprint(i), ""))), nil); err != nil {
			t.Fatal(err)
		}
	}
	var odd string
	clean := func() bool { // the threads end a moment after their goroutines
		odd = ""
		for _, tid := range namesIn(t, "/proc/self/task") {
			status, err1 := os.ReadFile("/proc/self/task/" + tid + "/status")
			cwd, err2 := os.Readlink("/proc/self/task/" + tid + "/cwd")
			if err1 != nil || err2 != nil {
				continue // it has ended
			}
			if got := fmt.Sprintf("nnp %s cwd %s", field(string(status), "NoNewPrivs"), cwd); got != want {
				odd += fmt.Sprintf("thread %s: %s\n", tid, got)
			}
		}
		return odd == ""
	}
	if !sys.PollUntil(waitTime, 5*time.Millisecond, clean) {
		t.Errorf("want %s, got:\n%s", want, odd)
	}
}

// TestDaemonKilledInImport kills a daemon with SIGKILL in the middle of an
// import: its worker must go with it, and the next Open leaves nothing.
func TestDaemonKilledInImport(t *testing.T) {
	requireRoot(t)
	stateDir := t.TempDir()
	daemon := exec.CommandContext(t.Context(), "/proc/self/exe", "import", stateDir)
	feed, err := daemon.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	in := tarOf(t, file("etc/passwd", strings.Repeat("x", 100<<10)), file("second", "x"))
	if _, err := feed.Write(in[:len(in)-2048]); err != nil {
		t.Fatal(err)
	}
	pid := waitForWorker(t, daemon.Process.Pid)
	staged := filepath.Join(stateDir, imagesDir, stagingDir, "*", rootfsDir, "etc", "passwd")
	if !sys.PollUntil(waitTime, 5*time.Millisecond, func() bool { return len(must(filepath.Glob(staged))) == 1 }) {
		t.Fatal("the worker wrote nothing in time")
	}
	// Hold the worker's pipe open: the end of its input must not be what ends it.
	hold, err := os.OpenFile(proc(pid, "fd", "0"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Close()
	if err := daemon.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = daemon.Wait()
	if !sys.PollUntil(waitTime, 5*time.Millisecond, func() bool { return unix.Kill(pid, 0) == unix.ESRCH }) {
		t.Errorf("worker %d outlived the daemon", pid)
	}
	s, err := Open(Config{Dir: stateDir, ImageIDBase: testIDBase})
	if err != nil {
		t.Fatal(err)
	}
	assertOnlyImages(t, s)
	if _, err := s.ImportImage(t.Context(), "x", bytes.NewReader(in), nil); err != nil {
		t.Errorf("import after the crash: %v", err)
	}
}

// runImport is the body of a process that is about to be killed.
func runImport(stateDir string) int {
	s, err := Open(Config{Dir: stateDir, ImageIDBase: testIDBase})
	if err == nil {
		_, err = s.ImportImage(context.Background(), "x", os.Stdin, nil)
	}
	fmt.Fprintln(os.Stderr, "import ended:", err)
	return 1
}

// waitForWorker returns the pid of parent's worker.
func waitForWorker(t *testing.T, parent int) int {
	t.Helper()
	var pid int
	found := sys.PollUntil(waitTime, 5*time.Millisecond, func() bool {
		for _, name := range must(filepath.Glob("/proc/[0-9]*")) {
			n, _ := strconv.Atoi(filepath.Base(name))
			status, err := os.ReadFile(proc(n, "status"))
			cmdline, _ := os.ReadFile(proc(n, "cmdline"))
			if err == nil && field(string(status), "PPid") == strconv.Itoa(parent) && bytes.Contains(cmdline, []byte("\x00unpack\x00")) {
				pid = n
				return true
			}
		}
		return false
	})
	if !found {
		t.Fatal("no worker in time")
	}
	return pid
}

func confined(pid int) bool {
	status, err := os.ReadFile(proc(pid, "status"))
	return err == nil && strings.HasSuffix(field(string(status), "CapEff"), "009")
}

// threadStates counts the threads of a process by their privileges.
func threadStates(t *testing.T, pid int) map[string]int {
	t.Helper()
	states := map[string]int{}
	for _, tid := range namesIn(t, proc(pid, "task")) {
		b, err := os.ReadFile(proc(pid, "task", tid, "status"))
		if err != nil {
			continue // it has ended
		}
		s := string(b)
		ids := map[string]bool{}
		for id := range strings.FieldsSeq(field(s, "Uid") + " " + field(s, "Gid")) {
			ids[id] = true
		}
		id := "mixed"
		if len(ids) == 1 {
			id = strings.Fields(field(s, "Uid"))[0]
		}
		zero := func(name string) string { return strings.TrimLeft(field(s, name), "0") + "0" }
		states[fmt.Sprintf("caps %s %s %s %s nnp %s ids %s", zero("CapInh"), field(s, "CapPrm"),
			field(s, "CapEff"), zero("CapAmb"), field(s, "NoNewPrivs"), id)]++
	}
	return states
}

func inodeOf(path string) ([2]uint64, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	return [2]uint64{st.Dev, st.Ino}, err
}

func total(m map[string]int) (n int) {
	for _, v := range m {
		n += v
	}
	return n
}

// field returns one line of a status file.
func field(status, name string) string {
	for line := range strings.Lines(status) {
		if v, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func proc(pid int, elem ...string) string {
	return filepath.Join(append([]string{"/proc", strconv.Itoa(pid)}, elem...)...)
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
