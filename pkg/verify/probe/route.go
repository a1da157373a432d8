package probe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
	"github.com/rail-cni/rail-cni/pkg/verify"
)

// route returns the route from one address to another, and the neighbor that is the next hop. It is
// the route that the kernel chooses for a program that binds to the address but not to the
// interface, as "ip route get TO from FROM" prints it.
func (p *Prober) route(f *verify.Flow) *verify.Route {
	index, hop, err := p.routeTo(f.To.Addr(), f.From)
	switch {
	case isUnreachable(err):
		return &verify.Route{Problem: "the network is unreachable"}
	case err != nil:
		return &verify.Route{Problem: err.Error()}
	}
	r := &verify.Route{NextHop: hop.String(), Interface: fmt.Sprintf("index %d", index)}
	if l, err := link.ByIndex(p.netns, index); err == nil {
		r.Interface = l.Name
	}
	mac, state, err := p.neighbor(index, hop)
	if err == nil {
		r.MAC = mac.String()
		r.Failed = state&(unix.NUD_FAILED|unix.NUD_INCOMPLETE) != 0
	} // an unknown neighbor does not count as failed, because a link may have no ARP
	return r
}

// routeTo returns the link and the next hop of the route.
func (p *Prober) routeTo(to, from netip.Addr) (index int, hop netip.Addr, err error) {
	family, bits := uint8(unix.AF_INET6), uint8(128)
	if to.Is4() {
		family, bits = unix.AF_INET, 32
	}
	request := nl.NewNetlinkRequest(unix.RTM_GETROUTE, 0)
	request.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: family, Dst_len: bits, Src_len: bits}})
	request.AddData(nl.NewRtAttr(unix.RTA_DST, to.AsSlice()))
	request.AddData(nl.NewRtAttr(unix.RTA_SRC, from.AsSlice()))
	hop = to
	err = p.exchange(request, unix.SizeofRtMsg, func(_ []byte, a nlattr.Attrs) {
		if n, ok := a.Uint32(unix.RTA_OIF); ok {
			index = int(n)
		}
		if g, ok := a.Get(unix.RTA_GATEWAY); ok {
			if gateway, ok := netip.AddrFromSlice(g); ok {
				hop = gateway
			}
		}
		if via, ok := a.Get(unix.RTA_VIA); ok && len(via) > 2 { // struct rtvia: its family, the address
			if gateway, ok := netip.AddrFromSlice(via[2:]); ok {
				hop = gateway
			}
		}
	})
	if err == nil && index == 0 {
		err = errors.New("the route has no interface")
	}
	return index, hop, err
}

// neighbor returns the MAC and the state of ip in the neighbor table of the interface (Linux 5.0).
func (p *Prober) neighbor(index int, ip netip.Addr) (mac net.HardwareAddr, state uint16, err error) {
	family := uint8(unix.AF_INET6)
	if ip.Is4() {
		family = unix.AF_INET
	}
	request := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	request.AddData(&netlink.Ndmsg{Family: family, Index: uint32(index)})
	request.AddData(nl.NewRtAttr(unix.NDA_DST, ip.AsSlice()))
	err = p.exchange(request, unix.SizeofNdMsg, func(h []byte, a nlattr.Attrs) {
		state = binary.NativeEndian.Uint16(h[8:]) // ndm_state
		if m, ok := a.Get(unix.NDA_LLADDR); ok {
			mac = append(mac, m...)
		}
	})
	return mac, state, err
}

// exchange sends a netlink request about one object, and calls use with the answer.
func (p *Prober) exchange(request *nl.NetlinkRequest, size int, use func(header []byte, attrs nlattr.Attrs)) error {
	s, err := p.netns.Socket(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	var parsed error
	err = s.Exchange(request, func(m []byte) {
		h, attrs, err := nlattr.ParseMessage(m, size)
		if parsed = err; err == nil {
			use(h, attrs)
		}
	})
	return errors.Join(err, parsed)
}
