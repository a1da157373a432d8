package link

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
	"github.com/rail-cni/rail-cni/pkg/nlsocket"
)

// Macvlan describes a macvlan to create.
type Macvlan struct {
	Master     int    // ifindex of the NIC, in the namespace that creates it
	Name       string // in the pod netns
	Mode       string // "bridge", "private", "vepa" or "passthru"
	MTU        int    // bytes, 0 = the master's
	MAC        net.HardwareAddr
	BCQueueLen uint32
}

// macvlanModes are the names of the modes (ip-link(8), macvlan).
var macvlanModes = map[string]uint32{
	"bridge":   nl.MACVLAN_MODE_BRIDGE,
	"private":  nl.MACVLAN_MODE_PRIVATE,
	"vepa":     nl.MACVLAN_MODE_VEPA,
	"passthru": nl.MACVLAN_MODE_PASSTHRU,
}

// modeOf returns the name of a macvlan mode by its number in rtnetlink.
func modeOf(mode int) string {
	for name, number := range macvlanModes {
		if int(number) == mode {
			return name
		}
	}
	return "source" // the kernel has only this other mode
}

// CreateMacvlan makes a macvlan on a NIC of n directly in target, so that the macvlan is never
// visible in n. The macvlan is down, and has no address. The error wraps [ErrNotFound] and ENODEV
// if n has no master with that index.
//
// CreateMacvlan does not use netlink.LinkAdd, which afterwards looks up the new link by its name in
// n: the link is in target, and another link of n may have that name.
func CreateMacvlan(n, target *netns.Netns, m Macvlan) error {
	data := nlattr.Attrs{{Type: nl.IFLA_MACVLAN_MODE, Value: nl.Uint32Attr(macvlanModes[m.Mode])}}
	if m.BCQueueLen > 0 {
		data = append(data, nlattr.Attr{Type: nl.IFLA_MACVLAN_BC_QUEUE_LEN, Value: nl.Uint32Attr(m.BCQueueLen)})
	}
	info := nlattr.Attrs{
		{Type: unix.IFLA_INFO_KIND, Value: nl.ZeroTerminated("macvlan")},
		{Type: unix.IFLA_INFO_DATA, Flags: unix.NLA_F_NESTED, Value: nlattr.Marshal(nil, data)},
	}
	attrs := nlattr.Attrs{
		{Type: unix.IFLA_LINK, Value: nl.Uint32Attr(uint32(m.Master))},
		{Type: unix.IFLA_IFNAME, Value: nl.ZeroTerminated(m.Name)},
		{Type: unix.IFLA_NET_NS_FD, Value: nl.Uint32Attr(uint32(target.FD()))},
		{Type: unix.IFLA_LINKINFO, Flags: unix.NLA_F_NESTED, Value: nlattr.Marshal(nil, info)},
	}
	if m.MTU > 0 {
		attrs = append(attrs, nlattr.Attr{Type: unix.IFLA_MTU, Value: nl.Uint32Attr(uint32(m.MTU))})
	}
	if len(m.MAC) > 0 {
		attrs = append(attrs, nlattr.Attr{Type: unix.IFLA_ADDRESS, Value: m.MAC})
	}
	return IfGone(n, n.Request(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL, nl.NewIfInfomsg(unix.AF_UNSPEC).Serialize(), attrs), m.Master)
}

// Probe asks the kernel about macvlans in namespaces that cannot be searched, because they have no
// path. The zero value is ready to use. A Probe makes a network namespace when it first needs one,
// and Close ends that namespace.
type Probe struct {
	once sync.Once
	ns   *netns.Netns
	err  error
}

// Close ends the probe's namespace, if the probe has made one.
func (p *Probe) Close() { p.ns.Close() }

// MacvlanIsUp reports whether a macvlan with this MAC is up on the link of n with this index, in
// any namespace. To find out, it makes a macvlan with the same MAC: the kernel lets MacvlanIsUp set
// that macvlan up only if no other macvlan with this MAC is up (macvlan_addr_busy). During the
// call, setting up another macvlan with this MAC fails. So the caller must first make sure that no
// attachment has the MAC, and then call [Accepts]. If the probe cannot make a namespace, for
// example because /proc/sys is read-only, MacvlanIsUp returns true.
func (p *Probe) MacvlanIsUp(n *netns.Netns, index int, mac net.HardwareAddr) (bool, error) {
	p.once.Do(func() { p.ns, p.err = netns.New() })
	if p.err != nil {
		return true, nil //nolint:nilerr // see above
	}
	name := fmt.Sprintf("probe%08x", rand.Uint32()) // must differ from the names of n's links, or kernels before 6.2 refuse it
	err := CreateMacvlan(n, p.ns, Macvlan{Name: name, Master: index, Mode: "bridge", MAC: mac})
	if errors.Is(err, unix.EBUSY) {
		return false, nil // the link belongs to an ipvlan, a bridge or a bond, so it has no macvlans
	}
	if err != nil {
		return false, fmt.Errorf("make a macvlan %s on link %d of netns %s, to see whether another with this MAC is up: %w", mac, index, n.Path, err)
	}
	l, err := ByName(p.ns, name)
	if err != nil {
		return false, err
	}
	err = SetUp(p.ns, l.Index)
	deleted := Delete(p.ns, l.Index)
	if errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EBUSY) {
		return true, deleted
	}
	return false, errors.Join(err, deleted)
}

// onePiece is a number of entries that certainly fit into one message of a dump.
const onePiece = 50

// Accepts reports whether the link with this index accepts frames for mac, in addition to frames for its own
// address. It looks for mac in the link's filter lists (ndo_dflt_fdb_dump). Children on the link add their MACs
// while they are up (macvlan_open). But a pod with a macvlan can add any address (SIOCADDMULTI, PACKET_MR_UNICAST):
// see [Probe.MacvlanIsUp]. Long lists are sent in several pieces, and can change between two pieces. If the lists
// are that long, Accepts returns true.
func Accepts(n *netns.Netns, index int, mac net.HardwareAddr) (bool, error) {
	entries, err := nlsocket.RetryDump(func() ([]netlink.Neigh, error) { return n.Handle().NeighList(index, unix.AF_BRIDGE) })
	if err != nil {
		return false, fmt.Errorf("list addresses that link %d of netns %s accepts: %w", index, n.Path, err)
	}
	if len(entries) == 0 {
		return false, StillThere(n, index)
	}
	if len(entries) > onePiece {
		return true, nil
	}
	for _, e := range entries {
		if e.Flags&netlink.NTF_SELF != 0 && MACText(e.HardwareAddr) == mac.String() {
			return true, nil
		}
	}
	return false, nil
}
