package seccomp

// Values of the Linux ABI that the rules below use.
const (
	afUnix, afInet, afInet6            = 1, 2, 10
	sockStream, sockDgram, sockSeqpack = 1, 2, 5
	sockFlags                          = 0x80000 | 0x800 // CLOEXEC, NONBLOCK
	protoTCP, protoUDP, protoMPTCP     = 6, 17, 262

	msgFastOpen = 0x20000000

	cloneNewNS     = 0x00020000
	cloneNewCgroup = 0x02000000
	cloneNewUTS    = 0x04000000
	cloneNewIPC    = 0x08000000
	cloneNewUser   = 0x10000000
	cloneNewPID    = 0x20000000
	cloneNewNet    = 0x40000000
	cloneIO        = 0x80000000 // shares an io context: nothing needs it

	fileType                            = 0xf000 // S_IFMT
	fileFIFO, fileRegular, fileUnixSock = 0x1000, 0x8000, 0xc000

	seccompSetFilter, seccompGetAction, seccompGetSizes = 1, 2, 3
	seccompNewListener                                  = 8

	prSetSeccomp, seccompModeFilter = 22, 2
)

// word is what the kernel keeps of an argument that it takes as an int.
// Comparing the other 32 bits as well would be no safer, and would refuse a C
// library that leaves them undefined or extends a sign into them.
const word = 0xffffffff

func is(arg uint8, value uint32) Cond {
	return Cond{Arg: arg, Op: MaskedEqual, Mask: word, Value: uint64(value)}
}

func bits(arg uint8, mask, value uint64) Cond {
	return Cond{Arg: arg, Op: MaskedEqual, Mask: mask, Value: value}
}

func all(note string, conds ...Cond) Match { return Match{Conds: conds, Note: note} }

// named is a number with the name it has in the kernel's headers.
type named struct {
	value uint32
	name  string
}

func oneOf(arg uint8, values []named) []Match {
	out := make([]Match, len(values))
	for i, v := range values {
		out[i] = all(v.name, is(arg, v.value))
	}
	return out
}

// addConditional appends the rules that look at arguments.
func (f *Filter) addConditional(prctl []named) {
	f.addSockets()
	f.add("fcntl", Allow, oneOf(1, fcntlCommands())...)
	f.add("setsockopt", Allow, append(oneOf(1, socketLevels()), socketOptions()...)...)
	// A namespace made inside would give back what the jail took away.
	f.add("clone", Allow, all("no namespaces", bits(0,
		cloneNewNS|cloneNewCgroup|cloneNewUTS|cloneNewIPC|cloneNewUser|cloneNewPID|cloneNewNet|cloneIO, 0)))
	f.add("ioctl", Allow, oneOf(1, ioctlRequests())...)
	f.add("prctl", Allow, append(oneOf(0, prctl),
		all("PR_SET_SECCOMP, a filter", is(0, prSetSeccomp), Cond{Arg: 1, Op: Equal, Value: seccompModeFilter}))...)
	// A process may filter itself further. A listener would let one process
	// answer for the calls of another.
	f.add("seccomp", Allow,
		all("a filter without a listener", is(0, seccompSetFilter), bits(1, seccompNewListener, 0)),
		all("which actions there are", is(0, seccompGetAction)),
		all("sizes of notifications", is(0, seccompGetSizes)))
	// Other execution domains bring old and odd behaviour with them, weaker
	// address randomisation among it.
	f.add("personality", Allow,
		all("PER_LINUX", is(0, 0)),
		all("only asking", is(0, word)))
	for name, arg := range map[string]uint8{"mknod": 1, "mknodat": 2} {
		f.add(name, Allow,
			all("no type: regular", bits(arg, fileType, 0)),
			all("S_IFREG", bits(arg, fileType, fileRegular)),
			all("S_IFIFO", bits(arg, fileType, fileFIFO)),
			all("S_IFSOCK", bits(arg, fileType, fileUnixSock)))
	}
}

// addSockets appends the rules about making sockets and about sending with an
// implied connect. What cgroup programs never see is refused here: packet,
// vsock and netlink sockets. Netlink's buffers are charged to nobody either:
// a lease of 64 MB held 3 GB of them, in answers that it did not read.
func (f *Filter) addSockets() {
	typed := func(note string, domain, typ, proto uint32) Match {
		return all(note, is(0, domain), bits(1, word&^sockFlags, uint64(typ)), is(2, proto))
	}
	when := []Match{
		typed("unix stream", afUnix, sockStream, 0),
		typed("unix datagram", afUnix, sockDgram, 0),
		typed("unix seqpacket", afUnix, sockSeqpack, 0),
	}
	for _, d := range []named{{afInet, "ip4"}, {afInet6, "ip6"}} {
		when = append(when,
			typed(d.name+" tcp", d.value, sockStream, 0),
			typed(d.name+" tcp", d.value, sockStream, protoTCP),
			typed(d.name+" udp", d.value, sockDgram, 0),
			typed(d.name+" udp", d.value, sockDgram, protoUDP))
	}
	f.add("socket", Allow, when...)
	// Runtimes that try MPTCP first go on with TCP after this answer, and
	// after no other.
	f.add("socket", Errno(EPROTONOSUPPORT),
		all("ip4 mptcp", is(0, afInet), is(2, protoMPTCP)),
		all("ip6 mptcp", is(0, afInet6), is(2, protoMPTCP)))
	f.add("socketpair", Allow, all("unix", is(0, afUnix)))
	// Fast open connects without a connect.
	for name, arg := range map[string]uint8{"sendto": 3, "sendmsg": 2, "sendmmsg": 3} {
		f.add(name, Allow, all("no MSG_FASTOPEN", bits(arg, msgFastOpen, 0)))
	}
}

