package announce

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/sysctl"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Addresses informs the neighbors on an Ethernet or InfiniBand link that mac has these addresses. It sends a gratuitous ARP
// for each IPv4 address and an unsolicited neighbor advertisement for each IPv6 address. It does nothing for a link without
// ARP.
//
// The kernel also announces addresses (arp_notify, ndisc_notify), but only when the link is set up, and not when the carrier
// comes later (inetdev_event). Addresses leaves out an IPv6 address whose duplicate address detection has not ended: the
// kernel announces that address at the end of the detection (addrconf_dad_completed).
func Addresses(n *netns.Netns, l *link.Link, mac net.HardwareAddr, addresses []netip.Addr) error {
	if !hasARP(l, mac) {
		return nil
	}
	return announce(n, l, mac, announceable(n, l, addresses))
}

// NewAddresses is like [Addresses], for an interface whose only addresses are those that the caller has added. It makes the
// kernel announce a single IPv4 address, because a packet socket costs some 10 ms: its close waits for an RCU grace period
// (packet_release).
//
// The kernel's request goes through the queueing discipline, which drops the request until the queueing discipline is
// active. It is active once the operational state is up: the kernel sets both in one section under the RTNL
// (linkwatch_do_dev), in a worker that the carrier wakes. So NewAddresses waits up to [operWait] for that state. If the
// state does not come, and for all other addresses, NewAddresses uses a packet socket.
func NewAddresses(n *netns.Netns, l *link.Link, mac net.HardwareAddr, addresses []netip.Addr) error {
	if !hasARP(l, mac) {
		return nil
	}
	addresses = announceable(n, l, addresses)
	if len(addresses) == 1 && addresses[0].Is4() && solicits(n, l.Name) && awaitOperUp(n, l) && requestOwn(n, l.Index, addresses[0]) == nil {
		return nil
	}
	return announce(n, l, mac, addresses)
}

// operWait bounds the wait for the operational state of a link with a carrier. The wait takes less than a millisecond if the
// RTNL is free.
const operWait = 5 * time.Millisecond

// awaitOperUp reports whether the operational state of l, which the caller has just read, is up or comes up within
// [operWait].
func awaitOperUp(n *netns.Netns, l *link.Link) bool {
	ctx, cancel := context.WithTimeout(context.Background(), operWait)
	defer cancel()
	return wait.Until(ctx, time.Millisecond, func() (bool, error) {
		if l.OperUp {
			return true, nil
		}
		var err error
		l, err = link.ReadWithoutParent(n, l.Index)
		return err == nil && l.OperUp, err
	}) == nil
}

// announceable returns the addresses that can be announced now.
func announceable(n *netns.Netns, l *link.Link, addresses []netip.Addr) []netip.Addr {
	var found []netip.Addr
	for _, ip := range addresses {
		if ip = ip.Unmap(); ip.Is4() || usable(n, l.Index, ip) {
			found = append(found, ip)
		}
	}
	return found
}

// announce sends an announcement of each address through a packet socket.
func announce(n *netns.Netns, l *link.Link, mac net.HardwareAddr, addresses []netip.Addr) error {
	if len(addresses) == 0 {
		return nil
	}
	to := net.HardwareAddr(broadcast)
	if l.Encap == infiniband {
		attrs, err := link.ReadAttrs(n, l.Index)
		if err != nil {
			return err
		}
		if to = link.BroadcastOf(attrs); len(to) != link.IPoIBAddress {
			return fmt.Errorf("the broadcast address of %s has %d bytes, not %d", l.Name, len(to), link.IPoIBAddress)
		}
	}
	var packets []packet
	for _, ip := range addresses {
		if ip.Is4() {
			packets = append(packets, packet{unix.ETH_P_ARP, to, gratuitousARP(mac, ip)})
		} else {
			packets = append(packets, packet{unix.ETH_P_IPV6, allNodesOf(to), neighborAdvertisement(mac, ip)})
		}
	}
	return failure.Context(link.IfGone(n, n.Do(func() error { return send(l.Index, packets) }), l.Index), "announce the addresses of %s", l.Name)
}

