package link

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link/routes"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
	"github.com/rail-cni/rail-cni/pkg/nlsocket"
)

// Link is the kernel's description of one network interface (rtnetlink(7),
// RTM_NEWLINK) at the time of the read.
type Link struct {
	Index             int
	Name              string
	AltNames          []string
	Alias             string
	Kind              string // "" or "device" for a NIC, "veth", "macvlan", "bridge", …
	Encap             string // link layer: "ether", "infiniband", "loopback", …
	MTU               int
	TxQueueLen        int
	Group             uint32
	MAC               net.HardwareAddr
	PermMAC           net.HardwareAddr // the hardware's own MAC, nil if it has none
	Flags             uint32           // IFF_*
	ParentDev         string           // name of the parent device: a PCI address, "virtio1", "mlx5_core.sf.4"
	ParentBus         string           // its bus: "pci", "virtio", "auxiliary"; empty for a virtual link
	Lower             int              // ifindex of the link below (or of a veth's peer), 0 if none
	LowerInOtherNetns bool             // Lower is an index in another namespace
	LowerNetns        int              // if LowerInOtherNetns: the ID that this namespace has for that other namespace
	Master            int              // ifindex of its bridge, bond, VRF, …, 0 if none
	OperUp            bool             // operational state "up"
	Carrier           bool             // the driver reports a carrier (IFLA_CARRIER), which is possible even if the link is down
	Mode              string           // mode of a macvlan: a key of macvlanModes, or "source"
	IPoIB             *IPoIB           // nil if the link is not an InfiniBand interface
	Immutable         bool             // the kernel does not move the link to another namespace (IFLA_NETNS_IMMUTABLE, Linux 6.15)
	Mutable           bool             // the kernel reports that the link can be moved; older kernels report neither
	// Damage is the reason why the description is incomplete: the kernel refused to send it, or it
	// is malformed. The fields that could be read are set, and Index is always set.
	Damage error

	attrs nlattr.Attrs // all attributes, nil for a link from a list: see AttrsOf
}

// IsUp reports whether the link is administratively up.
func (l *Link) IsUp() bool { return l.Flags&unix.IFF_UP != 0 }

// SettableFlags returns the flags that users can set.
func (l *Link) SettableFlags() Flags { return flagsOf(l.Flags) }

// HasCarrier reports whether the link is up with a carrier, so that it can pass packets.
func (l *Link) HasCarrier() bool { return l.Flags&unix.IFF_LOWER_UP != 0 }

// HasParent reports whether the link has a parent device on the host. When the namespace of such a
// link ends, the link returns to the host. A link without a parent device is destroyed.
func (l *Link) HasParent() bool { return l.ParentDev != "" }

// Names returns the name and the altnames.
func (l *Link) Names() []string { return append([]string{l.Name}, l.AltNames...) }

// Describe returns the link's kind, name and index, for errors.
func (l *Link) Describe() string {
	kind := l.Kind
	if kind == "" {
		kind = "device"
	}
	return fmt.Sprintf("%s %s, index %d", kind, l.Name, l.Index)
}

// ErrNotFound is wrapped by every call about one link if the namespace has no link with the given
// name or index: the link never was there, or it has left. The error wraps the kernel's own error
// as well. ErrNotFound proves nothing about where the link is now.
var ErrNotFound = errors.New("no such link")

// Links returns all links of the namespace, by index. A link that cannot be read in full does not
// hide the other links: see [Link.Damage].
func Links(n *netns.Netns) ([]*Link, error) { return listLinks(n, 0) }

// SomeLinks returns the first links of the namespace, at most limit of them, and also the links for
// whose index wanted returns true. The returned links have no altnames. A pod can have thousands of
// links, with 64 KiB of altnames each.
func SomeLinks(n *netns.Netns, limit int, wanted func(index int) bool) ([]*Link, error) {
	links, err := nlsocket.RetryDump(func() ([]*Link, error) {
		var found []*Link
		first := 0
		err := n.Exchange(askLink(unix.NLM_F_DUMP, 0), func(m []byte) {
			index := IndexOf(m)
			if first == limit && !wanted(index) {
				return
			}
			if !wanted(index) {
				first++
			}
			l := parseLink(m)
			l.AltNames = nil
			found = append(found, l)
		})
		return found, err
	})
	if errors.Is(err, unix.EMSGSIZE) { // see listLinks
		links = nil
		err = linksOneByOne(n, func(l *Link) {
			if len(links) < limit || wanted(l.Index) {
				l.AltNames = nil
				links = append(links, l)
			}
		})
	}
	if err != nil {
		return nil, fmt.Errorf("list links of netns %s: %w", n.Path, err)
	}
	return links, addParents(n, links...)
}