// fcntlCommands are all but those that act on others through a file that they
// share, as all leases share an image: a lease (F_SETLEASE) or a watch
// (F_NOTIFY) holds up or betrays everybody's open, and F_SETSIG serves them.
// F_SETPIPE_SZ is out since the pages of a pipe that the daemon made are
// counted against the daemon's user.
func fcntlCommands() []named {
	return []named{
		{0, "F_DUPFD"},
		{1, "F_GETFD"},
		{2, "F_SETFD"},
		{3, "F_GETFL"},
		{4, "F_SETFL"},
		{5, "F_GETLK"},
		{6, "F_SETLK"},
		{7, "F_SETLKW"},
		{8, "F_SETOWN"},
		{9, "F_GETOWN"},
		{11, "F_GETSIG"},
		{15, "F_SETOWN_EX"},
		{16, "F_GETOWN_EX"},
		{36, "F_OFD_GETLK"},
		{37, "F_OFD_SETLK"},
		{38, "F_OFD_SETLKW"},
		{1025, "F_GETLEASE"},
		{1027, "F_DUPFD_QUERY"},
		{1028, "F_CREATED_QUERY"},
		{1030, "F_DUPFD_CLOEXEC"},
		{1032, "F_GETPIPE_SZ"},
		{1033, "F_ADD_SEALS"},
		{1034, "F_GET_SEALS"},
		{1035, "F_GET_RW_HINT"},
		{1036, "F_SET_RW_HINT"},
		{1037, "F_GET_FILE_RW_HINT"},
		{1038, "F_SET_FILE_RW_HINT"},
	}
}

// socketLevels are those whose options concern the socket alone.
func socketLevels() []named {
	return []named{{0, "IPPROTO_IP"}, {6, "IPPROTO_TCP"}, {17, "IPPROTO_UDP"}, {41, "IPPROTO_IPV6"}}
}

// socketOptions are those of SOL_SOCKET. Not the ones that attach a BPF
// program (SO_ATTACH_FILTER, 26, and its kin): its machine code comes from a
// pool of the whole host that is charged to nobody, and without which no
// process can install a seccomp filter.
func socketOptions() []Match {
	const solSocket = 1
	var when []Match
	for _, o := range []named{
		{1, "SO_DEBUG"},
		{2, "SO_REUSEADDR"},
		{5, "SO_DONTROUTE"},
		{6, "SO_BROADCAST"},
		{7, "SO_SNDBUF"},
		{8, "SO_RCVBUF"},
		{9, "SO_KEEPALIVE"},
		{10, "SO_OOBINLINE"},
		{12, "SO_PRIORITY"},
		{13, "SO_LINGER"},
		{15, "SO_REUSEPORT"},
		{16, "SO_PASSCRED"},
		{18, "SO_RCVLOWAT"},
		{19, "SO_SNDLOWAT"},
		{20, "SO_RCVTIMEO_OLD"},
		{21, "SO_SNDTIMEO_OLD"},
		{25, "SO_BINDTODEVICE"},
		{29, "SO_TIMESTAMP_OLD"},
		{35, "SO_TIMESTAMPNS_OLD"},
		{37, "SO_TIMESTAMPING_OLD"},
		{49, "SO_INCOMING_CPU"},
		{60, "SO_ZEROCOPY"},
		{63, "SO_TIMESTAMP_NEW"},
		{64, "SO_TIMESTAMPNS_NEW"},
		{65, "SO_TIMESTAMPING_NEW"},
		{66, "SO_RCVTIMEO_NEW"},
		{67, "SO_SNDTIMEO_NEW"},
		{76, "SO_PASSPIDFD"},
	} {
		when = append(when, all(o.name, is(1, solSocket), is(2, o.value)))
	}
	return when
}

// prctlOptions are the options that act on the calling process alone and give
// it nothing.
func prctlOptions() []named {
	return []named{
		{1, "PR_SET_PDEATHSIG"},
		{2, "PR_GET_PDEATHSIG"},
		{3, "PR_GET_DUMPABLE"},
		{4, "PR_SET_DUMPABLE"},
		{15, "PR_SET_NAME"},
		{16, "PR_GET_NAME"},
		{21, "PR_GET_SECCOMP"},
		{23, "PR_CAPBSET_READ"},
		{25, "PR_GET_TSC"},
		{29, "PR_SET_TIMERSLACK"},
		{30, "PR_GET_TIMERSLACK"},
		{36, "PR_SET_CHILD_SUBREAPER"},
		{37, "PR_GET_CHILD_SUBREAPER"},
		{38, "PR_SET_NO_NEW_PRIVS"},
		{39, "PR_GET_NO_NEW_PRIVS"},
		{40, "PR_GET_TID_ADDRESS"},
		{42, "PR_GET_THP_DISABLE"},
		{52, "PR_GET_SPECULATION_CTRL"},
		{53, "PR_SET_SPECULATION_CTRL"},
		{0x53564d41, "PR_SET_VMA"}, // allocators name their memory
	}
}
