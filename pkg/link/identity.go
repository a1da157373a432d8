package link

import (
	"errors"
	"net"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/netns"
)

// ParseMAC parses a link-layer address. It returns nil if text is not an address.
func ParseMAC(text string) net.HardwareAddr {
	mac, _ := net.ParseMAC(text) // no error is needed: a record has the kernel's own text
	return mac
}

// Identity has the properties that a link keeps when it is renamed and moved. For a NIC, ParentDev
// and [Identity.Hardware] together never change. A virtual link has neither. It is identified by
// its index (which it keeps unless the target namespace uses that index), its MAC, the alias that
// the move set, and the link below it or its peer.
type Identity struct {
	ParentDev string `json:"parentDev,omitempty"`
	ParentBus string `json:"parentBus,omitempty"`
	PermMAC   string `json:"permMAC,omitempty"`
	Kind      string `json:"kind,omitempty"`
	MAC       string `json:"mac,omitempty"`
	Index     int    `json:"index,omitempty"`
	// Lower is the ifindex (IFLA_LINK) of the link below this link, or of a veth's peer. It changes
	// only if that other link moves. It is 0 if there is none.
	Lower int `json:"lower,omitempty"`
	// AnyMAC is set if the device has no other netdev, and the netdev may get another permanent MAC. The permanent MAC of
	// a virtual function follows what its physical function sets, or what a trusted function asks for
	// (iavf_virtchnl_completion, ixgbevf_reset).
	AnyMAC bool `json:"anyMAC,omitempty"`
}

// sameHardware reports whether l can be the link of id, judging by its parent device and [Identity.Hardware].
func (id Identity) sameHardware(l *Link) bool {
	now := l.Identity()
	return now.ParentDev == id.ParentDev && now.ParentBus == id.ParentBus && (id.AnyMAC || now.Hardware() == id.Hardware())
}

// Is reports whether l can be the netdev of id. l must be in the namespace to which id's index belongs. Is compares the
// parent device and the permanent MAC. If l has no parent device, Is also compares the index.
func (id Identity) Is(l *Link) bool {
	return id.sameHardware(l) && (l.HasParent() || l.Index == id.Index)
}

// Identity returns the link's identity.
func (l *Link) Identity() Identity {
	return Identity{
		ParentDev: l.ParentDev, ParentBus: l.ParentBus, PermMAC: MACText(l.PermMAC),
		Kind: l.Kind, MAC: MACText(l.MAC), Index: l.Index, Lower: l.Lower,
	}
}

// MACText returns a link-layer address as text, or "" if there is none.
func MACText(m net.HardwareAddr) string {
	if len(m) == 0 {
		return ""
	}
	return m.String()
}

// Hardware returns the properties that the netdev of a device has again after the kernel has re-created it: the permanent
// MAC, or, for the InfiniBand interface of a port, the GUID in that MAC, because the new interface has another queue pair
// number. It returns "" if the link has no permanent MAC.
func (id Identity) Hardware() string {
	// The children of one port have no parent device, and only their queue pairs differ.
	if mac := ParseMAC(id.PermMAC); id.Kind == KindIPoIB && id.ParentDev != "" && len(mac) == IPoIBAddress {
		return MACText(mac[ipoibGUID:])
	}
	return id.PermMAC
}

// Find returns the link with the identity id, or nil if the namespace does not have that link.
// hints are the last known names, altnames or aliases of the link.
func Find(n *netns.Netns, id Identity, hints ...string) (*Link, error) {
	return findAmong(n, id, hints, func(*Link) bool { return true })
}

func findAmong(n *netns.Netns, id Identity, hints []string, may func(*Link) bool) (*Link, error) {
	links, err := Links(n)
	if err != nil {
		return nil, err
	}
	var best *Link
	bestScore := 0
	for _, l := range links {
		if s := id.Score(l, hints); s > bestScore && may(l) {
			best, bestScore = l, s
		}
	}
	return best, nil
}

// FindAt is [Find] for a link whose index in this namespace is known. The kernel does not reuse the
// index of an existing link, so FindAt finds the link despite all other changes. An index of 0
// means unknown. If a link has another index, FindAt accepts it only under a condition: a VLAN must
// still be on the same link outside the namespace, and a veth must still have the same peer.
// Otherwise a pod could hide a NIC, and pass off a link of its own that has the NIC's MAC and name.
func FindAt(n *netns.Netns, index int, id Identity, hints ...string) (*Link, error) {
	if index == 0 {
		return Find(n, id, hints...)
	}
	l, err := ByIndex(n, index)
	if err == nil && l.Kind == id.Kind && l.ParentDev == id.ParentDev && l.ParentBus == id.ParentBus {
		return l, nil
	}
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, err
	}
	return findAmong(n, id, hints, id.sameLower)
}

// sameLower reports whether l, which is in a pod's netns, is still on the same link outside that
// netns as the VLAN or veth of id was. It returns true if that is not known.
func (id Identity) sameLower(l *Link) bool {
	if id.Kind != "vlan" && id.Kind != "veth" || id.Lower == 0 {
		return true
	}
	return l.Lower == id.Lower && l.LowerInOtherNetns
}

// Score returns how certain it is that l is the link of id. 0 means that l is another link.
func (id Identity) Score(l *Link, hints []string) int {
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
	// Index, MAC and name may each be changed, or be given to another link. A virtual link needs
	// two of the three. A device with a permanent MAC needs none. A device without one needs one of
	// the three, because it can have several netdevs without a permanent MAC (representors).
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
	// If two links have the same matches, the link with the index wins, because a pod cannot choose
	// the index of an existing link.
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
