package bpf

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// Program is a BPF program that is attached to a link. Such a program survives
// the link's move to another namespace.
type Program struct {
	Hook string `json:"hook"` // "xdp", "xdp generic", "xdp offloaded", "tcx ingress", …
	ID   uint32 `json:"id"`   // as `bpftool prog` shows it

	link uint32 // the bpf_link that holds the program, 0 if none does or none is known
}

// Same reports whether p and other are the same program at the same hook.
func (p Program) Same(other Program) bool { return p.Hook == other.Hook && p.ID == other.ID }

func (p Program) String() string { return fmt.Sprintf("%s program %d", p.Hook, p.ID) }

// xdpHooks are the modes of an XDP program. Each has the attribute with the program's id
// (IFLA_XDP_*_PROG_ID) and the flag of the mode (XDP_FLAGS_*_MODE). Both are from linux/if_link.h.
var xdpHooks = []struct {
	name string
	kind uint16
	flag uint32
}{
	{"xdp", 5, 1 << 2},
	{"xdp generic", 6, 1 << 1},
	{"xdp offloaded", 7, 1 << 3},
}

// listHooks are the hooks to which many programs can be attached. If only one kind of link has the
// hook, kind is that kind.
var listHooks = []struct {
	name string
	hook int
	kind string
}{
	{name: "tcx ingress", hook: bpfTCXIngress},
	{name: "tcx egress", hook: bpfTCXEgress},
	{name: "netkit primary", hook: bpfNetkitPrimary, kind: "netkit"},
	{name: "netkit peer", hook: bpfNetkitPeer, kind: "netkit"},
}

// Programs lists the BPF programs that are attached to l by XDP, tcx or netkit. The caller must
// have just read l from n. The programs of tc filters are not included: they are destroyed with
// their queueing discipline when the link moves.
func Programs(n *netns.Netns, l *link.Link) ([]Program, error) {
	attrs, err := link.AttrsOf(n, l)
	if err != nil {
		return nil, err
	}
	index, found := l.Index, xdpPrograms(attrs)
	err = n.Do(func() error {
		for _, h := range listHooks {
			if h.kind != "" && h.kind != l.Kind {
				continue // each request takes the RTNL
			}
			programs, links, err := query(index, h.hook)
			if err != nil {
				return fmt.Errorf("list %s programs of link with index %d in netns %s: %w", h.name, index, n.Path, link.IfGone(n, err, index))
			}
			for i := range programs {
				found = append(found, Program{Hook: h.name, ID: programs[i], link: links[i]})
			}
		}
		return nil
	})
	return found, err
}

func xdpPrograms(attrs nlattr.Attrs) []Program {
	xdp, err := attrs.Nested(unix.IFLA_XDP)
	if err != nil {
		return nil
	}
	var found []Program
	for _, h := range xdpHooks {
		if id, _ := xdp.Uint32(h.kind); id != 0 {
			found = append(found, Program{Hook: h.name, ID: id})
		}
	}
	return found
}

// Detach detaches the programs from the link with this index. If it fails for a program, it
// continues with the next one. It returns all errors, joined.
func Detach(n *netns.Netns, index int, programs []Program) error {
	var errs []error
	for _, p := range programs {
		if err := detach(n, index, p); err != nil {
			errs = append(errs, fmt.Errorf("detach %s: %w", p, link.IfGone(n, err, index)))
		}
	}
	return errors.Join(errs...)
}

func detach(n *netns.Netns, index int, p Program) error {
	if p.link != 0 {
		return gone(detachLink(p.link))
	}
	for _, h := range listHooks {
		if h.name == p.Hook {
			return n.Do(func() error { return gone(detachProgram(index, h.hook, p.ID)) })
		}
	}
	for _, h := range xdpHooks {
		if h.name == p.Hook {
			return detachXDP(n, index, h.flag, p.ID)
		}
	}
	return fmt.Errorf("unknown hook %q", p.Hook)
}

// gone returns nil if err means that the program is already detached. Otherwise it returns err.
func gone(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOLINK) {
		return nil
	}
	return err
}

func detachXDP(n *netns.Netns, index int, flag, program uint32) error {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	xdp := nl.NewRtAttr(unix.IFLA_XDP|unix.NLA_F_NESTED, nil)
	xdp.AddRtAttr(nl.IFLA_XDP_FD, nl.Uint32Attr(^uint32(0)))
	xdp.AddRtAttr(nl.IFLA_XDP_FLAGS, nl.Uint32Attr(flag))
	req.AddData(xdp)
	err := n.Execute(req)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	// A bpf_link holds the program (dev_xdp_attach).
	links, listErr := xdpLinks(index, program)
	switch {
	case listErr != nil:
		return errors.Join(err, listErr)
	case len(links) != 1:
		// The same program is on interfaces with the same index in several namespaces. It must stay
		// on the interfaces of the other namespaces.
		return fmt.Errorf("%d bpf_links hold the program on interfaces with index %d, ids %v (detach the right bpf_link with `bpftool link detach id`): %w",
			len(links), index, links, err)
	}
	return gone(detachLink(links[0]))
}