// packet is a packet without its link-layer header.
type packet struct {
	protocol uint16 // ETH_P_…
	to       net.HardwareAddr
	payload  []byte
}

// allNodesOf returns the link-layer address of the IPv6 group of all nodes on a link with this broadcast
// address (ipv6_eth_mc_map, ipv6_ib_mc_map).
func allNodesOf(broadcast net.HardwareAddr) net.HardwareAddr {
	group := allNodes.AsSlice()
	if len(broadcast) != link.IPoIBAddress {
		return append(net.HardwareAddr{0x33, 0x33}, group[12:]...)
	}
	// The queue pair, the scope and the partition are the same as in the broadcast group.
	to := slices.Clone(broadcast[:10])
	to[6] = 0x60 // 0x601b: IPv6 (RFC 4391, section 4)
	return append(to, group[6:]...)
}

// solicits reports whether the kernel immediately asks for neighbors on the link by broadcast. An
// interface takes these sysctls from the host's neigh/default (arp(7): app_solicit, mcast_solicit).
func solicits(n *netns.Netns, name string) bool {
	err := n.Do(func() error {
		dir, err := unix.Open(filepath.Join(sysctl.Root, "ipv4/neigh", name), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		app, err := netns.ReadSetting(dir, "app_solicit")
		if err != nil {
			return err
		}
		broadcast, err := netns.ReadSetting(dir, "mcast_solicit")
		if err == nil && (app != "0" || broadcast == "0") {
			err = unix.EOPNOTSUPP
		}
		return err
	})
	return err == nil
}

// requestOwn makes the kernel send a gratuitous ARP. It requests a neighbor that has the address of the link itself
// (NTF_USE; neigh_event_send, arp_solicit). The kernel uses as the sender the first address of the link in whose subnet the
// neighbor is (inet_select_addr), so the link must have no other address.
func requestOwn(n *netns.Netns, index int, ip netip.Addr) error {
	header := netlink.Ndmsg{Family: unix.AF_INET, Index: uint32(index), Flags: netlink.NTF_USE}
	neighbor := nlattr.Attrs{{Type: unix.NDA_DST, Value: ip.AsSlice()}}
	err := n.Request(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_EXCL, header.Serialize(), neighbor)
	if err != nil {
		return err
	}
	header.Flags = 0
	// The request is sent. Without the entry the kernel does not repeat the request. If this deletion fails, the entry ends
	// by itself.
	_ = n.Request(unix.RTM_DELNEIGH, 0, header.Serialize(), neighbor)
	return nil
}

// hasARP reports whether neighbors on the link are found by ARP or NDP and mac is as long as the
// link's addresses.
func hasARP(l *link.Link, mac net.HardwareAddr) bool {
	return (l.Encap == "ether" && len(mac) == 6 || l.Encap == infiniband && len(mac) == link.IPoIBAddress) && l.Flags&unix.IFF_NOARP == 0
}

// infiniband is the link layer of IPoIB, as netlink names it.
const infiniband = "infiniband"

// send sends packets through a link of the calling thread's namespace. The kernel adds the link-layer header.
func send(index int, packets []packet) error {
	// With protocol 0 the socket receives nothing.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// The queueing discipline drops everything until the kernel has activated it, a
	// moment after the carrier (dev_activate).
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
		return err
	}
	var errs []error
	for _, p := range packets {
		errs = append(errs, p.send(fd, index))
	}
	return errors.Join(errs...)
}

// send sends the packet through the socket fd. It makes the sockaddr_ll (packet(7)) itself: unix.SockaddrLinklayer has 8
// bytes for the address, and InfiniBand needs 20.
func (p packet) send(fd, index int) error {
	to := binary.NativeEndian.AppendUint16(nil, unix.AF_PACKET)
	to = binary.BigEndian.AppendUint16(to, p.protocol)
	to = binary.NativeEndian.AppendUint32(to, uint32(index))
	to = append(to, 0, 0, 0, byte(len(p.to))) // sll_hatype and sll_pkttype, which sendto ignores
	to = append(to, p.to...)
	to = append(to, make([]byte, max(0, unix.SizeofSockaddrLinklayer-len(to)))...) // packet_snd refuses a shorter address
	_, _, errno := unix.Syscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&p.payload[0])), uintptr(len(p.payload)), 0,
		uintptr(unsafe.Pointer(&to[0])), uintptr(len(to)))
	if errno != 0 {
		return errno
	}
	return nil
}

