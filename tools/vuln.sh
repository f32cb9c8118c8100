#!/bin/sh
# vuln.sh [PACKAGES] looks for known vulnerabilities that this code reaches.
#
# The database is built from its own Go module, at the version pinned in
# tools/vulndb/go.mod, so that the scan needs no service: whoever can fetch
# modules can scan. Where the module cannot be had, it says so and passes.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
go=${GO:-go}
mod=$root/tools/vulndb/go.mod

if ! why=$("$go" mod download -modfile="$mod" golang.org/x/vulndb 2>&1); then
	printf 'vulnerability scan: skipped: the database module cannot be fetched: %s\n' "$why" >&2
	exit 0
fi
src=$("$go" list -modfile="$mod" -m -f '{{.Dir}}' golang.org/x/vulndb)
version=$("$go" list -modfile="$mod" -m -f '{{.Version}}' golang.org/x/vulndb)
cache=${XDG_CACHE_HOME:-${HOME:?}/.cache}/cordon
db=$cache/vulndb-$version
if [ ! -d "$db" ]; then
	mkdir -p "$cache"
	new=$(mktemp -d "$cache/vulndb.XXXXXX")
	trap 'rm -rf "$new"' EXIT
	"$go" tool -modfile="$mod" indexdb -vulns "$src/data/osv" -out "$new"
	mv "$new" "$db"
	trap - EXIT
fi
rc=0
report=$("$go" tool -modfile="$root/tools/go.mod" govulncheck -db "file://$db" "${@:-./...}" 2>&1) || rc=$?
case $rc in
0)
	printf '%s\n' "$report" | tail -n 3
	;;
3)
	# Found. What is in Go itself is mended by a newer patch release of Go on
	# the machine that builds, not by a change here: that warns. Only when the
	# report says so in these very words, else it fails.
	only='^Your code is affected by [0-9]+ vulnerabilit(y|ies) from the Go standard library\.$'
	if printf '%s\n' "$report" | grep -qE "$only"; then
		printf '%s\n' "$report" | grep -E '^Vulnerability|Found in:|Fixed in:|^Your code'
		echo "vulnerability scan: only Go itself: build releases with a patch release newer than $("$go" env GOVERSION)"
		exit 0
	fi
	printf '%s\n' "$report"
	exit 1
	;;
*)
	printf '%s\n' "$report" >&2
	exit "$rc"
	;;
esac
