package link

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// KindIPoIB is the kind of the interfaces that ib_ipoib makes: one for each port of an HCA, which
// has the HCA as its parent device, and children of that, which have none.
const KindIPoIB = "ipoib"

// The address of an InfiniBand interface (RFC 4391, section 9.1.1): a byte of flags, the number of the
// queue pair, and the GID of the port, whose last half is the GUID.
const (
	IPoIBAddress = 20
	ipoibGUID    = 12
)

// IPoIB has the settings of an InfiniBand interface that other links do not have. A pod can change
// the mode and umcast, and they move with the interface.
type IPoIB struct {
	PKey   uint16 `json:"pkey"`             // of its partition, with the bit of full membership
	Mode   uint16 `json:"mode"`             // 0 datagram, 1 connected (IPOIB_MODE_… of linux/if_link.h)
	Umcast uint16 `json:"umcast,omitempty"` // 1: groups that programs join directly are ignored
	// Children are the queue pairs of the children that the host had: nobody can change the number
	// in the address of an interface (ipoib_set_mac).
	Children []uint32 `json:"children,omitempty"`
}

// Connected reports whether the interface is in connected mode rather than datagram mode.
func (i *IPoIB) Connected() bool { return i.Mode != 0 }

// ipoibOf returns the settings in the description of a link, nil for one of another kind.
func ipoibOf(attrs nlattr.Attrs) *IPoIB {
	info, err := attrs.Nested(unix.IFLA_LINKINFO)
	if err != nil || info.Text(unix.IFLA_INFO_KIND) != KindIPoIB {
		return nil
	}
	data, _ := info.Nested(unix.IFLA_INFO_DATA)
	return parseIPoIB(data)
}

// parseIPoIB decodes IFLA_INFO_DATA of an InfiniBand interface. Sysfs has these values only for
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

// restoreIPoIB sets the mode and umcast of l where they differ from attrs. It reports whether it has changed the
// link: a change of the mode sets the MTU.
//
// It writes the files in sysfs, because a change of the mode by netlink can leave two tasks with the RTNL:
// ipoib_set_mode releases it and may not get it again, and ipoib_changelink does not tell its caller (Linux 6.12).
// A child that was made by netlink has no such files.
func (n *Netns) restoreIPoIB(l *Link, attrs nlattr.Attrs, s *Snapshot) (changed bool, err error) {
	have, want := ipoibOf(attrs), s.IPoIB
	if want == nil || have == nil || have.Mode == want.Mode && have.Umcast == want.Umcast {
		return false, nil
	}
	if l.isIPoIBChild() {
		return true, n.setIPoIB(l.Index, want)
	}
	dir, err := n.openSysfs(l.Index)
	if err != nil {
		return false, err
	}
	defer unix.Close(dir)
	if have.Mode != want.Mode {
		err = writeAt(dir, "mode", map[bool]string{false: "datagram\n", true: "connected\n"}[want.Connected()])
	}
	if have.Umcast != want.Umcast {
		err = errors.Join(err, writeAt(dir, "umcast", strconv.Itoa(int(want.Umcast))+"\n"))
	}
	return true, err
}

// setIPoIB sets the mode and umcast of a child.
func (n *Netns) setIPoIB(index int, want *IPoIB) error {
	data := nlattr.Attrs{
		{Type: nl.IFLA_IPOIB_MODE, Value: binary.NativeEndian.AppendUint16(nil, want.Mode)},
		{Type: nl.IFLA_IPOIB_UMCAST, Value: binary.NativeEndian.AppendUint16(nil, want.Umcast)},
	}
	info := nlattr.Attrs{
		{Type: unix.IFLA_INFO_KIND, Value: []byte(KindIPoIB + "\x00")},
		{Type: unix.IFLA_INFO_DATA, Value: nlattr.Marshal(nil, data)},
	}
	return n.setLink(index, nlattr.Attr{Type: unix.IFLA_LINKINFO, Value: nlattr.Marshal(nil, info)})
}

