package link

import (
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// kindIPoIB is the kind of the interfaces that ib_ipoib makes: one for each port of an HCA, which
// has the HCA as its parent device, and children of that, which have none.
const kindIPoIB = "ipoib"

// The address of an InfiniBand interface (RFC 4391, section 9.1.1): a byte of flags, the number of the
// queue pair, and the GID of the port, whose last half is the GUID.
const (
	ipoibAddress = 20
	ipoibGUID    = 12
)

// IPoIB is what an InfiniBand interface has besides the settings of every link. A pod can change
// the mode and umcast, and they move with the interface.
type IPoIB struct {
	PKey   uint16 `json:"pkey"`             // of its partition, with the bit of full membership
	Mode   uint16 `json:"mode"`             // 0 datagram, 1 connected (IPOIB_MODE_… of linux/if_link.h)
	Umcast uint16 `json:"umcast,omitempty"` // 1: groups that others made are used
	// Children are the queue pairs of the children that the host had: nobody can change the number
	// in the address of an interface (ipoib_set_mac).
	Children []uint32 `json:"children,omitempty"`
}

// Connected reports whether the interface is in connected mode rather than datagram mode.
func (i *IPoIB) Connected() bool { return i.Mode != 0 }

// ipoibOf returns the settings in the description of a link, nil for one of another kind.
func ipoibOf(attrs nlattr.Attrs) *IPoIB {
	info, err := attrs.Nested(unix.IFLA_LINKINFO)
	if err != nil || info.Text(unix.IFLA_INFO_KIND) != kindIPoIB {
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

// restoreIPoIB sets the mode and umcast of l, which may have the snapshot's name by now, where they
// differ from attrs. It reports whether it has changed the link: a change of the mode sets the MTU.
//
// It writes the files in sysfs. Of a change of the mode by netlink the kernel makes two holders of the RTNL if
// another takes it meanwhile (ipoib_set_mode lets go of it; ipoib_changelink, unlike set_mode, does not tell its
// caller that it is gone; Linux 6.12).
func (n *Netns) restoreIPoIB(l *Link, attrs nlattr.Attrs, s *Snapshot) (changed bool, err error) {
	have, want := ipoibOf(attrs), s.IPoIB
	if want == nil || have == nil || have.Mode == want.Mode && have.Umcast == want.Umcast {
		return false, nil
	}
	dir, err := n.openSysfs(l.Index, s.Name, l.Name)
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

// QueuePair returns the number of the queue pair in the address of an InfiniBand interface:
// bytes 1 to 3. It is 0 for other links.
func (l *Link) QueuePair() uint32 {
	if len(l.MAC) != ipoibAddress {
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
func (l *Link) IsIPoIB() bool { return l.Kind == kindIPoIB && l.HasParent() }

// addressLike returns the address that an InfiniBand interface with the address have can be given so that
// it has the GUID of want: nobody can change the bytes before (ipoib_set_mac).
func addressLike(have, want net.HardwareAddr) net.HardwareAddr {
	if len(have) != ipoibAddress || len(want) != ipoibAddress {
		return want
	}
	return slices.Concat(have[:ipoibGUID], want[ipoibGUID:])
}

func (l *Link) isIPoIBChild() bool { return l.Kind == kindIPoIB && !l.HasParent() }

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
