package link

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// parseLink decodes the payload of RTM_NEWLINK. Of a malformed one it decodes what
// comes before the damage.
//
// A pod can damage the description of its own virtual links: the kernel has
// 16 bits for the length of a nested attribute, and does not check that they
// suffice for the source addresses of a macvlan (nla_nest_end). What follows is
// then chosen by the pod. So the first attribute of a kind counts: the kernel puts
// a link's name, addresses and kind before everything that a pod can lengthen.
func parseLink(m []byte) *Link {
	header, attrs, err := parseMessage(m, unix.SizeofIfInfomsg)
	if header == nil {
		return &Link{Damage: err}
	}
	info := nl.DeserializeIfInfomsg(header)
	l := &Link{
		Index: int(info.Index), Flags: info.Flags, Encap: info.EncapType(), Kind: "device",
		Name: attrs.text(unix.IFLA_IFNAME), Alias: attrs.text(unix.IFLA_IFALIAS),
		MTU: attrs.number(unix.IFLA_MTU), TxQueueLen: attrs.number(unix.IFLA_TXQLEN), Group: uint32(attrs.number(unix.IFLA_GROUP)),
		MAC: attrs.mac(unix.IFLA_ADDRESS), PermMAC: attrs.mac(unix.IFLA_PERM_ADDRESS),
		ParentDev: attrs.text(unix.IFLA_PARENT_DEV_NAME), ParentBus: attrs.text(unix.IFLA_PARENT_DEV_BUS_NAME),
		Lower: attrs.number(unix.IFLA_LINK), Master: attrs.number(unix.IFLA_MASTER),
		Damage: err,
	}
	if _, l.LowerAway = attrs.get(unix.IFLA_LINK_NETNSID); l.LowerAway {
		l.LowerNetns = attrs.number(unix.IFLA_LINK_NETNSID)
	}
	if state, _ := attrs.get(unix.IFLA_OPERSTATE); len(state) == 1 {
		l.OperUp = state[0] == netlink.OperUp
	}
	if immutable, _ := attrs.get(netnsImmutable); len(immutable) == 1 {
		l.Immutable, l.Mutable = immutable[0] != 0, immutable[0] == 0
	}
	props, err := attrs.nested(unix.IFLA_PROP_LIST)
	l.damaged(err)
	for _, p := range props {
		if p.kind == unix.IFLA_ALT_IFNAME {
			l.AltNames = append(l.AltNames, unix.ByteSliceToString(p.value))
		}
	}
	l.parseInfo(attrs)
	return l
}

// netnsImmutable is IFLA_NETNS_IMMUTABLE of linux/if_link.h.
const netnsImmutable = 67

// sourcesThatFit is a number of source addresses for which a macvlan's description
// has room: 12 bytes each in 64 KiB (macvlan_fill_info_macaddr).
const sourcesThatFit = 5000

// parseInfo decodes IFLA_LINKINFO, which virtual links have.
func (l *Link) parseInfo(attrs attributes) {
	info, err := attrs.nested(unix.IFLA_LINKINFO)
	l.damaged(err)
	if kind := info.text(unix.IFLA_INFO_KIND); kind != "" {
		l.Kind = kind
	}
	data, err := info.nested(unix.IFLA_INFO_DATA)
	switch l.Kind {
	case "macvlan":
		l.damaged(err)
		l.Mode = modeOf(data.number(nl.IFLA_MACVLAN_MODE))
		if count, ok := data.get(nl.IFLA_MACVLAN_MACADDR_COUNT); !ok || len(count) != 4 || binary.NativeEndian.Uint32(count) > sourcesThatFit {
			l.damaged(errMessage) // even if what follows looks well-formed
		}
	case "vxlan":
		l.damaged(err)
		// The kernel deletes a VXLAN with the link that it sends by, but reports
		// that link only in the VXLAN's own attributes.
		if l.Lower == 0 {
			l.Lower = data.number(nl.IFLA_VXLAN_LINK)
		}
	}
}

func (l *Link) damaged(err error) {
	if l.Damage == nil {
		l.Damage = err
	}
}

// nested returns the attributes in the attribute of this kind.
func (a attributes) nested(kind uint16) (attributes, error) {
	v, _ := a.get(kind)
	_, attrs, err := parseMessage(v, 0)
	return attrs, err
}

// text returns the string in the attribute, up to its NUL.
func (a attributes) text(kind uint16) string {
	v, _ := a.get(kind)
	return unix.ByteSliceToString(v)
}

// number returns the 32-bit number in the attribute, 0 if it has none.
func (a attributes) number(kind uint16) int {
	if v, _ := a.get(kind); len(v) == 4 {
		return int(binary.NativeEndian.Uint32(v))
	}
	return 0
}

// mac returns the link-layer address in the attribute, nil for one of zeros.
func (a attributes) mac(kind uint16) []byte {
	v, _ := a.get(kind)
	if len(bytes.Trim(v, "\x00")) == 0 {
		return nil
	}
	return slices.Clone(v)
}
