package routes

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
	"github.com/rail-cni/rail-cni/pkg/nlsocket"
)

// AttrNexthop is RTA_NH_ID of linux/rtnetlink.h.
const AttrNexthop = 30

// Sizes of struct nhmsg and struct nexthop_grp (linux/nexthop.h).
const (
	sizeofNhmsg    = 8
	sizeofGroupHop = 8
)

// Object is a nexthop object: a single hop, or a group of other objects.
type Object struct {
	Family   byte // family of its gateway
	Protocol byte // RTPROT_*
	Flags    byte // RTNH_F_*
	Attrs    nlattr.Attrs
}

// needsNexthop reports whether a route names only a nexthop object, and no link and no hops. If
// net.ipv4.nexthop_compat_mode is 0, the kernel leaves the hops out of the dump. id is the ID of
// the object.
func needsNexthop(attrs nlattr.Attrs) (id uint32, needs bool) {
	for _, kind := range []uint16{unix.RTA_OIF, unix.RTA_MULTIPATH} {
		if _, has := attrs.Get(kind); has {
			return 0, false
		}
	}
	return attrs.Uint32(AttrNexthop)
}

// Objects returns the nexthop objects of the namespace by their IDs (Linux 5.3).
func Objects(n *netns.Netns) (map[uint32]Object, error) {
	found := map[uint32]Object{}
	msgs, err := n.Dump(unix.RTM_GETNEXTHOP, nlsocket.RawHeader(make([]byte, sizeofNhmsg)), func([]byte) bool { return true })
	if err != nil {
		return nil, fmt.Errorf("list nexthop objects of netns %s: %w", n.Path, err)
	}
	for _, m := range msgs {
		if id, object, ok := ParseObject(m); ok {
			found[id] = object
		}
	}
	return found, nil
}

// ParseObject decodes the payload of RTM_NEWNEXTHOP.
func ParseObject(m []byte) (id uint32, _ Object, ok bool) {
	header, attrs, err := nlattr.ParseMessage(m, sizeofNhmsg)
	if id, ok = attrs.Uint32(unix.NHA_ID); err != nil || !ok {
		return 0, Object{}, false
	}
	return id, Object{Family: header[0], Protocol: header[2], Flags: byte(binary.NativeEndian.Uint32(header[4:])) & unix.RTNH_F_ONLINK, Attrs: attrs}, true
}

// complete returns a route that names only the object h, with the object's hops. It writes the hops
// as the kernel shows them if nexthop_compat_mode is 1.
func (h Object) complete(objects map[uint32]Object, rtmsg []byte, attrs nlattr.Attrs) []byte {
	rtmsg = slices.Clone(rtmsg)
	group, isGroup := h.Attrs.Get(unix.NHA_GROUP)
	if !isGroup {
		binary.NativeEndian.PutUint32(rtmsg[8:], binary.NativeEndian.Uint32(rtmsg[8:])|uint32(h.Flags))
		if oif, ok := h.Attrs.Get(unix.NHA_OIF); ok {
			attrs = append(slices.Clone(attrs), nlattr.Attr{Type: unix.RTA_OIF, Value: oif})
		}
		return nlattr.Marshal(rtmsg, append(slices.Clone(attrs), h.hop(rtmsg[0])...))
	}
	var hops []byte
	for ; len(group) >= sizeofGroupHop; group = group[sizeofGroupHop:] {
		one, ok := objects[binary.NativeEndian.Uint32(group)]
		index, hasLink := one.Attrs.Uint32(unix.NHA_OIF)
		if !ok || !hasLink {
			continue
		}
		const weight = 4 // the offset of the weight; the value is the weight less one, as in rtnexthop
		hop := nlattr.Marshal(binary.NativeEndian.AppendUint32([]byte{0, 0, one.Flags, group[weight]}, index), one.hop(rtmsg[0]))
		binary.NativeEndian.PutUint16(hop, uint16(len(hop)))
		hops = append(hops, hop...)
		hops = append(hops, make([]byte, nlattr.Align(len(hop))-len(hop))...)
	}
	return nlattr.Marshal(rtmsg, append(slices.Clone(attrs), nlattr.Attr{Type: unix.RTA_MULTIPATH, Value: hops}))
}

