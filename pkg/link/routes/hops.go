package routes

import (
	"cmp"
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// LinkOf returns the index of the link that a nexthop leaves by.
func LinkOf(hop []byte) int { return int(binary.NativeEndian.Uint32(hop[4:])) }

// FilterHops returns a copy of the nexthops for which keep returns true. keep may change the bytes
// of a nexthop.
func FilterHops(hops []byte, keep func(hop []byte) bool) []byte {
	var some []byte
	EachHop(slices.Clone(hops), func(hop []byte) {
		if keep(hop) {
			some = append(some, hop...)
			some = append(some, make([]byte, nlattr.Align(len(some))-len(some))...)
		}
	})
	return some
}

// OwnHops returns the nexthops that leave by link.
func OwnHops(hops []byte, link int) []byte {
	return FilterHops(hops, func(hop []byte) bool { return LinkOf(hop) == link })
}

// HopKinds are the attributes that describe where a nexthop leads.
var HopKinds = []uint16{unix.RTA_GATEWAY, unix.RTA_VIA, unix.RTA_ENCAP, unix.RTA_ENCAP_TYPE}

// HopsOf returns the nexthops of a route in the form of RTA_MULTIPATH, even if the route has only
// one nexthop.
func HopsOf(rtmsg []byte, attrs nlattr.Attrs) []byte {
	if hops, ok := attrs.Get(unix.RTA_MULTIPATH); ok {
		return hops
	}
	oif, ok := attrs.Uint32(unix.RTA_OIF)
	if !ok {
		return nil
	}
	flags := byte(binary.NativeEndian.Uint32(rtmsg[8:])) & unix.RTNH_F_ONLINK
	hop := nlattr.Marshal(binary.NativeEndian.AppendUint32([]byte{0, 0, flags, 0}, oif), ofHop(attrs))
	binary.NativeEndian.PutUint16(hop, uint16(len(hop)))
	return append(hop, make([]byte, nlattr.Align(len(hop))-len(hop))...)
}

// HopKey returns the gateway and the encapsulation of a nexthop: where the nexthop leads, apart
// from its link.
func HopKey(hop []byte) string {
	attrs, _ := nlattr.Parse(hop[unix.SizeofRtNexthop:]) // as far as it is well-formed
	hopAttrs := ofHop(attrs)
	slices.SortFunc(hopAttrs, func(a, b nlattr.Attr) int { return cmp.Compare(a.Type, b.Type) })
	return string(nlattr.Marshal(nil, hopAttrs))
}

func ofHop(attrs nlattr.Attrs) nlattr.Attrs {
	return slices.DeleteFunc(slices.Clone(attrs), func(a nlattr.Attr) bool { return !slices.Contains(HopKinds, a.Type) })
}

// EachHop calls f with each nexthop of an RTA_MULTIPATH value. A nexthop is a struct rtnexthop (8
// bytes) and its attributes. f may change the bytes.
func EachHop(hops []byte, f func(hop []byte)) {
	for len(hops) >= unix.SizeofRtNexthop {
		length := int(binary.NativeEndian.Uint16(hops))
		if length < unix.SizeofRtNexthop || length > len(hops) {
			return
		}
		f(hops[:length])
		hops = hops[min(nlattr.Align(length), len(hops)):]
	}
}
