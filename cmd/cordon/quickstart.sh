#!/bin/sh
# job.sh STATUS OUT LIMIT
#
# The quickstart's job. It does honest work, a report about the Debian packages
# that STATUS, dpkg's database, lists; and it tries what it must not: to read
# the passwords' file, to reach the cloud's metadata service and a public
# address, and to fork past LIMIT. OUT gets what came of all of it, as JSON.
#
# It needs nothing but what every Debian has: sh, awk and perl-base. It never
# copies what it may have read. QUICKSTART_ATTACKS=no leaves the attempts out.
set -eu
export LC_ALL=C

status=$1
out=$2
limit=$3

# report prints the JSON of what the packages are.
report() {
	awk '
	# Character by character: awks differ in what gsub makes of backslashes.
	function quote(s, i, c, out) {
		for (i = 1; i <= length(s); i++) {
			c = substr(s, i, 1)
			if (c == "\"" || c == "\\")
				out = out "\\"
			out = out (c ~ /[\001-\037\177]/ ? "?" : c)
		}
		return "\"" out "\""
	}
	function object(counts, keys, n, i, s) {
		for (i = 1; i <= n; i++)
			s = s (i > 1 ? ", " : "") quote(keys[i]) ": " counts[keys[i]]
		return "{" s "}"
	}
	# The rest of the line behind "Field: ", without space at its end.
	function value(s) {
		sub(/^[^:]*:[ \t]*/, "", s)
		sub(/[ \t\r]*$/, "", s)
		return s
	}
	function finish(words, n) {
		if (name == "")
			return
		n = split(state, words, " ")
		if (n != 3 || words[3] != "installed") {
			other++
		} else {
			installed++
			total += size
			if (!(section in sections))
				sectionKeys[++sectionCount] = section
			sections[section]++
			if (!(priority in priorities))
				priorityKeys[++priorityCount] = priority
			priorities[priority]++
			names[installed] = name
			sizes[installed] = size
		}
	}
	function reset() {
		name = ""; state = ""; size = 0
		section = "unknown"; priority = "unknown"
	}
	BEGIN { reset(); installed = other = total = 0 }
	/^[ \t]*\r?$/        { finish(); reset(); next }
	/^[ \t]/             { next }
	/^Package:/          { name = value($0) }
	/^Status:/           { state = value($0) }
	/^Section:/          { section = value($0) }
	/^Priority:/         { priority = value($0) }
	/^Installed-Size:/   { size = value($0) + 0 }
	END {
		finish()
		for (rank = 1; rank <= 10 && rank <= installed; rank++) {
			best = 0
			for (i = 1; i <= installed; i++)
				if (!(i in taken) && (!best || sizes[i] > sizes[best] ||
				    sizes[i] == sizes[best] && names[i] "" < names[best] ""))
					best = i
			taken[best] = 1
			largest = largest (rank > 1 ? ", " : "") \
				"{\"name\": " quote(names[best]) ", \"kib\": " sprintf("%.0f", sizes[best]) "}"
		}
		printf "{\"installed\": %d, \"other\": %d, \"installed_kib\": %.0f,\n", installed, other, total
		printf "    \"sections\": %s,\n", object(sections, sectionKeys, sectionCount)
		printf "    \"priorities\": %s,\n", object(priorities, priorityKeys, priorityCount)
		printf "    \"largest\": [%s]}", largest
	}' "$status"
}

# attempts prints the JSON of what was tried and what stopped it.
attempts() {
	perl -e '
	use strict;
	use Errno;
	use Socket;

	sub errno_name {
		my ($n) = @_;
		for my $name (sort keys %!) {
			no strict "refs";
			return $name if $n && eval { &{"Errno::$name"}() } == $n;
		}
		return "";
	}
	sub outcome {
		my ($succeeded, $n, $more) = @_;
		local $! = $n;
		my $text = $n ? "$!" : "";
		$text =~ s/["\\]/?/g;
		return sprintf "{\"succeeded\": %s, \"errno\": %d, \"name\": \"%s\", \"text\": \"%s\"%s}",
			$succeeded ? "true" : "false", $n, errno_name($n), $text, $more || "";
	}
	sub try_read {
		my ($path) = @_;
		open(my $f, "<", $path) or return outcome(0, $!+0);
		my $n = sysread($f, my $unused, 1);
		return outcome(0, $!+0) if !defined $n;
		return outcome(1, 0);
	}
	sub try_tcp {
		my ($host, $port) = @_;
		socket(my $s, PF_INET, SOCK_STREAM, 0) or return outcome(0, $!+0);
		my $late = 0;
		local $SIG{ALRM} = sub { $late = 1 };
		alarm 3;
		my $ok = connect($s, pack_sockaddr_in($port, inet_aton($host)));
		my $n = $ok ? 0 : $!+0;
		alarm 0;
		return outcome(0, Errno::ETIMEDOUT()) if $late;
		return outcome($ok, $n);
	}
	# The children wait for the end of a pipe and are all gone afterwards.
	sub try_forks {
		my ($limit) = @_;
		my ($started, $n, @children) = (0, 0);
		pipe(my $r, my $w) or return outcome(0, $!+0);
		while ($started < 4 * $limit) {
			my $pid = fork;
			if (!defined $pid) { $n = $!+0; last }
			if (!$pid) {
				close $w;
				sysread($r, my $unused, 1);
				exit 0;
			}
			push @children, $pid;
			$started++;
		}
		close $w;
		waitpid($_, 0) for @children;
		return outcome(!$n, $n, ", \"limit\": $limit, \"started\": $started");
	}

	printf "{\n    \"shadow\": %s,\n    \"metadata\": %s,\n    \"public\": %s,\n    \"forks\": %s\n  }",
		try_read("/etc/shadow"),
		try_tcp("169.254.169.254", 80),
		try_tcp("203.0.113.7", 443),
		try_forks($ARGV[0]);
	' "$limit"
}

packages=$(report)
attempts=null
if [ "${QUICKSTART_ATTACKS:-yes}" != no ]; then
	attempts=$(attempts)
fi
{
	printf '{\n  "schema": "cordon.quickstart/1",\n'
	printf '  "packages": %s,\n' "$packages"
	printf '  "attempts": %s\n}\n' "$attempts"
} >"$out.part"
mv "$out.part" "$out"
echo "$out: done"