// usable reports whether the link has the IPv6 address ip and duplicate address detection has found
// no other holder. It asks only for this address, because a pod can add very many addresses.
func usable(n *netns.Netns, index int, ip netip.Addr) bool {
	header := nl.NewIfAddrmsg(unix.AF_INET6)
	header.Index = uint32(index)
	req := nl.NewNetlinkRequest(unix.RTM_GETADDR, 0)
	req.AddData(header)
	req.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, ip.AsSlice()))
	found := false
	err := n.Exchange(req, func(m []byte) {
		const unchecked = unix.IFA_F_TENTATIVE | unix.IFA_F_OPTIMISTIC | unix.IFA_F_DADFAILED
		h, _, err := nlattr.ParseMessage(m, unix.SizeofIfAddrmsg)
		found = err == nil && h[2]&unchecked == 0 // ifa_flags
	})
	return err == nil && found
}

var (
	broadcast = []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	allNodes  = netip.MustParseAddr("ff02::1")
)

// gratuitousARP returns the packet that the kernel sends for arp_notify: a request for
// the sender's own address (RFC 5227, section 3; on InfiniBand RFC 4391, section 9).
func gratuitousARP(mac net.HardwareAddr, ip netip.Addr) []byte {
	const request = 1
	hardware := uint16(unix.ARPHRD_ETHER)
	if len(mac) == link.IPoIBAddress {
		hardware = unix.ARPHRD_INFINIBAND
	}
	be := binary.BigEndian
	arp := be.AppendUint16(nil, hardware)
	arp = be.AppendUint16(arp, unix.ETH_P_IP)
	arp = append(arp, byte(len(mac)), 4) // lengths of the addresses
	arp = be.AppendUint16(arp, request)
	arp = append(append(arp, mac...), ip.AsSlice()...)
	return append(append(arp, make([]byte, len(mac))...), ip.AsSlice()...)
}

// neighborAdvertisement returns the packet that the kernel sends for ndisc_notify (RFC
// 4861, sections 4.4 and 7.2.6; on InfiniBand RFC 4391, section 9).
func neighborAdvertisement(mac net.HardwareAddr, ip netip.Addr) []byte {
	const advertisement, override, targetAddress, hops = 136, 0x20, 2, 255
	be := binary.BigEndian
	message := append([]byte{advertisement, 0, 0, 0, override, 0, 0, 0}, ip.AsSlice()...)
	option := append([]byte{targetAddress, 1}, mac...)
	if len(mac) == link.IPoIBAddress { // the length counts 8 bytes; 2 unused bytes precede the address
		option = append([]byte{targetAddress, 3, 0, 0}, mac...)
	}
	message = append(message, option...)
	pseudo := append(ip.AsSlice(), allNodes.AsSlice()...)
	pseudo = be.AppendUint32(pseudo, uint32(len(message)))
	pseudo = be.AppendUint32(pseudo, unix.IPPROTO_ICMPV6)
	be.PutUint16(message[2:], checksum(append(pseudo, message...)))

	p := be.AppendUint16([]byte{6 << 4, 0, 0, 0}, uint16(len(message)))
	p = append(p, unix.IPPROTO_ICMPV6, hops)
	p = append(append(p, ip.AsSlice()...), allNodes.AsSlice()...)
	return append(p, message...)
}

// checksum returns the Internet checksum of data of even length (RFC 1071).
func checksum(data []byte) uint16 {
	sum := uint32(0)
	for ; len(data) > 0; data = data[2:] {
		sum += uint32(binary.BigEndian.Uint16(data))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
