package link

import (
	"bytes"
	"cmp"
	"net"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// ReadAttrs reads all attributes of the link with this index.
func ReadAttrs(n *netns.Netns, index int) (nlattr.Attrs, error) {
	var attrs nlattr.Attrs
	var damage error
	err := n.Exchange(askLink(0, index), func(m []byte) {
		// Cloned, because the values point into the message.
		_, attrs, damage = nlattr.ParseMessage(bytes.Clone(m), unix.SizeofIfInfomsg)
	})
	if err = cmp.Or(err, damage); err != nil {
		return nil, notFound(err, withIndex(index), n.Path)
	}
	return attrs, nil
}

// AttrsOf returns all attributes of l. If l comes from a list, AttrsOf reads them from the kernel.
func AttrsOf(n *netns.Netns, l *Link) (_ nlattr.Attrs, err error) {
	if l.attrs == nil {
		l.attrs, err = ReadAttrs(n, l.Index)
	}
	return l.attrs, err
}

// Set changes attributes of the link with this index.
func Set(n *netns.Netns, index int, attrs ...nlattr.Attr) error {
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Index = int32(index)
	return IfGone(n, n.Request(unix.RTM_NEWLINK, 0, header.Serialize(), attrs), index)
}

// BroadcastOf returns the link-layer broadcast address in the attributes of a link.
func BroadcastOf(attrs nlattr.Attrs) net.HardwareAddr {
	b, _ := attrs.Get(unix.IFLA_BROADCAST)
	return b
}
