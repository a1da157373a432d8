package link

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// rtaNexthopID is RTA_NH_ID of linux/rtnetlink.h.
const rtaNexthopID = 30

// Sizes of struct nhmsg and struct nexthop_grp (linux/nexthop.h).
const (
	sizeofNhmsg    = 8
	sizeofGroupHop = 8
)

// nexthop is a nexthop object: one hop, or a group of them.
type nexthop struct {
	family   byte // of its gateway
	protocol byte // RTPROT_*
	flags    byte // RTNH_F_*
	attrs    nlattr.Attrs
}

// needsNexthop reports whether a route names only an object for its hops, and no link. The
// kernel leaves the rest out of the dump where net.ipv4.nexthop_compat_mode is 0.
func needsNexthop(attrs nlattr.Attrs) (id uint32, needs bool) {
	for _, kind := range []uint16{unix.RTA_OIF, unix.RTA_MULTIPATH} {
		if _, has := attrs.Get(kind); has {
			return 0, false
		}
	}
	return attrs.Uint32(rtaNexthopID)
}

// nexthops returns the nexthop objects by their IDs (Linux 5.3).
func (n *Netns) nexthops() (map[uint32]nexthop, error) {
	found := map[uint32]nexthop{}
	msgs, err := n.dump(unix.RTM_GETNEXTHOP, rawHeader(make([]byte, sizeofNhmsg)), func([]byte) bool { return true })
	if err != nil {
		return nil, fmt.Errorf("list nexthop objects of netns %s: %w", n.Path, err)
	}
	for _, m := range msgs {
		if id, object, ok := parseNexthop(m); ok {
			found[id] = object
		}
	}
	return found, nil
}

// parseNexthop decodes the payload of RTM_NEWNEXTHOP.
func parseNexthop(m []byte) (id uint32, _ nexthop, ok bool) {
	header, attrs, err := nlattr.ParseMessage(m, sizeofNhmsg)
	if id, ok = attrs.Uint32(unix.NHA_ID); err != nil || !ok {
		return 0, nexthop{}, false
	}
	return id, nexthop{family: header[0], protocol: header[2], flags: byte(binary.NativeEndian.Uint32(header[4:])) & unix.RTNH_F_ONLINK, attrs: attrs}, true
}

// rawHeader is the header of a request.
type rawHeader []byte

func (h rawHeader) Len() int          { return len(h) }
func (h rawHeader) Serialize() []byte { return h }

// complete returns a route that names only this object, with its hops as the kernel shows them
// where nexthop_compat_mode is 1.
func (h nexthop) complete(objects map[uint32]nexthop, rtmsg []byte, attrs nlattr.Attrs) []byte {
	rtmsg = slices.Clone(rtmsg)
	group, isGroup := h.attrs.Get(unix.NHA_GROUP)
	if !isGroup {
		binary.NativeEndian.PutUint32(rtmsg[8:], binary.NativeEndian.Uint32(rtmsg[8:])|uint32(h.flags))
		if oif, ok := h.attrs.Get(unix.NHA_OIF); ok {
			attrs = append(slices.Clone(attrs), nlattr.Attr{Type: unix.RTA_OIF, Value: oif})
		}
		return nlattr.Marshal(rtmsg, append(slices.Clone(attrs), h.hop(rtmsg[0])...))
	}
	var hops []byte
	for ; len(group) >= sizeofGroupHop; group = group[sizeofGroupHop:] {
		one, ok := objects[binary.NativeEndian.Uint32(group)]
		index, hasLink := one.attrs.Uint32(unix.NHA_OIF)
		if !ok || !hasLink {
			continue
		}
		const weight = 4 // its offset: one less than the weight, as in rtnexthop
		hop := nlattr.Marshal(binary.NativeEndian.AppendUint32([]byte{0, 0, one.flags, group[weight]}, index), one.hop(rtmsg[0]))
		binary.NativeEndian.PutUint16(hop, uint16(len(hop)))
		hops = append(hops, hop...)
		hops = append(hops, make([]byte, nlattr.Align(len(hop))-len(hop))...)
	}
	return nlattr.Marshal(rtmsg, append(slices.Clone(attrs), nlattr.Attr{Type: unix.RTA_MULTIPATH, Value: hops}))
}

// hop returns the gateway and the encapsulation as attributes of a route of this family.
func (h nexthop) hop(family byte) (attrs nlattr.Attrs) {
	if gateway, ok := h.attrs.Get(unix.NHA_GATEWAY); ok && h.family == family {
		attrs = append(attrs, nlattr.Attr{Type: unix.RTA_GATEWAY, Value: gateway})
	} else if ok { // struct rtvia
		attrs = append(attrs, nlattr.Attr{Type: unix.RTA_VIA, Value: append(binary.NativeEndian.AppendUint16(nil, uint16(h.family)), gateway...)})
	}
	for from, to := range map[uint16]uint16{unix.NHA_ENCAP_TYPE: unix.RTA_ENCAP_TYPE, unix.NHA_ENCAP: unix.RTA_ENCAP} {
		if i := slices.IndexFunc(h.attrs, func(a nlattr.Attr) bool { return a.Type == from }); i >= 0 {
			attrs = append(attrs, nlattr.Attr{Type: to, Flags: h.attrs[i].Flags, Value: h.attrs[i].Value})
		}
	}
	return attrs
}

// routes returns the IPv4 and IPv6 routes that are wanted, of all tables. Those by nexthop
// objects have the objects' hops.
func (n *Netns) routes(wanted func(rtmsg []byte, attrs nlattr.Attrs) bool) ([][]byte, error) {
	return n.routesBy(func(wanted func(m []byte) bool) ([][]byte, error) {
		return n.dump(unix.RTM_GETROUTE, &nl.RtMsg{}, wanted)
	}, wanted)
}

// routesBy is routes by a dump that may be of some routes only.
func (n *Netns) routesBy(dump func(wanted func(m []byte) bool) ([][]byte, error), wanted func(rtmsg []byte, attrs nlattr.Attrs) bool) ([][]byte, error) {
	incomplete := false
	found, err := dump(func(m []byte) bool {
		h, attrs, err := nlattr.ParseMessage(m, unix.SizeofRtMsg)
		if err != nil || !ofIP(h) {
			return false
		}
		_, needs := needsNexthop(attrs)
		incomplete = incomplete || needs
		return needs || wanted(h, attrs)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes of netns %s: %w", n.Path, err)
	}
	if !incomplete {
		return found, nil
	}
	objects, err := n.nexthops()
	if err != nil {
		return nil, err
	}
	var complete [][]byte
	for _, m := range found {
		h, attrs, _ := nlattr.ParseMessage(m, unix.SizeofRtMsg)
		if id, needs := needsNexthop(attrs); needs {
			object, ok := objects[id]
			if !ok {
				continue // deleted meanwhile, with its routes
			}
			m = object.complete(objects, h, attrs)
			if h, attrs, err = nlattr.ParseMessage(m, unix.SizeofRtMsg); err != nil || !wanted(h, attrs) {
				continue
			}
		}
		complete = append(complete, m)
	}
	return complete, nil
}