// listLinks is like Links, but keeps all attributes of the link with the index whole, if whole is
// not 0. The attributes of all links would take megabytes in a pod with thousands of links.
func listLinks(n *netns.Netns, whole int) ([]*Link, error) {
	links, err := nlsocket.RetryDump(func() ([]*Link, error) { return dumpLinks(n, whole) })
	if errors.Is(err, unix.EMSGSIZE) {
		// One link is too large for the list: it grew after the kernel reserved
		// room for the largest (rtnl_calcit).
		links = nil
		err = linksOneByOne(n, func(l *Link) { links = append(links, l) })
	}
	if err != nil {
		return nil, fmt.Errorf("list links of netns %s: %w", n.Path, err)
	}
	if err := addParents(n, links...); err != nil {
		return nil, err
	}
	for _, l := range links {
		if l.Damage != nil {
			n.ReportUnread(l.Index, l.Name, l.Damage)
		}
	}
	return links, nil
}

// SkipStats is RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h. Every request has a mask, because
// without a mask the kernel reserves no room in a dump for a link that is larger than a page
// (rtnl_calcit). The mask does not include RTEXT_FILTER_VF: with it the driver would ask the
// firmware for every virtual function while it holds the RTNL, and the answer might be too large to
// send.
const SkipStats = 1 << 3

func askLink(flags, index int) *nl.NetlinkRequest {
	return LinkRequest(flags, index, SkipStats)
}

// LinkRequest returns a request for the description of the link with this index. With NLM_F_DUMP it requests all
// links. mask is IFLA_EXT_MASK.
func LinkRequest(flags, index int, mask uint32) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, flags)
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Index = int32(index)
	req.AddData(header)
	req.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(mask)))
	return req
}

func dumpLinks(n *netns.Netns, whole int) ([]*Link, error) {
	var links []*Link
	err := n.Exchange(askLink(unix.NLM_F_DUMP, 0), func(m []byte) {
		l := parseLink(m)
		if whole != 0 && l.Index == whole {
			l = parseWhole(m)
		}
		links = append(links, l)
	})
	return links, err
}

// linksOneByOne first lists the links by their counters, which have a fixed size, and then reads
// each link.
func linksOneByOne(n *netns.Netns, each func(*Link)) error {
	const statsHeader, statsLink64 = 12, 1 // struct if_stats_msg, and IFLA_STATS_LINK_64 in its mask
	indexes, err := nlsocket.RetryDump(func() ([]int, error) {
		var found []int
		req := nl.NewNetlinkRequest(unix.RTM_GETSTATS, unix.NLM_F_DUMP)
		header := make([]byte, statsHeader)
		binary.NativeEndian.PutUint32(header[8:], statsLink64)
		req.AddRawData(header)
		err := n.Exchange(req, func(m []byte) {
			if len(m) >= statsHeader {
				found = append(found, int(binary.NativeEndian.Uint32(m[4:])))
			}
		})
		return found, err
	})
	if err != nil {
		return err
	}
	for _, index := range indexes {
		l, err := ReadWithoutParent(n, index)
		switch {
		case errors.Is(err, unix.ENODEV):
			continue
		case err != nil:
			l = &Link{Index: index, Damage: err}
		}
		l.attrs = nil
		each(l)
	}
	return nil
}

func readLink(n *netns.Netns, req *nl.NetlinkRequest) (l *Link, err error) {
	err = n.Exchange(req, func(m []byte) { l = parseWhole(m) })
	if err == nil && l == nil {
		err = nlattr.ErrMalformed
	}
	return l, err
}

// ReadWithoutParent returns the link with this index without its parent device, or the kernel's error.
func ReadWithoutParent(n *netns.Netns, index int) (*Link, error) {
	return readLink(n, askLink(0, index))
}

// ByName returns the link with this name or altname. The error wraps
// [ErrNotFound] if there is none.
func ByName(n *netns.Netns, name string) (*Link, error) {
	req := askLink(0, 0)
	kind := unix.IFLA_IFNAME
	if len(name) >= unix.IFNAMSIZ {
		kind = unix.IFLA_ALT_IFNAME
	}
	req.AddData(nl.NewRtAttr(kind, nl.ZeroTerminated(name)))
	l, err := readLink(n, req)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ERANGE) {
		err = unix.ENODEV // no link can have that name
	}
	if err != nil {
		return nil, notFound(err, fmt.Sprintf("%q", name), n.Path)
	}
	if !KernelAtLeast(6, 6) {
		if err := checkHere(n, l, name); err != nil {
			return nil, notFound(err, fmt.Sprintf("%q", name), n.Path)
		}
	}
	return withParent(n, l)
}

// checkHere returns ENODEV if the link that the kernel returned for a name or altname is not in the
// namespace. Kernels before 6.6 without the correction ("net: move altnames together with the
// netdevice") leave behind the altnames of a link that moves. In the old namespace these altnames
// still lead to the link, which is in its new namespace.
func checkHere(n *netns.Netns, l *Link, name string) error {
	current, err := ReadWithoutParent(n, l.Index)
	if err == nil && current.Name != name && !slices.Contains(current.AltNames, name) {
		err = unix.ENODEV
	}
	return err
}

