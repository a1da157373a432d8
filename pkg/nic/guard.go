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
	AllowChildren = "children" // VLANs, macvlans, tunnels, … lie on it; the move destroys them or leads them nowhere
	// Its RDMA device also serves a NIC that stays on the host, which loses RDMA.
	AllowSharedRDMA = "shared-rdma"
)

// Overrides are all override keys.
var Overrides = []string{AllowUplink, AllowMember, AllowChildren, AllowSharedRDMA}

// peerKinds are the link kinds that name a peer where others name the link that
// they lie on. A peer outlives a move; all others die with it or lead nowhere.
var peerKinds = []string{"veth", "netkit", "vxcan"}

// facts are what the guardrails look at.
type facts struct {
	uplinks []int // indexes of the links that a default route leaves by
	links   []*link.Link
}

// Guard gives an error if lending l would harm the host, unless the override
// of that guardrail is in allow. The loopback has no override: the kernel does
// not move it.
//
// It sees the host netns only: a macvlan on l that is in a pod netns is for the
// ledger to know.
func (h *Host) Guard(l *link.Link, allow []string) error {
	uplinks, err := h.Netns.DefaultRouteLinks()
	if err != nil {
		return err
	}
	links, err := h.Netns.Links()
	if err != nil {
		return err
	}
	return facts{uplinks: uplinks, links: links}.guard(l, allow)
}

func (f facts) guard(l *link.Link, allow []string) error {
	if l.Encap == "loopback" {
		return cnierr.New(cnierr.NICProtected, "name a NIC", "%s is the loopback of the host and cannot be lent", l.Name)
	}
	for _, rule := range []struct {
		override string
		reason   func(*link.Link) string
	}{{AllowUplink, f.uplink}, {AllowMember, f.member}, {AllowChildren, f.children}} {
		if slices.Contains(allow, rule.override) {
			continue
		}
		if reason := rule.reason(l); reason != "" {
			return cnierr.New(cnierr.NICProtected,
				fmt.Sprintf(`choose another NIC, or add "allow": [%q] to the config if that is meant`, rule.override),
				"%s must stay on the host: %s", l.Name, reason)
		}
	}
	return nil
}

func (f facts) uplink(l *link.Link) string {
	if !slices.Contains(f.uplinks, l.Index) {
		return ""
	}
	return "a default route of the host leaves by it"
}

func (f facts) member(l *link.Link) string {
	if l.Master == 0 {
		return ""
	}
	for _, m := range f.links {
		if m.Index == l.Master {
			return fmt.Sprintf("it belongs to the %s %s", m.Kind, m.Name)
		}
	}
	return "it belongs to another link" // which has just gone
}

// LiesOn gives the index of the link of the same netns that l lies on, and goes
// down with, or 0.
func LiesOn(l *link.Link) int {
	if l.LowerAway || l.Lower == l.Index || slices.Contains(peerKinds, l.Kind) {
		return 0
	}
	return l.Lower
}

func (f facts) children(l *link.Link) string {
	var names []string
	for _, c := range f.links {
		if LiesOn(c) == l.Index {
			names = append(names, fmt.Sprintf("%s (%s)", c.Name, c.Kind))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "these links lie on it: " + strings.Join(names, ", ")
}
