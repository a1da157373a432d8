package link

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Link is what the kernel says of one network interface (rtnetlink(7),
// RTM_NEWLINK), as it was when it was read.
type Link struct {
	Index      int
	Name       string
	AltNames   []string
	Alias      string
	Kind       string // "" or "device" for a NIC, "veth", "macvlan", "bridge", …
	Encap      string // link layer: "ether", "infiniband", "loopback", …
	MTU        int
	TxQueueLen int
	Group      uint32
	MAC        net.HardwareAddr
	PermMAC    net.HardwareAddr // the MAC that the hardware came with, nil if it has none
	Flags      uint32           // IFF_*
	ParentDev  string           // name of the parent device: a PCI address, "virtio1", "mlx5_core.sf.4"
	ParentBus  string           // its bus: "pci", "virtio", "auxiliary"; empty for a virtual link
	Lower      int              // ifindex of the link below (or of a veth's peer), 0 if none
	LowerAway  bool             // Lower is an index of another namespace
	Master     int              // ifindex of the bridge, bond, VRF, … that it belongs to, 0 if none
	OperUp     bool             // operational state "up"
	Mode       string           // of a macvlan: a key of [MacvlanModes], or "source"
}

// IsUp says whether the link is administratively up.
func (l *Link) IsUp() bool { return l.Flags&unix.IFF_UP != 0 }

// SettableFlags gives the flags that a person can set.
func (l *Link) SettableFlags() Flags { return flagsOf(l.Flags) }

// HasCarrier says whether the link can pass packets.
func (l *Link) HasCarrier() bool { return l.Flags&unix.IFF_LOWER_UP != 0 }

// HasParent says whether the link belongs to a device of the host. When its
// namespace dies such a link goes home; one without is destroyed.
func (l *Link) HasParent() bool { return l.ParentDev != "" }

// Names gives the name and the altnames.
func (l *Link) Names() []string { return append([]string{l.Name}, l.AltNames...) }

// ErrNotFound is wrapped when no link has the asked name or index.
var ErrNotFound = errors.New("no such link")

// dumpTries bounds how often a dump that the kernel interrupted is repeated.
// Each try races with one more change of the table; ten in a row do not happen.
const dumpTries = 10

// retryDump repeats a dump that the kernel says is inconsistent (NLM_F_DUMP_INTR).
func retryDump[T any](dump func() (T, error)) (T, error) {
	var result T
	var err error
	for range dumpTries {
		result, err = dump()
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			return result, err
		}
	}
	return result, err
}

func fromNetlink(l netlink.Link) *Link {
	a := l.Attrs()
	lower := a.ParentIndex
	// The kernel deletes a VXLAN with the link that it sends by, but tells
	// that link only among the VXLAN's own attributes.
	if v, ok := l.(*netlink.Vxlan); ok && lower == 0 {
		lower = v.VtepDevIndex
	}
	mode := ""
	if m, ok := l.(*netlink.Macvlan); ok {
		mode = modeOf(m)
	}
	return &Link{
		Index: a.Index, Name: a.Name, AltNames: slices.Clone(a.AltNames), Alias: a.Alias,
		Kind: l.Type(), Encap: a.EncapType, MTU: a.MTU, TxQueueLen: a.TxQLen, Group: a.Group,
		MAC: a.HardwareAddr, PermMAC: a.PermHWAddr, Flags: a.RawFlags,
		ParentDev: a.ParentDev, ParentBus: a.ParentDevBus,
		Lower: lower, LowerAway: a.NetNsID >= 0, Master: a.MasterIndex,
		OperUp: a.OperState == netlink.OperUp, Mode: mode,
	}
}

// Links lists all links of the namespace, by index.
func (n *Netns) Links() ([]*Link, error) {
	found, err := retryDump(n.handle.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links of netns %s: %w", n.Path, err)
	}
	links := make([]*Link, len(found))
	for i, l := range found {
		links[i] = fromNetlink(l)
	}
	return links, nil
}

// ByName gives the link with this name or altname. The error wraps
// [ErrNotFound] when there is none.
func (n *Netns) ByName(name string) (*Link, error) {
	l, err := n.handle.LinkByName(name)
	if err != nil {
		return nil, notFound(err, fmt.Sprintf("%q", name), n.Path)
	}
	return fromNetlink(l), nil
}

// ByIndex gives the link with this index. The error wraps [ErrNotFound] when
// there is none.
func (n *Netns) ByIndex(index int) (*Link, error) {
	l, err := n.handle.LinkByIndex(index)
	if err != nil {
		return nil, notFound(err, fmt.Sprintf("with index %d", index), n.Path)
	}
	return fromNetlink(l), nil
}

func notFound(err error, what, path string) error {
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) || errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("%w %s in netns %s", ErrNotFound, what, path)
	}
	return fmt.Errorf("look up link %s in netns %s: %w", what, path, err)
}

// NameTaken gives the link that has any of these names as its name or altname,
// other than the link with index except, or nil.
func (n *Netns) NameTaken(names []string, except int) (*Link, string, error) {
	for _, name := range names {
		l, err := n.ByName(name)
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

// DefaultRouteLinks gives the indexes of the links that a default route of
// either family leaves by, in the main table. A default route in a table of its
// own, as policy routing per rail uses it, carries nothing of the host's own
// traffic and does not count.
func (n *Netns) DefaultRouteLinks() ([]int, error) {
	routes, err := retryDump(func() ([]netlink.Route, error) {
		return n.handle.RouteList(nil, netlink.FAMILY_ALL)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes of netns %s: %w", n.Path, err)
	}
	var found []int
	for _, r := range routes {
		// Without a type it would be an "unreachable default" too, which
		// IPv6 hangs on the loopback.
		if !isDefault(r.Dst) || r.Table != unix.RT_TABLE_MAIN || r.Type != unix.RTN_UNICAST {
			continue
		}
		if r.LinkIndex > 0 {
			found = append(found, r.LinkIndex)
		}
		for _, hop := range r.MultiPath {
			found = append(found, hop.LinkIndex)
		}
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

// Addresses gives the addresses of the link with this index, without those
// that the kernel makes itself (IPv6 link-local).
func (n *Netns) Addresses(index int) ([]*net.IPNet, error) {
	addrs, err := n.addrs(index)
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

func (n *Netns) addrs(index int) ([]netlink.Addr, error) {
	l := &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
	addrs, err := retryDump(func() ([]netlink.Addr, error) { return n.handle.AddrList(l, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses in netns %s: %w", n.Path, err)
	}
	return addrs, nil
}
