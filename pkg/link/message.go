package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"

	"golang.org/x/sys/unix"
)

// attribute is one rtnetlink attribute (struct rtattr, rtnetlink(7)): its type,
// the flag bits of the type (nested, byte order), and its value.
type attribute struct {
	kind  uint16
	flags uint16
	value []byte
}

const attributeFlags = unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER

type attributes []attribute

var errMessage = errors.New("malformed netlink message")

// parseMessage splits a payload into its fixed header of size bytes and its
// attributes. The slices point into m. If one is malformed, it returns those before
// it, and an error.
func parseMessage(m []byte, size int) (header []byte, attrs attributes, err error) {
	if len(m) < size {
		return nil, nil, errMessage
	}
	header, rest := m[:size], m[align(size):]
	for len(rest) >= unix.SizeofRtAttr {
		length := int(binary.NativeEndian.Uint16(rest))
		if length < unix.SizeofRtAttr || length > len(rest) {
			return header, attrs, errMessage
		}
		kind := binary.NativeEndian.Uint16(rest[2:])
		attrs = append(attrs, attribute{
			kind: kind &^ attributeFlags, flags: kind & attributeFlags, value: rest[unix.SizeofRtAttr:length],
		})
		rest = rest[min(align(length), len(rest)):]
	}
	return header, attrs, nil
}

func align(n int) int { return (n + unix.RTA_ALIGNTO - 1) &^ (unix.RTA_ALIGNTO - 1) }

func (a attributes) get(kind uint16) ([]byte, bool) {
	for _, one := range a {
		if one.kind == kind {
			return one.value, true
		}
	}
	return nil, false
}

// without gives the attributes that are none of kinds.
func (a attributes) without(kinds ...uint16) attributes {
	var kept attributes
next:
	for _, one := range a {
		for _, k := range kinds {
			if one.kind == k {
				continue next
			}
		}
		kept = append(kept, one)
	}
	return kept
}

// eachHop calls f with each nexthop (struct rtnexthop, 8 bytes and its
// attributes) of an RTA_MULTIPATH value. f may change the bytes.
func eachHop(hops []byte, f func(hop []byte)) {
	for len(hops) >= unix.SizeofRtNexthop {
		length := int(binary.NativeEndian.Uint16(hops))
		if length < unix.SizeofRtNexthop || length > len(hops) {
			return
		}
		f(hops[:length])
		hops = hops[min(align(length), len(hops)):]
	}
}

func ipText(b []byte) string {
	if len(b) != net.IPv4len && len(b) != net.IPv6len {
		return "?"
	}
	return net.IP(b).String()
}

// addressText writes an address as ip-address(8) does, as far as a reader needs.
func addressText(ifaddrmsg []byte, attrs attributes) string {
	local, ok := attrs.get(unix.IFA_LOCAL)
	peer, hasPeer := attrs.get(unix.IFA_ADDRESS)
	if !ok {
		local, hasPeer = peer, false
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%d", ipText(local), ifaddrmsg[1])
	if hasPeer && string(peer) != string(local) {
		fmt.Fprintf(&b, " peer %s", ipText(peer))
	}
	if brd, ok := attrs.get(unix.IFA_BROADCAST); ok {
		fmt.Fprintf(&b, " brd %s", ipText(brd))
	}
	return b.String()
}

// routeText writes a route as ip-route(8) does, as far as a reader needs.
func routeText(rtmsg []byte, attrs attributes) string {
	var b strings.Builder
	if dst, ok := attrs.get(unix.RTA_DST); ok {
		fmt.Fprintf(&b, "%s/%d", ipText(dst), rtmsg[1])
	} else {
		b.WriteString("default")
	}
	if gw, ok := attrs.get(unix.RTA_GATEWAY); ok {
		fmt.Fprintf(&b, " via %s", ipText(gw))
	}
	for _, one := range []struct {
		name string
		kind uint16
	}{{"table", unix.RTA_TABLE}, {"metric", unix.RTA_PRIORITY}} {
		if v, ok := attrs.get(one.kind); ok && len(v) == 4 {
			fmt.Fprintf(&b, " %s %d", one.name, binary.NativeEndian.Uint32(v))
		}
	}
	return b.String()
}

func neighbourText(attrs attributes) string {
	dst, _ := attrs.get(unix.NDA_DST)
	mac, _ := attrs.get(unix.NDA_LLADDR)
	return fmt.Sprintf("%s lladdr %s", ipText(dst), net.HardwareAddr(mac))
}
