package link

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// parseLink decodes the payload of RTM_NEWLINK. If the payload is malformed, parseLink decodes the
// part before the damage.
//
// A pod can damage the description of its own virtual links: the kernel has 16 bits for the length
// of a nested attribute, and does not check that these suffice for the source addresses of a
// macvlan (nla_nest_end). The pod controls the bytes after the damage. So only the first attribute
// of a kind counts: the kernel puts a link's name, addresses and kind before everything that a pod
// can lengthen.
func parseLink(m []byte) *Link {
	l, _ := parse(m)
	return l
}

// parseWhole is like parseLink, but the link keeps all attributes, unless they are malformed.
func parseWhole(m []byte) *Link {
	l, attrs := parse(bytes.Clone(m)) // the values point into it
	if l.Damage == nil {
		l.attrs = attrs
	}
	return l
}

// IndexOf returns the index in the payload of RTM_NEWLINK, or 0 if the payload has none.
func IndexOf(m []byte) int {
	if len(m) < unix.SizeofIfInfomsg {
		return 0
	}
	return int(int32(binary.NativeEndian.Uint32(m[4:])))
}

func parse(m []byte) (*Link, nlattr.Attrs) {
	header, attrs, err := nlattr.ParseMessage(m, unix.SizeofIfInfomsg)
	if header == nil {
		return &Link{Damage: err}, nil
	}
	info := nl.DeserializeIfInfomsg(header)
	l := &Link{
		Index: int(info.Index), Flags: info.Flags, Encap: info.EncapType(), Kind: "device",
		Name: attrs.Text(unix.IFLA_IFNAME), Alias: attrs.Text(unix.IFLA_IFALIAS),
		MTU: attrs.Int(unix.IFLA_MTU), TxQueueLen: attrs.Int(unix.IFLA_TXQLEN), Group: uint32(attrs.Int(unix.IFLA_GROUP)),
		MAC: macOf(attrs, unix.IFLA_ADDRESS), PermMAC: macOf(attrs, unix.IFLA_PERM_ADDRESS),
		ParentDev: attrs.Text(unix.IFLA_PARENT_DEV_NAME), ParentBus: attrs.Text(unix.IFLA_PARENT_DEV_BUS_NAME),
		Lower: attrs.Int(unix.IFLA_LINK), Master: attrs.Int(unix.IFLA_MASTER),
		Damage: err,
	}
	if _, l.LowerInOtherNetns = attrs.Get(unix.IFLA_LINK_NETNSID); l.LowerInOtherNetns {
		l.LowerNetns = attrs.Int(unix.IFLA_LINK_NETNSID)
	}
	if state, _ := attrs.Get(unix.IFLA_OPERSTATE); len(state) == 1 {
		l.OperUp = state[0] == netlink.OperUp
	}
	if carrier, _ := attrs.Get(unix.IFLA_CARRIER); len(carrier) == 1 {
		l.Carrier = carrier[0] != 0
	}
	if immutable, _ := attrs.Get(netnsImmutable); len(immutable) == 1 {
		l.Immutable, l.Mutable = immutable[0] != 0, immutable[0] == 0
	}
	props, err := attrs.Nested(unix.IFLA_PROP_LIST)
	l.damaged(err)
	for _, p := range props {
		if p.Type == unix.IFLA_ALT_IFNAME {
			l.AltNames = append(l.AltNames, unix.ByteSliceToString(p.Value))
		}
	}
	l.parseInfo(attrs)
	return l, attrs
}

// netnsImmutable is IFLA_NETNS_IMMUTABLE of linux/if_link.h.
const netnsImmutable = 67

// sourcesThatFit is a number of source addresses that certainly fits into a macvlan's description.
// Each takes 12 bytes, and all must fit into 64 KiB (macvlan_fill_info_macaddr).
const sourcesThatFit = 5000

// parseInfo decodes IFLA_LINKINFO, which virtual links have.
func (l *Link) parseInfo(attrs nlattr.Attrs) {
	info, err := attrs.Nested(unix.IFLA_LINKINFO)
	l.damaged(err)
	if kind := info.Text(unix.IFLA_INFO_KIND); kind != "" {
		l.Kind = kind
	}
	data, err := info.Nested(unix.IFLA_INFO_DATA)
	switch l.Kind {
	case "macvlan":
		l.damaged(err)
		l.Mode = modeOf(data.Int(nl.IFLA_MACVLAN_MODE))
		if count, ok := data.Uint32(nl.IFLA_MACVLAN_MACADDR_COUNT); !ok || count > sourcesThatFit {
			l.damaged(nlattr.ErrMalformed) // even if the rest looks well-formed
		}
	case KindIPoIB:
		l.damaged(err)
		l.IPoIB = parseIPoIB(data)
	case "vxlan":
		l.damaged(err)
		// The kernel deletes a VXLAN together with the link that the VXLAN sends by, but reports
		// that link only in the VXLAN's own attributes.
		if l.Lower == 0 {
			l.Lower = data.Int(nl.IFLA_VXLAN_LINK)
		}
	}
}

func (l *Link) damaged(err error) {
	if l.Damage == nil {
		l.Damage = err
	}
}

// macOf returns the link-layer address in the attribute, or nil if the address consists of zeros.
func macOf(attrs nlattr.Attrs, typ uint16) []byte {
	v, _ := attrs.Get(typ)
	if len(bytes.Trim(v, "\x00")) == 0 {
		return nil
	}
	return slices.Clone(v)
}
