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

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// Move moves the link with this index from n to target, with a new name and
// alias, all in one RTM_NEWLINK. The link goes down and loses its addresses,
// routes, neighbors and sysctls (__dev_change_net_namespace).
//
// No process can use it under another name, but listeners in target (udev) see it arrive under its old name and renamed
// at once, because the kernel moves first. And if the new name is taken there, the link stays in target under the old
// one: so after an error the caller must find the link again by its [Identity], which does not change, before it does
// anything else. [Netns.MoveAs] has neither problem.
func (n *Netns) Move(index int, target *Netns, name, alias string) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(target.fd))))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFALIAS, nl.ZeroTerminated(alias)))
	if err := n.ifGone(n.execute(req), index); err != nil {
		return fmt.Errorf("move link to netns %s as %q: %w", target.Path, name, err)
	}
	return nil
}

// Movable returns an error that wraps EINVAL if the kernel does not move l to
// any other namespace: a bridge, a VRF, the uplink of a NIC in switchdev mode.
// It changes nothing.
//
// Linux 6.15 and later report it as an attribute of the link. Kernels before
// 6.13 check it even if a link is moved to its own namespace, which does
// nothing else (__dev_change_net_namespace). With 6.13 and 6.14 only the move
// itself shows it.
func (n *Netns) Movable(l *Link) error {
	if l.Immutable {
		return unix.EINVAL
	}
	if l.Mutable {
		return nil
	}
	return n.setLink(l.Index, nlattr.Attr{Type: unix.IFLA_NET_NS_FD, Value: nl.Uint32Attr(uint32(n.fd))})
}

// MoveAs renames l in n, and moves it to target once it has the name and
// alias for target. So target never sees another name, and the kernel checks
// name and altnames before it moves anything: if one is taken (an error that
// wraps EEXIST), the link is still in n, under its old name. It is for the
// return to the host, where names matter more than in the pod.
func (n *Netns) MoveAs(l *Link, target *Netns, name, alias string) error {
	if err := n.Rename(l.Index, name); err != nil {
		return fmt.Errorf("rename %s to %q before it moves to netns %s: %w", l.Name, name, target.Path, err)
	}
	err := n.Move(l.Index, target, name, alias)
	if err == nil {
		return nil
	}
	if err := n.Rename(l.Index, l.Name); err != nil && !errors.Is(err, unix.ENODEV) {
		return errors.Join(err, fmt.Errorf("rename it back to %s: %w", l.Name, err))
	}
	return err
}

// Identity has the properties that a link keeps when it is renamed and moved. ParentDev with
// [Identity.Hardware] identifies a NIC for good; a virtual link has neither, and
// is identified by its index (kept unless the target has that index), its MAC,
// the alias of the move, and the link that it lies on or is connected to.
type Identity struct {
	ParentDev string `json:"parentDev,omitempty"`
	ParentBus string `json:"parentBus,omitempty"`
	PermMAC   string `json:"permMAC,omitempty"`
	Kind      string `json:"kind,omitempty"`
	MAC       string `json:"mac,omitempty"`
	Index     int    `json:"index,omitempty"`
	// Lower is the ifindex (IFLA_LINK) of the link below it, or of a veth's peer.
	// It changes only if that link moves. It is 0 if there is none.
	Lower int `json:"lower,omitempty"`
	// AnyMAC is set for the only netdev of its device, if it may get another permanent MAC: that of a virtual
	// function follows what its physical function sets, or what a trusted function asks for
	// (iavf_virtchnl_completion, ixgbevf_reset).
	AnyMAC bool `json:"anyMAC,omitempty"`
}

// sameHardware reports whether l can be the link of id by its parent device and [Identity.Hardware].
func (id Identity) sameHardware(l *Link) bool {
	now := l.Identity()
	return now.ParentDev == id.ParentDev && now.ParentBus == id.ParentBus && (id.AnyMAC || now.Hardware() == id.Hardware())
}

