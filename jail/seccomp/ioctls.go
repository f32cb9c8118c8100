package seccomp

// ioctlRequests are the requests that may be made. A request number means
// something else on each kind of file, so the list holds only what is harmless
// on all that a jail can open.
//
// Left out with intent: TIOCSTI and TIOCLINUX type into a terminal that others
// read; TIOCSETD loads line disciplines; TIOCCONS takes the console;
// FS_IOC_SETFLAGS and FS_IOC_FSSETXATTR make files that cannot be removed;
// FICLONE, FICLONERANGE and FIDEDUPERANGE share blocks below the volume's
// accounts; FITRIM, FIFREEZE and FIBMAP act on the whole file system; the
// requests of devices, tun, loop, kvm and namespaces have no place here.
func ioctlRequests() []named {
	return []named{
		// Terminals: settings, windows, job control.
		{0x5401, "TCGETS"},
		{0x5402, "TCSETS"},
		{0x5403, "TCSETSW"},
		{0x5404, "TCSETSF"},
		{0x802c542a, "TCGETS2"}, // glibc 2.42 uses these four
		{0x402c542b, "TCSETS2"},
		{0x402c542c, "TCSETSW2"},
		{0x402c542d, "TCSETSF2"},
		{0x5409, "TCSBRK"},
		{0x5425, "TCSBRKP"},
		{0x540a, "TCXONC"},
		{0x540b, "TCFLSH"},
		{0x540c, "TIOCEXCL"},
		{0x540d, "TIOCNXCL"},
		{0x540e, "TIOCSCTTY"},
		{0x5422, "TIOCNOTTY"},
		{0x540f, "TIOCGPGRP"},
		{0x5410, "TIOCSPGRP"},
		{0x5429, "TIOCGSID"},
		{0x5411, "TIOCOUTQ"}, // SIOCOUTQ on sockets
		{0x5413, "TIOCGWINSZ"},
		{0x5414, "TIOCSWINSZ"},
		// Pseudo-terminals, of the jail's own devpts.
		{0x80045430, "TIOCGPTN"},
		{0x40045431, "TIOCSPTLCK"},
		{0x80045439, "TIOCGPTLCK"},
		{0x5441, "TIOCGPTPEER"},
		{0x5420, "TIOCPKT"},
		// Any descriptor.
		{0x5421, "FIONBIO"},
		{0x541b, "FIONREAD"}, // SIOCINQ on sockets
		{0x5450, "FIONCLEX"},
		{0x5451, "FIOCLEX"},
		{0x5452, "FIOASYNC"},
		{0x5460, "FIOQSIZE"},
		// Files: asking only.
		{0x2, "FIGETBSZ"},
		{0xc020660b, "FS_IOC_FIEMAP"}, // cp looks for holes
		{0x80086601, "FS_IOC_GETFLAGS"},
		{0x801c581f, "FS_IOC_FSGETXATTR"},
		// Sockets: asking only.
		{0x8905, "SIOCATMARK"},
		{0x8906, "SIOCGSTAMP"},
		{0x8910, "SIOCGIFNAME"},
		{0x8912, "SIOCGIFCONF"},
		{0x8913, "SIOCGIFFLAGS"},
		{0x8915, "SIOCGIFADDR"},
		{0x8919, "SIOCGIFBRDADDR"},
		{0x891b, "SIOCGIFNETMASK"},
		{0x8921, "SIOCGIFMTU"},
		{0x8927, "SIOCGIFHWADDR"},
		{0x8933, "SIOCGIFINDEX"},
		{0x8942, "SIOCGIFTXQLEN"},
		// The pool's state, which some libraries look at before they read it.
		{0x80045200, "RNDGETENTCNT"},
	}
}
