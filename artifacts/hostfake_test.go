package artifacts

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fakeHost is a made-up Debian: files by path, "-> target" for a link, a
// trailing slash for a directory.
type fakeHost struct {
	t    *testing.T
	root string
}

func newFakeHost(t *testing.T) fakeHost {
	h := fakeHost{t: t, root: filepath.Join(t.TempDir(), "host")}
	for _, d := range []string{"", "usr", "usr/bin", "usr/lib", "etc"} {
		h.check(os.Mkdir(filepath.Join(h.root, d), 0o755))
	}
	h.put("bin", "-> usr/bin")
	h.put("lib", "-> /usr/lib")
	h.put("var/lib/dpkg/diversions", "")
	return h
}

func (h fakeHost) check(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h fakeHost) put(name, content string) {
	h.t.Helper()
	p := filepath.Join(h.root, name)
	h.check(os.MkdirAll(filepath.Dir(p), 0o755))
	if target, ok := strings.CutPrefix(content, "-> "); ok {
		h.check(os.Symlink(target, p))
		return
	}
	h.check(os.WriteFile(p, []byte(content), 0o644))
	h.check(os.Chtimes(p, time.Unix(1000, 0), time.Unix(1000, 0)))
}

func (h fakeHost) mode(name string, mode fs.FileMode) {
	h.check(os.Chmod(filepath.Join(h.root, name), mode))
}

// pkg adds a package; files are listed as dpkg lists them.
func (h fakeHost) pkg(name, fields string, files ...string) {
	h.t.Helper()
	status := filepath.Join(h.root, dpkgDir, "status")
	old, err := os.ReadFile(status)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.t.Fatal(err)
	}
	h.put(dpkgDir+"status", string(old)+para(name, "amd64", fields))
	h.put(dpkgDir+"info/"+name+".list", "/.\n"+strings.Join(files, "\n")+"\n")
}

