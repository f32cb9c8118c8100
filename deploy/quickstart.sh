#!/bin/sh
# quickstart.sh BIN
#
# Starts a daemon of its own from the programs in BIN, runs `cordon quickstart`
# against it, stops it and removes all it made, whatever happens in between.
# It exits as the job does. Nothing is installed and no other daemon is touched.
set -eu

bin=${1:-bin}
here=$(cd "$(dirname "$0")" && pwd)
start_seconds=60
stop_seconds=30

die() {
	echo "quickstart: $*" >&2
	exit 1
}

if [ "$(id -u)" -ne 0 ]; then
	die "cordond makes namespaces, mounts and cgroups: run this as root"
fi
for program in cordond cordon cordon-init; do
	[ -x "$bin/$program" ] || die "$bin/$program: no such program [make build]"
done

bin=$(cd "$bin" && pwd)
daemon=
job=125

# finish stops the daemon by its pid and removes both directories. One that
# still holds a mount stays, and is named: removing would reach through it.
finish() {
	trap '' INT TERM
	if [ -n "$daemon" ] && kill -TERM "$daemon" 2>/dev/null; then
		left=$((stop_seconds * 10))
		while kill -0 "$daemon" 2>/dev/null; do
			if [ "$left" -eq 0 ]; then
				echo "quickstart: cordond ($daemon) did not stop in $stop_seconds s: killed" >&2
				kill -KILL "$daemon" 2>/dev/null || :
				job=1
				break
			fi
			left=$((left - 1))
			sleep 0.1
		done
		wait "$daemon" 2>/dev/null || :
	fi
	for dir in "$run" "$state"; do
		if grep -qF " $dir/" /proc/self/mountinfo; then
			echo "quickstart: still mounted below $dir: left as it is" >&2
			job=1
		else
			rm -rf --one-file-system "$dir"
		fi
	done
	exit "$job"
}

# The store needs room and a file system that loop devices like, which the
# tmpfs on /run need not have; sockets and mounts belong on /run.
run=$(mktemp -d /run/cordon-quickstart-XXXXXX)
state=$(mktemp -d /var/lib/cordon-quickstart-XXXXXX)
trap finish EXIT
trap 'job=130; exit 130' INT
trap 'job=143; exit 143' TERM
chmod 0755 "$run"
# The policy must be root's alone; a checkout may be anybody's.
# Host ids of its own: beside another daemon, none may be used twice.
sed 's/^\( *id_base:\).*/\1 1962934272/' "$here/policy.yaml" >"$state/policy.yaml"
chmod 0644 "$state/policy.yaml"
mkdir -m 0700 "$state/lib"

socket=$run/api/cordond.sock
"$bin/cordond" -state "$state/lib" -run "$run" -socket "$socket" \
	-cgroup "$(basename "$run")" \
	-init "$bin/cordon-init" -policy "$state/policy.yaml" \
	</dev/null >"$run/cordond.log" 2>&1 &
daemon=$!

left=$((start_seconds * 10))
until [ -S "$socket" ]; do
	if ! kill -0 "$daemon" 2>/dev/null || [ "$left" -eq 0 ]; then
		tail -n 20 "$run/cordond.log" >&2
		die "cordond did not open $socket; above is the end of its log"
	fi
	left=$((left - 1))
	sleep 0.1
done

job=0
# Where the command line keeps the secret of the lease while it runs.
XDG_RUNTIME_DIR=$run "$bin/cordon" --socket "$socket" quickstart || job=$?
if [ "$job" -ne 0 ]; then
	tail -n 20 "$run/cordond.log" >&2
fi
exit "$job"