// ByIndex returns the link with this index. The error wraps [ErrNotFound] if
// there is none.
func ByIndex(n *netns.Netns, index int) (*Link, error) {
	l, err := ReadWithoutParent(n, index)
	if err != nil {
		return nil, notFound(err, withIndex(index), n.Path)
	}
	return withParent(n, l)
}

func withParent(n *netns.Netns, l *Link) (*Link, error) {
	if err := addParents(n, l); err != nil {
		return nil, err
	}
	return l, nil
}

func notFound(err error, what, path string) error {
	if errors.Is(err, unix.ENODEV) {
		return hasLeft(what, path, err)
	}
	return fmt.Errorf("look up link %s in netns %s: %w", what, path, err)
}

// NameTaken returns the link that has one of these names as its name or altname, and that name. It
// ignores the link with the index except. It returns nil if there is no such link.
func NameTaken(n *netns.Netns, names []string, except int) (*Link, string, error) {
	for _, name := range names {
		l, err := ByName(n, name)
		switch {
		case errors.Is(err, ErrNotFound):
		case err != nil:
			return nil, "", err
		case l.Index != except:
			return l, name, nil
		}
	}
	return nil, "", nil
}

// DefaultRouteLinks returns the indexes of the links of the default routes in the main table, for
// both families. A default route in another table, as in policy routing per rail, does not carry
// the host's own traffic and does not count.
func DefaultRouteLinks(n *netns.Netns) ([]int, error) {
	messages, err := routes.List(n, routes.IsUplink)
	if err != nil {
		return nil, err
	}
	var found []int
	for _, m := range messages {
		_, attrs, _ := nlattr.ParseMessage(m, unix.SizeofRtMsg)
		if index, ok := attrs.Uint32(unix.RTA_OIF); ok {
			found = append(found, int(index))
		}
		hops, _ := attrs.Get(unix.RTA_MULTIPATH)
		routes.EachHop(hops, func(hop []byte) { found = append(found, int(binary.NativeEndian.Uint32(hop[4:]))) })
	}
	return found, nil
}

func isDefault(dst *net.IPNet) bool {
	if dst == nil {
		return true
	}
	ones, _ := dst.Mask.Size()
	return ones == 0 && dst.IP.IsUnspecified()
}

// Addresses returns the addresses of the link with this index, without the IPv6 link-local
// addresses that the kernel makes itself.
func Addresses(n *netns.Netns, index int) ([]*net.IPNet, error) {
	addrs, err := ListAddresses(n, index)
	if err != nil {
		return nil, err
	}
	var found []*net.IPNet
	for _, a := range addrs {
		if !a.IP.IsLinkLocalUnicast() || a.IP.To4() != nil {
			found = append(found, a.IPNet)
		}
	}
	return found, nil
}

// SomeAddresses is like Addresses, but returns only the first addresses, at most limit of them: a pod
// can have any number of addresses.
func SomeAddresses(n *netns.Netns, index, limit int) ([]*net.IPNet, error) {
	found, err := nlsocket.RetryDump(func() ([]*net.IPNet, error) {
		var found []*net.IPNet
		req := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
		req.AddData(nl.NewIfAddrmsg(unix.AF_UNSPEC))
		err := n.Exchange(req, func(m []byte) {
			if len(found) == limit {
				return
			}
			h, attrs, err := nlattr.ParseMessage(m, unix.SizeofIfAddrmsg)
			if err != nil || !nlattr.IsIP(h) || int(binary.NativeEndian.Uint32(h[4:])) != index {
				return
			}
			if a := AddressOf(h, attrs); a.IP.To4() != nil || !a.IP.IsLinkLocalUnicast() {
				found = append(found, a)
			}
		})
		return found, err
	})
	if err != nil {
		return nil, fmt.Errorf("list addresses in netns %s: %w", n.Path, err)
	}
	if len(found) == 0 {
		return nil, StillThere(n, index)
	}
	return found, nil
}

// LinksWith returns the indexes of the links that have one of these addresses, with any prefix
// length.
func LinksWith(n *netns.Netns, ips []net.IP) (map[int]bool, error) {
	addrs, err := listAddrs(n, nil)
	if err != nil {
		return nil, err
	}
	found := map[int]bool{}
	for _, a := range addrs {
		if slices.ContainsFunc(ips, a.IP.Equal) {
			found[a.LinkIndex] = true
		}
	}
	return found, nil
}

// ListAddresses lists the addresses of the link with this index.
func ListAddresses(n *netns.Netns, index int) ([]netlink.Addr, error) {
	found, err := listAddrs(n, Ref(index))
	if len(found) == 0 && err == nil {
		err = StillThere(n, index)
	}
	return found, err
}

// listAddrs lists the addresses of a link, or of all links if l is nil. In both cases the kernel
// sends the addresses of all links.
func listAddrs(n *netns.Netns, l netlink.Link) ([]netlink.Addr, error) {
	addrs, err := nlsocket.RetryDump(func() ([]netlink.Addr, error) { return n.Handle().AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses in netns %s: %w", n.Path, err)
	}
	return addrs, nil
}