// debian fills a host with one case of each kind.
func debian(t *testing.T) fakeHost {
	h := newFakeHost(t)
	h.pkg("dpkg", "Essential: yes\n", "/usr", "/usr/bin", "/usr/bin/dpkg", "/var/lib/dpkg")
	h.put("usr/bin/dpkg", "dpkg")
	h.pkg("coreutils", "Essential: yes\nPre-Depends: libc6\n",
		"/bin", "/bin/ls", "/usr/bin/su", "/usr/bin/hard1", "/usr/bin/hard2", "/usr/bin/link", "/usr/bin/gone", "/usr/bin/fifo",
		"/usr/bin/group", "/usr/lib/secret/key", "/usr/lib/private", "/usr/lib/empty", "/usr/share/doc/coreutils/README",
		"/etc/default/coreutils", "/etc/shadow", "/etc/debian_version", "/etc/os-release", "/usr/lib/os-release",
		"/usr/lib/behind/file", "/opt/coreutils")
	h.put("usr/bin/ls", "ls")
	h.put("usr/bin/su", "su")
	h.mode("usr/bin/su", 0o755|fs.ModeSetuid|fs.ModeSetgid)
	h.put("usr/bin/group", "group-writable")
	h.mode("usr/bin/group", 0o775)
	h.put("usr/bin/hard1", "hard")
	h.check(os.Link(filepath.Join(h.root, "usr/bin/hard1"), filepath.Join(h.root, "usr/bin/hard2")))
	h.put("usr/bin/link", "-> ../lib/nowhere")
	h.check(unix.Mkfifo(filepath.Join(h.root, "usr/bin/fifo"), 0o644))
	h.put("usr/lib/secret/key", "behind a directory that is not everyone's")
	h.mode("usr/lib/secret", 0o700)
	h.put("usr/lib/private", "not readable by everyone")
	h.mode("usr/lib/private", 0o640)
	h.check(os.Mkdir(filepath.Join(h.root, "usr/lib/empty"), 0o2775))
	h.put("usr/share/doc/coreutils/README", "doc")
	h.put("usr/lib/behind", "-> /var/secret")
	h.put("var/secret/file", "behind a link")
	h.put("etc/default/coreutils", "host setting")
	h.put("etc/shadow", "root:secret")
	h.put("etc/debian_version", "12.0\n")
	h.put("etc/os-release", "-> ../usr/lib/os-release")
	h.put("usr/lib/os-release", "NAME=Fake\n")
	h.put("opt/coreutils", "opt")
	h.pkg("libc6", "", "/lib/libc.so.6", "/etc/ld.so.conf.d/a.conf")
	h.put("usr/lib/libc.so.6", "libc")
	h.put("etc/ld.so.conf.d/a.conf", "/lib\n")
	h.put("etc/ld.so.conf.d/local.conf", "/usr/local/lib\n") // of no package
	h.put("etc/ld.so.cache", "cache")
	h.pkg("systemd", "Essential: yes\nDepends: libsystemd\n", "/usr/bin/systemctl")
	h.put("usr/bin/systemctl", "systemctl")
	h.pkg("libsystemd", "", "/usr/lib/libsystemd.so")
	h.put("usr/lib/libsystemd.so", "libsystemd")
	h.pkg("mawk", "", "/usr/bin/mawk")
	h.put("usr/bin/mawk", "mawk")
	h.pkg("gawk", "", "/usr/bin/gawk") // installed, the host's choice, not in the image
	h.put("usr/bin/gawk", "gawk")
	h.put(dpkgDir+"alternatives/awk", "manual\n/usr/bin/awk\nawk.1.gz\n/usr/share/man/man1/awk.1.gz\n\n"+
		"/usr/bin/gawk\n10\n/usr/share/man/man1/gawk.1.gz\n/usr/bin/mawk\n5\n/usr/share/man/man1/mawk.1.gz\n\n")
	h.put(dpkgDir+"alternatives/editor", "auto\n/usr/bin/editor\n\n/usr/local/bin/ed\n10\n\n")
	h.put("etc/alternatives/awk", "-> /usr/bin/gawk")
	h.put("etc/alternatives/editor", "-> /usr/local/bin/ed")
	h.put("usr/bin/awk", "-> /etc/alternatives/awk")
	h.pkg("ca-certificates", "", "/usr/share/ca-certificates/m/A.crt")
	h.put("usr/share/ca-certificates/m/A.crt", "A")
	h.put("usr/local/share/ca-certificates/B.crt", "B")
	h.put("etc/ca-certificates.conf", "m/A.crt\n")
	h.put("etc/ssl/certs/ca-certificates.crt", "A and B")
	h.put("etc/ssl/certs/A.pem", "-> /usr/share/ca-certificates/m/A.crt")
	h.put("etc/ssl/certs/00000000.0", "-> A.pem")
	h.put("etc/ssl/certs/B.pem", "-> /usr/local/share/ca-certificates/B.crt")
	h.put("etc/ssl/certs/11111111.0", "-> B.pem")
	h.put("etc/ssl/private/host.key", "secret")
	h.pkg("dash", "", "/bin/sh", "/usr/bin/dash")
	h.put("usr/bin/sh", "dash as sh")
	h.put("usr/bin/dash", "dash")
	h.pkg("posh", "", "/bin/sh", "/usr/bin/tool")
	h.put("usr/bin/sh.distrib", "posh as sh")
	h.put("usr/bin/tool.real", "tool of posh, diverted by a package that is not in the image")
	h.put("usr/bin/tool", "tool of the wrapper")
	h.pkg("wrapper", "", "/usr/bin/tool")
	h.put(dpkgDir+"diversions", "/bin/sh\n/bin/sh.distrib\ndash\n/usr/bin/tool\n/usr/bin/tool.real\nwrapper\n")
	for _, name := range []string{"usr/bin/unowned", "usr/local/bin/x", "root/.bashrc", "home/me/x", "var/lib/x", "tmp/x", "srv/x"} {
		h.put(name, "of no package")
	}
	return h
}
