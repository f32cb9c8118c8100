package ebpf

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"cordon/internal/fault"
)

// Hook numbers of denials: the enum of bpf/filter.c.
const (
	hookSockCreate = iota
	hookConnect4
	hookConnect6
	hookSendmsg4
	hookSendmsg6
	hookBind4
	hookBind6
	hookSkbEgress
	deniedHooks
)

// hook is one place where the kernel asks.
type hook struct {
	name    string
	attach  ebpf.AttachType
	program func(*programsPrograms) *ebpf.Program
}

// hooks lists every attachment; the first deniedHooks stand at their number.
func hooks() []hook {
	return []hook{
		{"sock_create", ebpf.AttachCGroupInetSockCreate, func(p *programsPrograms) *ebpf.Program { return p.SockCreate }},
		{"connect4", ebpf.AttachCGroupInet4Connect, func(p *programsPrograms) *ebpf.Program { return p.Connect4 }},
		{"connect6", ebpf.AttachCGroupInet6Connect, func(p *programsPrograms) *ebpf.Program { return p.Connect6 }},
		{"sendmsg4", ebpf.AttachCGroupUDP4Sendmsg, func(p *programsPrograms) *ebpf.Program { return p.Sendmsg4 }},
		{"sendmsg6", ebpf.AttachCGroupUDP6Sendmsg, func(p *programsPrograms) *ebpf.Program { return p.Sendmsg6 }},
		{"bind4", ebpf.AttachCGroupInet4Bind, func(p *programsPrograms) *ebpf.Program { return p.Bind4 }},
		{"bind6", ebpf.AttachCGroupInet6Bind, func(p *programsPrograms) *ebpf.Program { return p.Bind6 }},
		{"skb_egress", ebpf.AttachCGroupInetEgress, func(p *programsPrograms) *ebpf.Program { return p.SkbEgress }},
		// skb_ingress refuses nothing and only counts.
		{"skb_ingress", ebpf.AttachCGroupInetIngress, func(p *programsPrograms) *ebpf.Program { return p.SkbIngress }},
	}
}

func (h hook) pin() string { return "link_" + h.name }

// attachTo attaches h's program to the cgroup at path.
func (h hook) attachTo(path string, progs *programsPrograms) (link.Link, error) {
	l, err := link.AttachCgroup(link.CgroupOptions{
		Path:    path,
		Attach:  h.attach,
		Program: h.program(progs),
	})
	if err != nil {
		return nil, h.missing("attach", err)
	}
	return l, nil
}

// pinned pins l. The library falls back to an older kind of attachment where
// the kernel has no links for cgroups; that kind cannot be pinned, would end
// with this process, and is refused here.
func (h hook) pinned(l link.Link, path string) error {
	if err := l.Pin(path); err != nil {
		return h.missing("pin", err)
	}
	return nil
}

// missing turns the answers that mean "this kernel cannot" into a fault that
// names the hook, and wraps all others.
func (h hook) missing(op string, err error) error {
	switch {
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.EOPNOTSUPP):
		return missingFeature(h.name, "the kernel cannot "+op+" this hook", err)
	default:
		return fmt.Errorf("%s hook %s: %w", op, h.name, err)
	}
}

func missingFeature(name, cause string, err error) error {
	return fault.Wrap(err, fault.MissingFeature, "ebpf."+name, cause,
		"run Linux "+MinKernel+" or newer, built with CONFIG_CGROUP_BPF and CONFIG_BPF_JIT")
}
