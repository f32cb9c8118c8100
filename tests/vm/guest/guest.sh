# The guest's part: runs what tests/vm put beside it and says on the serial
# line what happened. Lines for the other side begin with "@@vm "; what a step
# prints is between its begin and its end.

exec >/dev/ttyS0 2>&1 </dev/null
dmesg -n emerg # the kernel writes to the same line

disk=/mnt
export HOME=/root TMPDIR=/var/tmp CORDON_TEST_INIT=$disk/bin/cordon-init

# say may follow output without an end of line.
say() { printf '\n@@vm %s\n' "$*"; }

step() {
	name=$1
	shift
	say begin "$name"
	rc=0
	"$@" || rc=$?
	say end "$name" "$rc"
}

# left names what of ours is still there when nothing of ours runs.
left() {
	find /sys/fs/cgroup /sys/fs/bpf /run /var/lib -xdev -name '*cordon*' 2>/dev/null
	grep -l cordon /sys/block/loop*/loop/backing_file 2>/dev/null
	grep cordon /proc/self/mountinfo
	find "$TMPDIR" -mindepth 1 -maxdepth 1 ! -name 'systemd-private-*'
}

say up
say fact kernel "$(uname -r)"
say fact cgroup "$(stat -fc %T /sys/fs/cgroup)"
say fact controllers "$(cat /sys/fs/cgroup/cgroup.controllers)"
say fact systemd "$(systemctl --version | head -n 1)"
say fact clock "$(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)"

while read -r pkg; do
	cd "$disk/tests/$pkg" || continue
	step "test $pkg" ./test -test.v -test.timeout=10m
done <$disk/tests/list

# What the client keeps for its user goes with the user's session.
export XDG_RUNTIME_DIR=/root/session
mkdir -m 0700 $XDG_RUNTIME_DIR
cd /root
step quickstart sh $disk/deploy/quickstart.sh $disk/bin

left | while read -r what; do say left "$what"; done
say done
