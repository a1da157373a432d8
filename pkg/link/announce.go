package link

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// Announce informs the neighbors on an Ethernet link that mac has these addresses: by
// a gratuitous ARP, or by an unsolicited neighbor advertisement. It does nothing for a
// link without ARP.
//
// The kernel announces addresses too (arp_notify, ndisc_notify), but only when the link is
// set up, and not when the carrier comes later (inetdev_event). Announce leaves out an IPv6
// address whose duplicate address detection has not ended: the kernel announces it at the
// end of the detection (addrconf_dad_completed).
func (n *Netns) Announce(l *Link, mac net.HardwareAddr, addresses []netip.Addr) error {
	if !l.hasARP(mac) {
		return nil
	}
	return n.announce(l, mac, n.announceable(l, addresses))
}

// AnnounceNew is [Netns.Announce] for an interface that nobody but the caller has given an
// address. The kernel sends the announcement of a single IPv4 address itself: a packet socket
// costs some 10 ms, because its close waits for an RCU grace period (packet_release).
//
// The kernel's request goes through the queueing discipline, which drops it until it is active. It
// is active once the operational state is up: the kernel sets both in one section of the RTNL
// (linkwatch_do_dev). Before that, and for all other addresses, a packet socket is used.
func (n *Netns) AnnounceNew(l *Link, mac net.HardwareAddr, addresses []netip.Addr) error {
	if !l.hasARP(mac) {
		return nil
	}
	addresses = n.announceable(l, addresses)
	if l.OperUp && len(addresses) == 1 && addresses[0].Is4() && n.solicits(l.Name) && n.requestOwn(l.Index, addresses[0]) == nil {
		return nil
	}
	return n.announce(l, mac, addresses)
}

// announceable returns the addresses that can be announced now.
func (n *Netns) announceable(l *Link, addresses []netip.Addr) []netip.Addr {
	var found []netip.Addr
	for _, ip := range addresses {
		if ip = ip.Unmap(); ip.Is4() || n.usable(l.Index, ip) {
			found = append(found, ip)
		}
	}
	return found
}

// announce sends an announcement of each address by a packet socket.
func (n *Netns) announce(l *Link, mac net.HardwareAddr, addresses []netip.Addr) error {
	if len(addresses) == 0 {
		return nil
	}
	var frames [][]byte
	for _, ip := range addresses {
		if ip.Is4() {
			frames = append(frames, gratuitousARP(mac, ip))
		} else {
			frames = append(frames, neighborAdvertisement(mac, ip))
		}
	}
	return wrap(n.ifGone(n.Do(func() error { return send(l.Index, frames) }), l.Index), "announce the addresses of %s", l.Name)
}

// solicits reports whether the kernel asks for neighbors on the link by broadcast at once. An
// interface has these sysctls of neigh/default of the host (arp(7): app_solicit, mcast_solicit).
func (n *Netns) solicits(name string) bool {
	err := n.Do(func() error {
		dir, err := unix.Open(filepath.Join(sysctlRoot, "ipv4/neigh", name), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		app, err := readSysctl(dir, "app_solicit")
		if err != nil {
			return err
		}
		broadcast, err := readSysctl(dir, "mcast_solicit")
		if err == nil && (app != "0" || broadcast == "0") {
			err = unix.EOPNOTSUPP
		}
		return err
	})
	return err == nil
}

// requestOwn has the kernel send a gratuitous ARP: the request for a neighbor with the address
// of the link itself (NTF_USE; neigh_event_send, arp_solicit). The sender is the first address of the
// link in whose subnet the neighbor is (inet_select_addr), so the link must have no other.
func (n *Netns) requestOwn(index int, ip netip.Addr) error {
	header := netlink.Ndmsg{Family: unix.AF_INET, Index: uint32(index), Flags: netlink.NTF_USE}
	neighbor := nlattr.Attrs{{Type: unix.NDA_DST, Value: ip.AsSlice()}}
	err := n.replay(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_EXCL, header.Serialize(), neighbor)
	if err != nil {
		return err
	}
	header.Flags = 0
	// The request is sent. Without an entry the kernel does not repeat it; that of a failed deletion ends by itself.
	_ = n.replay(unix.RTM_DELNEIGH, 0, header.Serialize(), neighbor)
	return nil
}

// hasARP reports whether neighbors on the link are found by ARP or NDP, and mac has the length of
// its addresses.
func (l *Link) hasARP(mac net.HardwareAddr) bool {
	return l.Encap == "ether" && len(mac) == 6 && l.Flags&unix.IFF_NOARP == 0
}

// send sends Ethernet frames by a link of the calling thread's namespace.
func send(index int, frames [][]byte) error {
	// Protocol 0: it receives nothing.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
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
	for _, frame := range frames {
		errs = append(errs, unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: index}))
	}
	return errors.Join(errs...)
}

// usable reports whether the link has the IPv6 address, and duplicate address detection
// has found no other holder. It asks for this address alone, because a pod can add very
// many.
func (n *Netns) usable(index int, ip netip.Addr) bool {
	header := nl.NewIfAddrmsg(unix.AF_INET6)
	header.Index = uint32(index)
	req := nl.NewNetlinkRequest(unix.RTM_GETADDR, 0)
	req.AddData(header)
	req.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, ip.AsSlice()))
	found := false
	err := n.exchange(req, func(m []byte) {
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

// gratuitousARP returns the frame that the kernel sends for arp_notify: a request for
// the sender's own address (RFC 5227, section 3).
func gratuitousARP(mac net.HardwareAddr, ip netip.Addr) []byte {
	const ethernet, request = 1, 1
	be := binary.BigEndian
	frame := be.AppendUint16(append(append([]byte{}, broadcast...), mac...), unix.ETH_P_ARP)
	frame = be.AppendUint16(frame, ethernet)
	frame = be.AppendUint16(frame, unix.ETH_P_IP)
	frame = append(frame, 6, 4) // lengths of the addresses
	frame = be.AppendUint16(frame, request)
	frame = append(append(frame, mac...), ip.AsSlice()...)
	return append(append(frame, 0, 0, 0, 0, 0, 0), ip.AsSlice()...)
}

// neighborAdvertisement returns the frame that the kernel sends for ndisc_notify (RFC
// 4861, sections 4.4 and 7.2.6).
func neighborAdvertisement(mac net.HardwareAddr, ip netip.Addr) []byte {
	const advertisement, override, targetAddress, hops = 136, 0x20, 2, 255
	be := binary.BigEndian
	message := append([]byte{advertisement, 0, 0, 0, override, 0, 0, 0}, ip.AsSlice()...)
	message = append(append(message, targetAddress, 1), mac...)
	pseudo := append(ip.AsSlice(), allNodes.AsSlice()...)
	pseudo = be.AppendUint32(pseudo, uint32(len(message)))
	pseudo = be.AppendUint32(pseudo, unix.IPPROTO_ICMPV6)
	be.PutUint16(message[2:], checksum(append(pseudo, message...)))

	frame := be.AppendUint16(append([]byte{0x33, 0x33, 0, 0, 0, 1}, mac...), unix.ETH_P_IPV6)
	frame = append(frame, 6<<4, 0, 0, 0)
	frame = be.AppendUint16(frame, uint16(len(message)))
	frame = append(frame, unix.IPPROTO_ICMPV6, hops)
	frame = append(append(frame, ip.AsSlice()...), allNodes.AsSlice()...)
	return append(frame, message...)
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
