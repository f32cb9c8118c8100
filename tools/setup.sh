#!/bin/sh
# setup.sh go | setup.sh GROUP...
#
# Checks the one prerequisite, Go, or installs the Debian packages of the named
# groups that are missing. It asks nothing, can be run again at will, and is
# done at once (and needs no root) when everything is there.
set -eu

want_major=1
want_minor=26
go=${GO:-go}

# packages prints what a group needs.
packages() {
	case $1 in
	# To build (cgo, libseccomp), to fetch modules, and to run: mkfs.ext4.
	run) echo gcc libc6-dev pkg-config libseccomp-dev ca-certificates e2fsprogs iproute2 ;;
	# What `make bench` measures beside us.
	bench) echo runc bubblewrap ;;
	# The machine that `make test-vm` boots, and what makes its disk.
	vm) echo qemu-system-x86 mmdebstrap e2fsprogs ;;
	# To compile the eBPF programs again and to check the tree.
	dev) echo clang llvm linux-libc-dev ;;
	*)
		echo "setup.sh: unknown group $1 [run, bench, vm or dev]" >&2
		exit 2
		;;
	esac
}

check_go() {
	if ! version=$(cd / && GOTOOLCHAIN=local "$go" env GOVERSION 2>/dev/null); then
		version=none
	fi
	numbers=$(printf '%s\n' "$version" | sed -n 's/.*go\([0-9][0-9]*\)\.\([0-9][0-9]*\).*/\1 \2/p')
	major=${numbers% *}
	minor=${numbers#* }
	if [ -n "$numbers" ] && { [ "$major" -gt "$want_major" ] ||
		{ [ "$major" -eq "$want_major" ] && [ "$minor" -ge "$want_minor" ]; }; }; then
		return 0
	fi
	cat >&2 <<-MESSAGE
		cordon needs Go $want_major.$want_minor or newer; found: $version ($go)
		  Get it from https://go.dev/dl/, then:
		    rm -rf /usr/local/go && tar -C /usr/local -xzf go$want_major.$want_minor.*.linux-*.tar.gz
		    export PATH=/usr/local/go/bin:\$PATH
		  Another place: make GO=/path/to/go ...
	MESSAGE
	exit 1
}

# missing prints those of its arguments that are not installed.
missing() {
	for p in "$@"; do
		case $(dpkg-query -W -f '${db:Status-Status} ' "$p" 2>/dev/null || :) in
		"installed "*) ;;
		*) printf '%s ' "$p" ;;
		esac
	done
}

install_packages() {
	all=
	for group in "$@"; do
		all="$all $(packages "$group")"
	done
	if ! command -v dpkg-query >/dev/null 2>&1; then
		echo "setup: this is no Debian system; see to the like of:$all" >&2
		return 0
	fi
	# shellcheck disable=SC2086 # a list of words
	need=$(missing $all)
	[ -n "$need" ] || return 0
	if [ "$(id -u)" -ne 0 ]; then
		echo "setup: these packages are missing: $need[run make setup as root, or install them]" >&2
		exit 1
	fi
	echo "setup: installing $need" >&2
	export DEBIAN_FRONTEND=noninteractive
	apt-get -qq -o DPkg::Lock::Timeout=120 update
	# shellcheck disable=SC2086 # a list of words
	apt-get -qq -o DPkg::Lock::Timeout=120 install -y --no-install-recommends $need >/dev/null
}

if [ $# -eq 0 ]; then
	echo "usage: setup.sh go | setup.sh GROUP..." >&2
	exit 2
fi
if [ "$1" = go ]; then
	check_go
	exit 0
fi
install_packages "$@"