// HasMAC reports whether mac is the link's address. An InfiniBand interface of a port also has every address with
// its GUID: the queue pair changes when the kernel re-creates the interface.
func (l *Link) HasMAC(mac net.HardwareAddr) bool {
	if l.IsIPoIB() && len(l.MAC) == IPoIBAddress && len(mac) == IPoIBAddress {
		return bytes.Equal(l.MAC[ipoibGUID:], mac[ipoibGUID:])
	}
	return bytes.Equal(l.MAC, mac)
}

// PortGUID returns the GUID of the port of an InfiniBand interface, 0 for another link.
func (l *Link) PortGUID() uint64 {
	if !l.IsIPoIB() {
		return 0
	}
	return guidIn(l.PermMAC)
}

// guidIn returns the GUID in the address of an InfiniBand interface, 0 for another address.
func guidIn(mac net.HardwareAddr) uint64 {
	if len(mac) != IPoIBAddress {
		return 0
	}
	return binary.BigEndian.Uint64(mac[ipoibGUID:])
}

// PortGUID returns the GUID of the port of the InfiniBand interface, 0 for another link.
func (s *Snapshot) PortGUID() uint64 {
	if s.IPoIB == nil {
		return 0
	}
	return guidIn(parseMAC(s.MAC))
}

// QueuePair returns the number of the queue pair in the address of an InfiniBand interface:
// bytes 1 to 3. It is 0 for other links.
func (l *Link) QueuePair() uint32 {
	if len(l.MAC) != IPoIBAddress {
		return 0
	}
	return binary.BigEndian.Uint32(l.MAC) & 0xffffff
}

// isChildOf reports whether l is an IPoIB child of the interface with this index, which may be in
// another namespace: the kernel reports its index, and not that it is away, and leaves it out if l
// has the same.
func (l *Link) isChildOf(index int) bool {
	return l.isIPoIBChild() && (l.Lower == index || l.Lower == 0 && l.Index == index)
}

// IsIPoIB reports whether l is the InfiniBand interface of a port, and no child of one.
func (l *Link) IsIPoIB() bool { return l.Kind == KindIPoIB && l.HasParent() }

// addressLike returns the address have of an InfiniBand interface with the GUID of want: nobody can change the
// bytes before it (ipoib_set_mac).
func addressLike(have, want net.HardwareAddr) net.HardwareAddr {
	if len(have) != IPoIBAddress || len(want) != IPoIBAddress {
		return want
	}
	return slices.Concat(have[:ipoibGUID], want[ipoibGUID:])
}

func (l *Link) isIPoIBChild() bool { return l.Kind == KindIPoIB && !l.HasParent() }

// snapshotIPoIB returns the settings of an InfiniBand interface, and its children beside it.
func snapshotIPoIB(attrs nlattr.Attrs, v *View) *IPoIB {
	s := ipoibOf(attrs)
	if s == nil {
		return nil
	}
	for _, l := range v.Links {
		if l.isIPoIBChild() && l.Lower == v.Link.Index {
			s.Children = append(s.Children, l.QueuePair())
		}
	}
	return s
}

// StrayChildren returns the IPoIB children of the interface with this index, which is in n, that
// are none of the host's, whose queue pairs the snapshots have: the kernel brings those that a pod
// made to init_net when the pod's namespace ends (default_device_exit_net; Linux 5.13 and later).
// hosts are the snapshots of all interfaces that are lent, because a child of another one may have
// the same number for its parent, in a pod.
func (n *Netns) StrayChildren(index int, s *Snapshot, hosts []*Snapshot) ([]*Link, error) {
	if s.IPoIB == nil {
		return nil, nil
	}
	own := slices.Clone(s.IPoIB.Children)
	for _, h := range hosts {
		if h.IPoIB != nil {
			own = append(own, h.IPoIB.Children...)
		}
	}
	links, err := n.Links()
	return slices.DeleteFunc(links, func(l *Link) bool { return !l.isChildOf(index) || slices.Contains(own, l.QueuePair()) }), err
}