// hop returns the gateway and the encapsulation of h as attributes of a route of this family.
func (h Object) hop(family byte) (attrs nlattr.Attrs) {
	if gateway, ok := h.Attrs.Get(unix.NHA_GATEWAY); ok && h.Family == family {
		attrs = append(attrs, nlattr.Attr{Type: unix.RTA_GATEWAY, Value: gateway})
	} else if ok { // struct rtvia
		attrs = append(attrs, nlattr.Attr{Type: unix.RTA_VIA, Value: append(binary.NativeEndian.AppendUint16(nil, uint16(h.Family)), gateway...)})
	}
	for from, to := range map[uint16]uint16{unix.NHA_ENCAP_TYPE: unix.RTA_ENCAP_TYPE, unix.NHA_ENCAP: unix.RTA_ENCAP} {
		if i := slices.IndexFunc(h.Attrs, func(a nlattr.Attr) bool { return a.Type == from }); i >= 0 {
			attrs = append(attrs, nlattr.Attr{Type: to, Flags: h.Attrs[i].Flags, Value: h.Attrs[i].Value})
		}
	}
	return attrs
}

// memberID is the offset of the ID of an object in an entry of a group (struct nexthop_grp).
const memberID = 0

// Members returns the IDs of the objects in a group, or nil for an object that is not a group.
func (h Object) Members() []uint32 {
	group, _ := h.Attrs.Get(unix.NHA_GROUP)
	var ids []uint32
	for ; len(group) >= sizeofGroupHop; group = group[sizeofGroupHop:] {
		ids = append(ids, binary.NativeEndian.Uint32(group[memberID:]))
	}
	return ids
}

// Link returns the index of the link by which the object's hop leaves, or 0 for a group.
func (h Object) Link() int { return h.Attrs.Int(unix.NHA_OIF) }

// Same reports whether h and other have the same hop, apart from their links.
func (h Object) Same(other Object) bool {
	gateway, _ := h.Attrs.Get(unix.NHA_GATEWAY)
	others, _ := other.Attrs.Get(unix.NHA_GATEWAY)
	return h.Family == other.Family && bytes.Equal(gateway, others) && (h.Members() == nil) == (other.Members() == nil)
}

// Text returns an object in the form of ip-nexthop(8), with the parts that a reader needs.
func (h Object) Text(id uint32) string {
	if members := h.Members(); members != nil {
		return fmt.Sprintf("%d group %s", id, strings.ReplaceAll(strings.Trim(fmt.Sprint(members), "[]"), " ", "/"))
	}
	if gateway, ok := h.Attrs.Get(unix.NHA_GATEWAY); ok {
		return fmt.Sprintf("%d via %s", id, net.IP(gateway))
	}
	return fmt.Sprint(id)
}

// EntryOf returns the entry of the object member in a group, or nil if the group does not have that
// object.
func EntryOf(group []byte, member uint32) []byte {
	for entry := range slices.Chunk(group, sizeofGroupHop) {
		if len(entry) == sizeofGroupHop && binary.NativeEndian.Uint32(entry[memberID:]) == member {
			return entry
		}
	}
	return nil
}

// Header returns the struct nhmsg of the object.
func (h Object) Header() []byte {
	header := make([]byte, sizeofNhmsg)
	header[0], header[2] = h.Family, h.Protocol
	binary.NativeEndian.PutUint32(header[4:], uint32(h.Flags))
	return header
}

// WithGroup returns the group object with these entries, in the form that the kernel accepts.
func (h Object) WithGroup(group []byte) Object {
	id, _ := h.Attrs.Get(unix.NHA_ID)
	attrs := nlattr.Attrs{{Type: unix.NHA_ID, Value: id}, {Type: unix.NHA_GROUP, Value: group}}
	if kind, ok := h.Attrs.Get(unix.NHA_GROUP_TYPE); ok {
		attrs = append(attrs, nlattr.Attr{Type: unix.NHA_GROUP_TYPE, Value: kind})
	}
	if resilient, err := h.Attrs.Nested(nhaResGroup); err == nil && len(resilient) > 0 {
		settings := nlattr.Marshal(nil, resilient.Without(nhaResGroupUnbalancedTime)) // not a setting but a state
		attrs = append(attrs, nlattr.Attr{Type: nhaResGroup, Flags: unix.NLA_F_NESTED, Value: settings})
	}
	return Object{Protocol: h.Protocol, Attrs: attrs}
}

// Attributes of a resilient group (linux/nexthop.h).
const nhaResGroup, nhaResGroupUnbalancedTime = 12, 4

// WithLink returns the object with the index of its link replaced by the new index in indexes.
func (h Object) WithLink(indexes map[int]int) Object {
	if index, ok := indexes[h.Link()]; ok {
		h.Attrs = append(h.Attrs.Without(unix.NHA_OIF), nlattr.Attr{Type: unix.NHA_OIF, Value: binary.NativeEndian.AppendUint32(nil, uint32(index))})
	}
	return h
}
