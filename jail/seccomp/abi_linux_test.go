package seccomp

import (
	"testing"

	"golang.org/x/sys/unix"
)

// TestNumbersOfTheABI compares the numbers written in this package with those
// generated from the kernel's headers, where these are known.
func TestNumbersOfTheABI(t *testing.T) {
	headers := map[string]uint32{
		"TCGETS": unix.TCGETS, "TCSETS": unix.TCSETS, "TCSETSW": unix.TCSETSW, "TCSETSF": unix.TCSETSF,
		"TCGETS2": unix.TCGETS2, "TCSETS2": unix.TCSETS2, "TCSETSW2": unix.TCSETSW2, "TCSETSF2": unix.TCSETSF2,
		"TCSBRK": unix.TCSBRK, "TCSBRKP": unix.TCSBRKP, "TCXONC": unix.TCXONC, "TCFLSH": unix.TCFLSH,
		"TIOCEXCL": unix.TIOCEXCL, "TIOCNXCL": unix.TIOCNXCL, "TIOCSCTTY": unix.TIOCSCTTY, "TIOCNOTTY": unix.TIOCNOTTY,
		"TIOCGPGRP": unix.TIOCGPGRP, "TIOCSPGRP": unix.TIOCSPGRP, "TIOCGSID": unix.TIOCGSID, "TIOCOUTQ": unix.TIOCOUTQ,
		"TIOCGWINSZ": unix.TIOCGWINSZ, "TIOCSWINSZ": unix.TIOCSWINSZ, "TIOCGPTN": unix.TIOCGPTN,
		"TIOCSPTLCK": unix.TIOCSPTLCK, "TIOCGPTLCK": unix.TIOCGPTLCK, "TIOCGPTPEER": unix.TIOCGPTPEER,
		"TIOCPKT": unix.TIOCPKT, "FIONREAD": unix.TIOCINQ,
		"FS_IOC_GETFLAGS": unix.FS_IOC_GETFLAGS, "RNDGETENTCNT": unix.RNDGETENTCNT,
		"SIOCATMARK": unix.SIOCATMARK, "SIOCGSTAMP": unix.SIOCGSTAMP_OLD, "SIOCGIFNAME": unix.SIOCGIFNAME, "SIOCGIFCONF": unix.SIOCGIFCONF,
		"SIOCGIFFLAGS": unix.SIOCGIFFLAGS, "SIOCGIFADDR": unix.SIOCGIFADDR, "SIOCGIFBRDADDR": unix.SIOCGIFBRDADDR,
		"SIOCGIFNETMASK": unix.SIOCGIFNETMASK, "SIOCGIFMTU": unix.SIOCGIFMTU, "SIOCGIFHWADDR": unix.SIOCGIFHWADDR,
		"SIOCGIFINDEX": unix.SIOCGIFINDEX, "SIOCGIFTXQLEN": unix.SIOCGIFTXQLEN,
		// That package lacks these; from asm-generic/ioctls.h and linux/fs.h.
		"FIONBIO": 0x5421, "FIONCLEX": 0x5450, "FIOCLEX": 0x5451, "FIOASYNC": 0x5452, "FIOQSIZE": 0x5460,
		"FIGETBSZ": 2, "FS_IOC_FIEMAP": 0xc020660b, "FS_IOC_FSGETXATTR": 0x801c581f,

		"PR_SET_PDEATHSIG": unix.PR_SET_PDEATHSIG, "PR_GET_PDEATHSIG": unix.PR_GET_PDEATHSIG,
		"PR_GET_DUMPABLE": unix.PR_GET_DUMPABLE, "PR_SET_DUMPABLE": unix.PR_SET_DUMPABLE,
		"PR_SET_NAME": unix.PR_SET_NAME, "PR_GET_NAME": unix.PR_GET_NAME, "PR_GET_SECCOMP": unix.PR_GET_SECCOMP,
		"PR_CAPBSET_READ": unix.PR_CAPBSET_READ, "PR_CAPBSET_DROP": unix.PR_CAPBSET_DROP, "PR_CAP_AMBIENT": unix.PR_CAP_AMBIENT,
		"PR_GET_TSC": unix.PR_GET_TSC, "PR_SET_TIMERSLACK": unix.PR_SET_TIMERSLACK, "PR_GET_TIMERSLACK": unix.PR_GET_TIMERSLACK,
		"PR_SET_CHILD_SUBREAPER": unix.PR_SET_CHILD_SUBREAPER, "PR_GET_CHILD_SUBREAPER": unix.PR_GET_CHILD_SUBREAPER,
		"PR_SET_NO_NEW_PRIVS": unix.PR_SET_NO_NEW_PRIVS, "PR_GET_NO_NEW_PRIVS": unix.PR_GET_NO_NEW_PRIVS,
		"PR_GET_TID_ADDRESS": unix.PR_GET_TID_ADDRESS, "PR_GET_THP_DISABLE": unix.PR_GET_THP_DISABLE,
		"PR_GET_SPECULATION_CTRL": unix.PR_GET_SPECULATION_CTRL, "PR_SET_SPECULATION_CTRL": unix.PR_SET_SPECULATION_CTRL,
		"PR_SET_VMA": unix.PR_SET_VMA,
	}
	lists := append(ioctlRequests(), prctlOptions()...)
	lists = append(lists, named{0x18, "PR_CAPBSET_DROP"}, named{0x2f, "PR_CAP_AMBIENT"})
	for _, n := range lists {
		want, ok := headers[n.name]
		if !ok || n.value != want {
			t.Errorf("%s: got %#x, want %#x (known: %v)", n.name, n.value, want, ok)
		}
		delete(headers, n.name)
	}
	for name := range headers {
		t.Errorf("%s: not in the policy", name)
	}
	for _, c := range []struct {
		name      string
		got, want uint64
	}{
		{"MSG_FASTOPEN", msgFastOpen, unix.MSG_FASTOPEN},
		{"socket flags", sockFlags, unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK},
		{
			"namespace flags", cloneNewNS | cloneNewCgroup | cloneNewUTS | cloneNewIPC | cloneNewUser | cloneNewPID | cloneNewNet,
			unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET,
		},
		{"S_IFMT", fileType, unix.S_IFMT},
		{"NEW_LISTENER", seccompNewListener, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER},
		{"MPTCP", protoMPTCP, unix.IPPROTO_MPTCP},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %#x, want %#x", c.name, c.got, c.want)
		}
	}
}