// Is reports whether l can be the netdev of id, in the namespace of its index: by its parent device and permanent MAC, and a
// link without a parent device by its index.
func (id Identity) Is(l *Link) bool {
	return id.sameHardware(l) && (l.HasParent() || l.Index == id.Index)
}

// Identity returns the link's identity.
func (l *Link) Identity() Identity {
	return Identity{
		ParentDev: l.ParentDev, ParentBus: l.ParentBus, PermMAC: macText(l.PermMAC),
		Kind: l.Kind, MAC: macText(l.MAC), Index: l.Index, Lower: l.Lower,
	}
}

func macText(m net.HardwareAddr) string {
	if len(m) == 0 {
		return ""
	}
	return m.String()
}

// Hardware returns the properties that a device's netdev has again when the kernel re-creates it: the permanent MAC,
// and of the InfiniBand interface of a port the GUID in it, because another queue pair has another number.
// It is "" if the link has no permanent MAC.
func (id Identity) Hardware() string {
	// Children of one port, which have no parent device, differ by their queue pairs only.
	if mac := parseMAC(id.PermMAC); id.Kind == KindIPoIB && id.ParentDev != "" && len(mac) == IPoIBAddress {
		return macText(mac[ipoibGUID:])
	}
	return id.PermMAC
}

// Find returns the link with the identity id, or nil if it is not in the
// namespace. hints are its last known names, altnames or aliases.
func (n *Netns) Find(id Identity, hints ...string) (*Link, error) {
	return n.findAmong(id, hints, func(*Link) bool { return true })
}

func (n *Netns) findAmong(id Identity, hints []string, may func(*Link) bool) (*Link, error) {
	links, err := n.Links()
	if err != nil {
		return nil, err
	}
	var best *Link
	bestScore := 0
	for _, l := range links {
		if s := id.score(l, hints); s > bestScore && may(l) {
			best, bestScore = l, s
		}
	}
	return best, nil
}

// FindAt is [Netns.Find] for a link whose index in this namespace is known: the
// kernel does not reuse the index of an existing link, so the link is found
// despite all other changes. 0 means unknown. A VLAN with another index must lie
// on the same link as before, outside the namespace, and a veth must have the same
// peer: a pod can give a link of its own the MAC and the name of a NIC that it has
// hidden.
func (n *Netns) FindAt(index int, id Identity, hints ...string) (*Link, error) {
	if index == 0 {
		return n.Find(id, hints...)
	}
	l, err := n.ByIndex(index)
	if err == nil && l.Kind == id.Kind && l.ParentDev == id.ParentDev && l.ParentBus == id.ParentBus {
		return l, nil
	}
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	return n.findAmong(id, hints, id.sameLower)
}

// sameLower reports whether l, in a pod's netns, is on the link outside it that the
// VLAN or veth of id was on, as far as that is known.
func (id Identity) sameLower(l *Link) bool {
	if id.Kind != "vlan" && id.Kind != "veth" || id.Lower == 0 {
		return true
	}
	return l.Lower == id.Lower && l.LowerInOtherNetns
}

// score returns the certainty that l is the link of id: 0 = it is not.
func (id Identity) score(l *Link, hints []string) int {
	now := l.Identity()
	if !id.sameHardware(l) || now.Kind != id.Kind {
		return 0
	}
	known := 0
	for _, same := range []bool{now.Index == id.Index, id.MAC != "" && now.MAC == id.MAC, hinted(l, hints)} {
		if same {
			known++
		}
	}
	// Index, MAC and name may each be changed, or given to another link.
	// A virtual link needs two of the three. A device needs one: it can have
	// several netdevs without a permanent MAC (representors). With a permanent
	// MAC it needs none.
	needs := 2
	switch {
	case id.PermMAC != "":
		needs = 0
	case id.ParentDev != "":
		needs = 1
	}
	if known < needs {
		return 0
	}
	// Of two links with the same matches, the one with the index wins, because
	// a pod cannot choose the index of an existing link.
	score := 2*known + 1
	if l.Index == id.Index {
		score++
	}
	return score
}

