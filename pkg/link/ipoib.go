package link

import (
	"bytes"
	"encoding/binary"
	"net"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// KindIPoIB is the kind of the interfaces that ib_ipoib makes. Each port of an HCA has one
// interface whose parent device is the HCA. That interface can have children, which have no parent
// device.
const KindIPoIB = "ipoib"

// The address of an InfiniBand interface (RFC 4391, section 9.1.1) consists of a byte of flags, the number of the queue pair, and
// the GID of the port. The last half of the GID is the GUID.
const (
	IPoIBAddress = 20
	ipoibGUID    = 12
)

// IPoIB has the settings of an InfiniBand interface that other links do not have. A pod can change
// Mode and Umcast, and the changed values move with the interface.
type IPoIB struct {
	PKey   uint16 `json:"pkey"`             // key of its partition, with the bit of full membership
	Mode   uint16 `json:"mode"`             // 0 datagram, 1 connected (IPOIB_MODE_… of linux/if_link.h)
	Umcast uint16 `json:"umcast,omitempty"` // 1: the interface ignores groups that programs join directly
	// Children are the numbers of the queue pairs of the children that the interface had on the
	// host. Nobody can change the number in the address of an interface (ipoib_set_mac).
	Children []uint32 `json:"children,omitempty"`
}

// Connected reports whether the interface is in connected mode rather than datagram mode.
func (i *IPoIB) Connected() bool { return i.Mode != 0 }

// IPoIBOf returns the InfiniBand settings in the attributes of a link, or nil if the link is of
// another kind.
func IPoIBOf(attrs nlattr.Attrs) *IPoIB {
	info, err := attrs.Nested(unix.IFLA_LINKINFO)
	if err != nil || info.Text(unix.IFLA_INFO_KIND) != KindIPoIB {
		return nil
	}
	data, _ := info.Nested(unix.IFLA_INFO_DATA)
	return parseIPoIB(data)
}

// parseIPoIB decodes IFLA_INFO_DATA of an InfiniBand interface. Sysfs shows these values only for
// interfaces that were not created through netlink.
func parseIPoIB(data nlattr.Attrs) *IPoIB {
	read := func(kind uint16) uint16 {
		v, _ := data.Get(kind)
		if len(v) < 2 {
			return 0
		}
		return binary.NativeEndian.Uint16(v)
	}
	return &IPoIB{PKey: read(nl.IFLA_IPOIB_PKEY), Mode: read(nl.IFLA_IPOIB_MODE), Umcast: read(nl.IFLA_IPOIB_UMCAST)}
}

// HasMAC reports whether mac is the link's address. For the InfiniBand interface of a port it accepts every address with the same
// GUID: the queue pair changes when the kernel re-creates the interface.
func (l *Link) HasMAC(mac net.HardwareAddr) bool {
	if l.IsIPoIB() && len(l.MAC) == IPoIBAddress && len(mac) == IPoIBAddress {
		return bytes.Equal(l.MAC[ipoibGUID:], mac[ipoibGUID:])
	}
	return bytes.Equal(l.MAC, mac)
}

// PortGUID returns the GUID of the port of an InfiniBand interface, or 0 for another link.
func (l *Link) PortGUID() uint64 {
	if !l.IsIPoIB() {
		return 0
	}
	return GUIDIn(l.PermMAC)
}

// GUIDIn returns the GUID in the address of an InfiniBand interface, or 0 for another address.
func GUIDIn(mac net.HardwareAddr) uint64 {
	if len(mac) != IPoIBAddress {
		return 0
	}
	return binary.BigEndian.Uint64(mac[ipoibGUID:])
}

// QueuePair returns the number of the queue pair in the address of an InfiniBand interface (bytes 1
// to 3). It returns 0 for other links.
func (l *Link) QueuePair() uint32 {
	if len(l.MAC) != IPoIBAddress {
		return 0
	}
	return binary.BigEndian.Uint32(l.MAC) & 0xffffff
}

// IsChildOf reports whether l is an IPoIB child of the interface with this index. That interface
// may be in another namespace. The kernel reports the interface's index, but not that it is in
// another namespace. If l has the same index, the kernel reports none.
func (l *Link) IsChildOf(index int) bool {
	return l.IsIPoIBChild() && (l.Lower == index || l.Lower == 0 && l.Index == index)
}

// IsIPoIB reports whether l is the InfiniBand interface of a port, and not a child of such an
// interface.
func (l *Link) IsIPoIB() bool { return l.Kind == KindIPoIB && l.HasParent() }

// AddressLike returns the address have of an InfiniBand interface with its GUID replaced by the GUID of want. Nobody can change the
// bytes before the GUID (ipoib_set_mac).
func AddressLike(have, want net.HardwareAddr) net.HardwareAddr {
	if len(have) != IPoIBAddress || len(want) != IPoIBAddress {
		return want
	}
	return slices.Concat(have[:ipoibGUID], want[ipoibGUID:])
}

// IsIPoIBChild reports whether l is the child of an InfiniBand interface.
func (l *Link) IsIPoIBChild() bool { return l.Kind == KindIPoIB && !l.HasParent() }

// IPoIBChild describes a child of an InfiniBand interface to create.
type IPoIBChild struct {
	Parent int    // ifindex of the interface of the port, in the same namespace
	Name   string // its name in that namespace
	PKey   uint16 // the kernel sets the bit of full membership
	Umcast bool   // the child ignores multicast groups that programs join directly
}

// CreateIPoIBChild makes a child, in datagram mode, in the namespace of its parent, and leaves it down. The child cannot be made in
// the pod's namespace: a driver looks for the parent in the child's namespace (mlx5i_pkey_dev_init). The error wraps [ErrNotFound]
// and ENODEV if there is no parent with that index.
func CreateIPoIBChild(n *netns.Netns, c IPoIBChild) error {
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
	return IfGone(n, n.Request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, nl.NewIfInfomsg(unix.AF_UNSPEC).Serialize(), attrs), c.Parent)
}

// RandomAddrGen makes the kernel choose a random link-local address when the link is set up (IN6_ADDR_GEN_MODE_RANDOM). Otherwise
// all children of a port would get the same address, because they share its GUID.
func RandomAddrGen(n *netns.Netns, index int) error {
	const random = 3
	mode := nlattr.Attrs{{Type: unix.IFLA_INET6_ADDR_GEN_MODE, Value: []byte{random}}}
	families := nlattr.Attrs{{Type: unix.AF_INET6, Flags: unix.NLA_F_NESTED, Value: nlattr.Marshal(nil, mode)}}
	return Set(n, index, nlattr.Attr{Type: unix.IFLA_AF_SPEC, Flags: unix.NLA_F_NESTED, Value: nlattr.Marshal(nil, families)})
}
