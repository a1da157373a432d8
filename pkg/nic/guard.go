package nic

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// Override keys: what a user writes under "allow" to have a NIC lent in spite
// of a guardrail.
const (
	AllowUplink   = "uplink"   // it carries a default route of the host
	AllowMember   = "member"   // it belongs to a bond, team, bridge, VRF or OVS
	AllowChildren = "children" // VLANs, macvlans, … lie on it; the move destroys them
	// Its RDMA device also serves a NIC that stays on the host, which loses RDMA.
	AllowSharedRDMA = "shared-rdma"
)

// Overrides are all override keys.
var Overrides = []string{AllowUplink, AllowMember, AllowChildren, AllowSharedRDMA}

// childKinds are the link kinds that lie on another link and die when it
// leaves. (A veth names its peer in the same attribute, but outlives it.)
var childKinds = []string{"vlan", "macvlan", "macvtap", "ipvlan", "ipvtap", "macsec"}

// Guard gives an error if lending l would harm the host, unless the override
// of that guardrail is in allow. The loopback has no override: the kernel does
// not move it.
func (h *Host) Guard(l *link.Link, allow []string) error {
	if l.Encap == "loopback" {
		return cnierr.New(cnierr.NICProtected, "name a NIC", "%s is the loopback of the host and cannot be lent", l.Name)
	}
	for _, rule := range []struct {
		override string
		reason   func(*link.Link) (string, error)
	}{{AllowUplink, h.uplink}, {AllowMember, h.member}, {AllowChildren, h.children}} {
		if slices.Contains(allow, rule.override) {
			continue
		}
		reason, err := rule.reason(l)
		if err != nil {
			return err
		}
		if reason != "" {
			return cnierr.New(cnierr.NICProtected,
				fmt.Sprintf(`choose another NIC, or add "allow": [%q] to the config if that is meant`, rule.override),
				"%s must stay on the host: %s", l.Name, reason)
		}
	}
	return nil
}

func (h *Host) uplink(l *link.Link) (string, error) {
	uplinks, err := h.Netns.DefaultRouteLinks()
	if err != nil || !slices.Contains(uplinks, l.Index) {
		return "", err
	}
	return "a default route of the host leaves by it", nil
}

func (h *Host) member(l *link.Link) (string, error) {
	if l.Master == 0 {
		return "", nil
	}
	master, err := h.Netns.ByIndex(l.Master)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("it belongs to the %s %s", master.Kind, master.Name), nil
}

func (h *Host) children(l *link.Link) (string, error) {
	links, err := h.Netns.Links()
	if err != nil {
		return "", err
	}
	var names []string
	for _, c := range links {
		if c.Lower == l.Index && !c.LowerAway && slices.Contains(childKinds, c.Kind) {
			names = append(names, fmt.Sprintf("%s (%s)", c.Name, c.Kind))
		}
	}
	if len(names) == 0 {
		return "", nil
	}
	return "these links lie on it: " + strings.Join(names, ", "), nil
}