func hinted(l *Link, hints []string) bool {
	for _, h := range hints {
		if h != "" && (l.Alias == h || slices.Contains(l.Names(), h)) {
			return true
		}
	}
	return false
}

// ref returns the library's form of a link.
func ref(index int) netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
}

// SetUp sets the link up.
func (n *Netns) SetUp(index int) error { return n.changeFlags(index, unix.IFF_UP, unix.IFF_UP) }

// SetDown sets the link down.
func (n *Netns) SetDown(index int) error { return n.changeFlags(index, unix.IFF_UP, 0) }

// SetMTU sets the MTU in bytes.
func (n *Netns) SetMTU(index, mtu int) error {
	return n.setLink(index, nlattr.Attr{Type: unix.IFLA_MTU, Value: nl.Uint32Attr(uint32(mtu))})
}

// SetAlias sets the link's alias.
func (n *Netns) SetAlias(index int, alias string) error {
	return n.setLink(index, nlattr.Attr{Type: unix.IFLA_IFALIAS, Value: []byte(alias)})
}

// SetMAC sets the link's address. Many drivers take it only while the link is down. A virtual function must often have the
// MAC that its physical function has given it, and igbvf asks for that when the link is set down (igbvf_reset): if it
// refuses, the link is set down once more.
func (n *Netns) SetMAC(index int, mac net.HardwareAddr) error {
	address := nlattr.Attr{Type: unix.IFLA_ADDRESS, Value: mac}
	err := n.setLink(index, address)
	if !errors.Is(err, unix.EADDRNOTAVAIL) {
		return err
	}
	l, err := n.ByIndex(index)
	if err != nil {
		return err
	}
	if l.IsUp() {
		return errors.Join(n.SetDown(index), n.setLink(index, address), n.SetUp(index))
	}
	if err := errors.Join(n.SetUp(index), n.SetDown(index)); err != nil {
		return err
	}
	return n.setLink(index, address)
}

// Rename renames the link. Kernels before 6.2 require it to be down; it is up
// again afterwards.
func (n *Netns) Rename(index int, name string) error {
	named := nlattr.Attr{Type: unix.IFLA_IFNAME, Value: nl.ZeroTerminated(name)}
	err := n.setLink(index, named)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	if err := n.SetDown(index); err != nil {
		return err
	}
	return errors.Join(n.setLink(index, named), n.SetUp(index))
}

// Delete deletes a virtual link. A missing link is not an error.
func (n *Netns) Delete(index int) error {
	err := n.handle.LinkDel(ref(index))
	if errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

// DeleteTogether deletes many virtual links of one namespace by one request. One by
// one, each could take the kernel ten milliseconds (synchronize_net). It returns the
// links that remain: all of them if the kernel refuses, or if limit ends first.
func (n *Netns) DeleteTogether(links []*Link, limit time.Duration) (left []*Link, err error) {
	deadline := time.Now().Add(limit)
	// The group is chosen at random, so no other link is in it. A process that adds
	// one now could delete that link itself. The kernel refuses to delete a group
	// that contains a NIC.
	group := nlattr.Attr{Type: unix.IFLA_GROUP, Value: nl.Uint32Attr(rand.Uint32() | 1<<31)}
	for _, l := range links {
		if err := n.setLink(l.Index, group); err != nil && !errors.Is(err, unix.ENODEV) || time.Now().After(deadline) {
			return links, nil
		}
	}
	_ = n.replay(unix.RTM_DELLINK, 0, nl.NewIfInfomsg(unix.AF_UNSPEC).Serialize(), nlattr.Attrs{group})
	there, err := n.Links()
	if err != nil {
		return links, err
	}
	for _, l := range links {
		if slices.ContainsFunc(there, func(t *Link) bool { return t.Index == l.Index && t.Kind == l.Kind && t.Lower == l.Lower }) {
			left = append(left, l)
		}
	}
	return left, nil
}
