package link

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/netns"
)

// SetFlags sets the flags of the link that users can set to the values in f.
func SetFlags(n *netns.Netns, index int, f Flags) error {
	return changeFlags(n, index, settableFlags, f.raw())
}

// changeFlags sets the link's flags that are in the mask which to their values in flags.
func changeFlags(n *netns.Netns, index int, which, flags uint32) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	msg.Change = which
	msg.Flags = flags
	req.AddData(msg)
	return IfGone(n, n.Execute(req), index)
}

// Flags are the interface flags that users can set (ip-link(8)), besides up.
type Flags struct {
	Promisc      bool `json:"promisc,omitempty"`
	AllMulticast bool `json:"allmulticast,omitempty"`
	Multicast    bool `json:"multicast,omitempty"`
	NoARP        bool `json:"noarp,omitempty"`
	// Rest are the flags in restFlags, with the kernel's numbers.
	Rest uint32 `json:"rest,omitempty"`
}

// restFlags are the other flags that the kernel lets userspace set (__dev_change_flags). Few
// drivers use them.
const restFlags = unix.IFF_DEBUG | unix.IFF_NOTRAILERS | unix.IFF_PORTSEL | unix.IFF_AUTOMEDIA | unix.IFF_DYNAMIC

func flagsOf(raw uint32) Flags {
	return Flags{
		Promisc:      raw&unix.IFF_PROMISC != 0,
		AllMulticast: raw&unix.IFF_ALLMULTI != 0,
		Multicast:    raw&unix.IFF_MULTICAST != 0,
		NoARP:        raw&unix.IFF_NOARP != 0,
		Rest:         raw & restFlags,
	}
}

const settableFlags = unix.IFF_PROMISC | unix.IFF_ALLMULTI | unix.IFF_MULTICAST | unix.IFF_NOARP | restFlags

func (f Flags) raw() uint32 {
	raw := f.Rest & restFlags
	for _, one := range []struct {
		set bool
		bit uint32
	}{{f.Promisc, unix.IFF_PROMISC}, {f.AllMulticast, unix.IFF_ALLMULTI}, {f.Multicast, unix.IFF_MULTICAST}, {f.NoARP, unix.IFF_NOARP}} {
		if one.set {
			raw |= one.bit
		}
	}
	return raw
}
