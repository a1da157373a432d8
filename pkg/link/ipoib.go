package link

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// kindIPoIB is the kind of the interfaces that ib_ipoib makes: one for each port of an HCA, which
// has the HCA as its parent device, and children of that, which have none.
const kindIPoIB = "ipoib"

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

// restoreIPoIB sets the mode and umcast where they differ from attrs, and reports whether it has
// changed the link. A change of the mode sets the MTU.
func (n *Netns) restoreIPoIB(index int, attrs nlattr.Attrs, want *IPoIB) (changed bool, err error) {
	have := ipoibOf(attrs)
	if want == nil || have == nil {
		return false, nil
	}
	var data nlattr.Attrs
	for _, a := range []struct{ kind, have, want uint16 }{
		{nl.IFLA_IPOIB_MODE, have.Mode, want.Mode},
		{nl.IFLA_IPOIB_UMCAST, have.Umcast, want.Umcast},
	} {
		if a.have != a.want {
			data = append(data, nlattr.Attr{Type: a.kind, Value: binary.NativeEndian.AppendUint16(nil, a.want)})
		}
	}
	if len(data) == 0 {
		return false, nil
	}
	info := nlattr.Attrs{
		{Type: unix.IFLA_INFO_KIND, Value: []byte(kindIPoIB + "\x00")},
		{Type: unix.IFLA_INFO_DATA, Value: nlattr.Marshal(nil, data)},
	}
	err = n.setLink(index, nlattr.Attr{Type: unix.IFLA_LINKINFO, Value: nlattr.Marshal(nil, info)})
	if !errors.Is(err, unix.EBUSY) {
		return true, err
	}
	// The kernel lets go of the RTNL meanwhile, and returns EBUSY if it does not get it again at
	// once (ipoib_set_mode): the mode has changed.
	l, err := n.ByIndex(index)
	if err != nil {
		return true, err
	}
	now, err := n.attrsOf(l)
	if err != nil {
		return true, err
	}
	if have = ipoibOf(now); have == nil || have.Mode != want.Mode || have.Umcast != want.Umcast {
		return true, unix.EBUSY
	}
	return true, nil
}

// queuePair returns the number of the queue pair in the address of an InfiniBand interface:
// bytes 1 to 3 of 20 (RFC 4391, section 9.1.1).
func (l *Link) queuePair() uint32 {
	if len(l.MAC) != 20 {
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

func (l *Link) isIPoIBChild() bool { return l.Kind == kindIPoIB && !l.HasParent() }

// snapshotIPoIB returns the settings of an InfiniBand interface, and its children beside it.
func snapshotIPoIB(attrs nlattr.Attrs, v *View) *IPoIB {
	s := ipoibOf(attrs)
	if s == nil {
		return nil
	}
	for _, l := range v.Links {
		if l.isIPoIBChild() && l.Lower == v.Link.Index {
			s.Children = append(s.Children, l.queuePair())
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
	return slices.DeleteFunc(links, func(l *Link) bool { return !l.isChildOf(index) || slices.Contains(own, l.queuePair()) }), err
}
