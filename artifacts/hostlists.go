package artifacts

import (
	"path"
	"strings"
)

// hostPackages is what the host image has beside the essential and required
// packages, where installed, with dependencies: the tools that a shell script
// or an agent expects of any machine. No compilers: they triple the image.
var hostPackages = []string{
	"bash", "bc", "bsdextrautils", "bzip2", "ca-certificates", "coreutils", "curl",
	"diffutils", "fd-find", "file", "findutils", "gawk", "gettext-base", "git", "grep", "gzip", "hostname",
	"jq", "less", "libc-bin", "lsof", "make", "mawk", "media-types",
	"nano", "ncurses-base", "ncurses-bin", "netbase", "openssl", "patch", "perl", "perl-base", "procps",
	"psmisc", "python3", "python3-venv", "ripgrep", "rsync", "sed", "sqlite3", "tar", "time", "tree",
	"tzdata", "unzip", "util-linux", "wget", "xxd", "xz-utils", "zip", "zstd",
}

// hostSkip are packages that are neither copied nor followed, with the
// reason. Some are essential or required on a real machine.
var hostSkip = map[string]string{
	"adduser":                "accounts of an image do not change",
	"apt":                    "the root is read-only; nothing can be installed",
	"cron":                   "service",
	"cron-daemon-common":     "service",
	"dbus":                   "service",
	"debconf":                "maintainer scripts only",
	"debian-archive-keyring": "for apt",
	"dmsetup":                "needs devices",
	"e2fsprogs":              "needs devices",
	"git-man":                "manual pages",
	"gpgv":                   "for apt",
	"init":                   "the sandbox has its own",
	"init-system-helpers":    "maintainer scripts only",
	"libpam-modules":         "nobody logs in",
	"libpam-modules-bin":     "nobody logs in",
	"libpam-runtime":         "nobody logs in",
	"libpam-systemd":         "nobody logs in",
	"libnss-systemd":         "needs systemd",
	"login":                  "nobody logs in",
	"login.defs":             "nobody logs in",
	"logsave":                "service",
	"mount":                  "needs privileges",
	"passwd":                 "accounts of an image do not change",
	"systemd":                "the sandbox has its own init",
	"systemd-sysv":           "the sandbox has its own init",
	"sysvinit-utils":         "service",
	"ucf":                    "maintainer scripts only",
	"udev":                   "needs devices",
}

// hostOnly are the directories of the host that no image gets anything of.
var hostOnly = []string{
	"boot", "dev", "home", "lost+found", "media", "mnt", "proc", "root", "run", "srv", "sys", "tmp",
	"usr/local", "var",
}

// hostUseless is left out to keep the image small.
var hostUseless = []string{
	"usr/lib/modules", "usr/lib/systemd", "usr/lib/sysusers.d", "usr/lib/tmpfiles.d", "usr/lib/udev",
	"usr/share/applications", "usr/share/apport", "usr/share/bash-completion", "usr/share/bug",
	"usr/share/doc", "usr/share/doc-base", "usr/share/fish", "usr/share/gtk-doc", "usr/share/icons",
	"usr/share/info", "usr/share/initramfs-tools", "usr/share/lintian", "usr/share/locale", "usr/share/man",
	"usr/share/metainfo", "usr/share/pixmaps", "usr/share/polkit-1", "usr/share/zsh",
}

// hostEtc are the only files of packages below /etc that are copied: data
// that programs look up or fail without, none with a secret, an account or a
// network setting of the host.
var hostEtc = []string{
	"etc/debian_version",
	"etc/ethertypes", "etc/protocols", "etc/rpc", "etc/services", // getprotobyname(3) and the like
	"etc/ld.so.conf", "etc/ld.so.conf.d/*.conf", // what ld.so.cache was made from
	"etc/magic", "etc/magic.mime", "etc/mime.types",
	"etc/os-release",
	"etc/perl/*", "etc/perl/*/*", "etc/python3/*", "etc/python3.*/*", // read at start-up
	"etc/ssl/openssl.cnf",
}

// hostEtcUnowned are files that tools of the host make, copied by name.
var hostEtcUnowned = []string{"etc/ld.so.cache", "etc/ca-certificates.conf", "etc/ssl/certs/ca-certificates.crt"}

// mergedDirs are the links of a merged /usr.
var mergedDirs = []string{"bin", "lib", "lib32", "lib64", "libo32", "libx32", "sbin"}

// wanted reports whether an image gets the path (canonical, no leading
// slash) when a package owns it.
func wanted(p string) bool {
	if under(p, hostOnly) || under(p, hostUseless) {
		return false
	}
	if p != "etc" && !strings.HasPrefix(p, "etc/") {
		return true
	}
	for _, pattern := range hostEtc {
		if ok, _ := path.Match(pattern, p); ok {
			return true
		}
	}
	return false
}

func under(p string, dirs []string) bool {
	for _, d := range dirs {
		if p == d || strings.HasPrefix(p, d) && p[len(d)] == '/' {
			return true
		}
	}
	return false
}
