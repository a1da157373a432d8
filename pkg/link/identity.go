package link

import (
	"errors"
	"net"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/netns"
)

// ParseMAC returns the link-layer address of a text, nil for none.
func ParseMAC(text string) net.HardwareAddr {
	mac, _ := net.ParseMAC(text) // a record has what the kernel said
	return mac
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
		ParentDev: l.ParentDev, ParentBus: l.ParentBus, PermMAC: MACText(l.PermMAC),
		Kind: l.Kind, MAC: MACText(l.MAC), Index: l.Index, Lower: l.Lower,
	}
}

// MACText returns a link-layer address as text, "" for none.
func MACText(m net.HardwareAddr) string {
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
	if mac := ParseMAC(id.PermMAC); id.Kind == KindIPoIB && id.ParentDev != "" && len(mac) == IPoIBAddress {
		return MACText(mac[ipoibGUID:])
	}
	return id.PermMAC
}

// Find returns the link with the identity id, or nil if it is not in the
// namespace. hints are its last known names, altnames or aliases.
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

// FindAt is [Find] for a link whose index in this namespace is known: the
// kernel does not reuse the index of an existing link, so the link is found
// despite all other changes. 0 means unknown. A VLAN with another index must lie
// on the same link as before, outside the namespace, and a veth must have the same
// peer: a pod can give a link of its own the MAC and the name of a NIC that it has
// hidden.
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

// sameLower reports whether l, in a pod's netns, is on the link outside it that the
// VLAN or veth of id was on, as far as that is known.
func (id Identity) sameLower(l *Link) bool {
	if id.Kind != "vlan" && id.Kind != "veth" || id.Lower == 0 {
		return true
	}
	return l.Lower == id.Lower && l.LowerInOtherNetns
}

// Score returns the certainty that l is the link of id: 0 = it is not.
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
