package link

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// Move moves the link with this index from n to target, with a new name and a new alias, in one RTM_NEWLINK. The link goes
// down and loses its addresses, routes, neighbors and sysctls (__dev_change_net_namespace).
//
// No process can use the link in target under another name. But listeners in target (udev) see the link arrive under its
// old name, and then see it renamed at once, because the kernel moves the link first. If the new name is taken in target,
// the link stays in target under the old name. So after an error the caller must find the link again by its [Identity],
// which does not change, before it does anything else. [MoveAs] has neither problem.
func Move(n *netns.Netns, index int, target *netns.Netns, name, alias string) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(target.FD()))))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFALIAS, nl.ZeroTerminated(alias)))
	if err := IfGone(n, n.Execute(req), index); err != nil {
		return fmt.Errorf("move link to netns %s as %q: %w", target.Path, name, err)
	}
	return nil
}

// Movable returns an error that wraps EINVAL if the kernel does not move l to any other namespace.
// That is so for a bridge, a VRF and the uplink of a NIC in switchdev mode. Movable changes
// nothing.
//
// Linux 6.15 and later report this property as an attribute of the link. Kernels before 6.13 check
// the property even if a link is moved to its own namespace, a move that has no other effect
// (__dev_change_net_namespace). With 6.13 and 6.14 only a real move shows the property.
func Movable(n *netns.Netns, l *Link) error {
	if l.Immutable {
		return unix.EINVAL
	}
	if l.Mutable {
		return nil
	}
	return Set(n, l.Index, nlattr.Attr{Type: unix.IFLA_NET_NS_FD, Value: nl.Uint32Attr(uint32(n.FD()))})
}

// MoveAs renames l in n first, and then moves l to target with that name and the alias. So
// processes in target never see another name. The kernel checks the name and altnames before it
// moves anything: if one is taken (an error that wraps EEXIST), the link is still in n, under its
// old name. Use MoveAs for the return to the host, where names matter more than in the pod.
func MoveAs(n *netns.Netns, l *Link, target *netns.Netns, name, alias string) error {
	if err := Rename(n, l.Index, name); err != nil {
		return fmt.Errorf("rename %s to %q before it moves to netns %s: %w", l.Name, name, target.Path, err)
	}
	err := Move(n, l.Index, target, name, alias)
	if err == nil {
		return nil
	}
	if err := Rename(n, l.Index, l.Name); err != nil && !errors.Is(err, unix.ENODEV) {
		return errors.Join(err, fmt.Errorf("rename the link back to %s: %w", l.Name, err))
	}
	return err
}

// Ref returns the library's form of a link.
func Ref(index int) netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
}

// SetUp sets the link up.
func SetUp(n *netns.Netns, index int) error { return changeFlags(n, index, unix.IFF_UP, unix.IFF_UP) }

// SetDown sets the link down.
func SetDown(n *netns.Netns, index int) error { return changeFlags(n, index, unix.IFF_UP, 0) }

// SetMTU sets the MTU in bytes.
func SetMTU(n *netns.Netns, index, mtu int) error {
	return Set(n, index, nlattr.Attr{Type: unix.IFLA_MTU, Value: nl.Uint32Attr(uint32(mtu))})
}

// SetAlias sets the link's alias.
func SetAlias(n *netns.Netns, index int, alias string) error {
	return Set(n, index, nlattr.Attr{Type: unix.IFLA_IFALIAS, Value: []byte(alias)})
}

// SetMAC sets the link's address. Many drivers accept an address only while the link is down. A virtual function must
// often have the MAC that its physical function has given it. igbvf asks for that MAC when the link is set down
// (igbvf_reset), so SetMAC sets the link down once more if the driver refuses the address.
func SetMAC(n *netns.Netns, index int, mac net.HardwareAddr) error {
	address := nlattr.Attr{Type: unix.IFLA_ADDRESS, Value: mac}
	err := Set(n, index, address)
	if !errors.Is(err, unix.EADDRNOTAVAIL) {
		return err
	}
	l, err := ByIndex(n, index)
	if err != nil {
		return err
	}
	if l.IsUp() {
		return errors.Join(SetDown(n, index), Set(n, index, address), SetUp(n, index))
	}
	if err := errors.Join(SetUp(n, index), SetDown(n, index)); err != nil {
		return err
	}
	return Set(n, index, address)
}

// Rename renames the link. Kernels before 6.2 require the link to be down. In that case Rename sets
// it down first and up again afterwards.
func Rename(n *netns.Netns, index int, name string) error {
	named := nlattr.Attr{Type: unix.IFLA_IFNAME, Value: nl.ZeroTerminated(name)}
	err := Set(n, index, named)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	if err := SetDown(n, index); err != nil {
		return err
	}
	return errors.Join(Set(n, index, named), SetUp(n, index))
}

// Delete deletes a virtual link. A missing link is not an error.
func Delete(n *netns.Netns, index int) error {
	err := n.Handle().LinkDel(Ref(index))
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// DeleteTogether deletes many virtual links of one namespace in one request. Deleted one at a time,
// each link could take the kernel ten milliseconds (synchronize_net). It returns the links that
// remain: all of them if the kernel refuses the request, or if limit passes first.
func DeleteTogether(n *netns.Netns, links []*Link, limit time.Duration) (left []*Link, err error) {
	deadline := time.Now().Add(limit)
	// The group number is random, so no other link is in the group. A process that adds a link to
	// it now could also delete that link itself. The kernel refuses to delete a group that contains
	// a NIC.
	group := nlattr.Attr{Type: unix.IFLA_GROUP, Value: nl.Uint32Attr(rand.Uint32() | 1<<31)}
	for _, l := range links {
		if err := Set(n, l.Index, group); err != nil && !errors.Is(err, unix.ENODEV) || time.Now().After(deadline) {
			return links, nil
		}
	}
	_ = n.Request(unix.RTM_DELLINK, 0, nl.NewIfInfomsg(unix.AF_UNSPEC).Serialize(), nlattr.Attrs{group})
	current, err := Links(n)
	if err != nil {
		return links, err
	}
	for _, l := range links {
		if slices.ContainsFunc(current, func(t *Link) bool { return t.Index == l.Index && t.Kind == l.Kind && t.Lower == l.Lower }) {
			left = append(left, l)
		}
	}
	return left, nil
}
