package nicstate

import (
	"fmt"
	"net"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

func ipText(b []byte) string {
	if len(b) != net.IPv4len && len(b) != net.IPv6len {
		return "?"
	}
	return net.IP(b).String()
}

// addressText returns an address in the form of ip-address(8), with the parts that a reader needs.
func addressText(ifaddrmsg []byte, attrs nlattr.Attrs) string {
	local, ok := attrs.Get(unix.IFA_LOCAL)
	peer, hasPeer := attrs.Get(unix.IFA_ADDRESS)
	if !ok {
		local, hasPeer = peer, false
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%d", ipText(local), ifaddrmsg[1])
	if hasPeer && string(peer) != string(local) {
		fmt.Fprintf(&b, " peer %s", ipText(peer))
	}
	if brd, ok := attrs.Get(unix.IFA_BROADCAST); ok {
		fmt.Fprintf(&b, " brd %s", ipText(brd))
	}
	return b.String()
}

// routeText returns a route in the form of ip-route(8), with the parts that a reader needs.
func routeText(rtmsg []byte, attrs nlattr.Attrs) string {
	var b strings.Builder
	if dst, ok := attrs.Get(unix.RTA_DST); ok {
		fmt.Fprintf(&b, "%s/%d", ipText(dst), rtmsg[1])
	} else {
		b.WriteString("default")
	}
	if gw, ok := attrs.Get(unix.RTA_GATEWAY); ok {
		fmt.Fprintf(&b, " via %s", ipText(gw))
	}
	for _, one := range []struct {
		name string
		kind uint16
	}{{"table", unix.RTA_TABLE}, {"metric", unix.RTA_PRIORITY}} {
		if v, ok := attrs.Uint32(one.kind); ok {
			fmt.Fprintf(&b, " %s %d", one.name, v)
		}
	}
	return b.String()
}

func neighborText(attrs nlattr.Attrs) string {
	dst, _ := attrs.Get(unix.NDA_DST)
	mac, _ := attrs.Get(unix.NDA_LLADDR)
	return fmt.Sprintf("%s lladdr %s", ipText(dst), net.HardwareAddr(mac))
}
