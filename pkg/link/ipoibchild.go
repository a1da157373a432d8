package link

import (
	"encoding/binary"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// IPoIBChild describes a child of an InfiniBand interface to create.
type IPoIBChild struct {
	Parent int    // ifindex of the interface of the port, in the same namespace
	Name   string // its name in that namespace
	PKey   uint16 // the kernel sets the bit of full membership
	Umcast bool   // it ignores multicast groups that programs join directly
}

// CreateIPoIBChild makes a child, in datagram mode, in the namespace of its parent and leaves it down. It cannot be made in the pod:
// a driver looks for the parent in the child's namespace (mlx5i_pkey_dev_init). The error wraps [ErrNotFound] and
// ENODEV if there is no parent with that index.
func (n *Netns) CreateIPoIBChild(c IPoIBChild) error {
	u16 := func(kind, v uint16) nlattr.Attr {
		return nlattr.Attr{Type: kind, Value: binary.NativeEndian.AppendUint16(nil, v)}
	}
	data := nlattr.Attrs{u16(nl.IFLA_IPOIB_PKEY, c.PKey)}
	if c.Umcast {
		data = append(data, u16(nl.IFLA_IPOIB_UMCAST, 1))
	}
	info := nlattr.Attrs{
		{Type: unix.IFLA_INFO_KIND, Value: nl.ZeroTerminated(KindIPoIB)},
		{Type: unix.IFLA_INFO_DATA, Flags: unix.NLA_F_NESTED, Value: nlattr.Marshal(nil, data)},
	}
	attrs := nlattr.Attrs{
		{Type: unix.IFLA_LINK, Value: nl.Uint32Attr(uint32(c.Parent))},
		{Type: unix.IFLA_IFNAME, Value: nl.ZeroTerminated(c.Name)},
		{Type: unix.IFLA_LINKINFO, Flags: unix.NLA_F_NESTED, Value: nlattr.Marshal(nil, info)},
	}
	return n.ifGone(n.replay(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, nl.NewIfInfomsg(unix.AF_UNSPEC).Serialize(), attrs), c.Parent)
}

// IsIPoIBChild reports whether l is the child of an InfiniBand interface.
func (l *Link) IsIPoIBChild() bool { return l.isIPoIBChild() }

// RandomAddrGen makes the kernel choose a random link-local address when the link is set up
// (IN6_ADDR_GEN_MODE_RANDOM). Otherwise all children of a port, which share its GUID, get the same one.
func (n *Netns) RandomAddrGen(index int) error {
	const random = 3
	mode := nlattr.Attrs{{Type: unix.IFLA_INET6_ADDR_GEN_MODE, Value: []byte{random}}}
	families := nlattr.Attrs{{Type: unix.AF_INET6, Flags: unix.NLA_F_NESTED, Value: nlattr.Marshal(nil, mode)}}
	return n.setLink(index, nlattr.Attr{Type: unix.IFLA_AF_SPEC, Flags: unix.NLA_F_NESTED, Value: nlattr.Marshal(nil, families)})
}
