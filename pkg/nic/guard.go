package nic

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/bpf"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// peerKinds has the link kinds whose IFLA_LINK is a peer and not the link below. When a link moves,
// its peer survives. Every other link that lies on the moved link is destroyed or disconnected.
var peerKinds = []string{"veth", "netkit", "vxcan"}

// facts has the facts that the guardrails check.
type facts struct {
	uplink bool // a default route leaves by the NIC
	links  []*link.Link
	// The rest is about the NIC itself.
	programs  []bpf.Program // not read if the network overrides that guardrail
	inUse     string        // how the host uses the NIC, "" if no use is known
	functions string        // virtual functions and subfunctions of the NIC, "" if it has none
	immutable bool          // the kernel refuses to move the NIC to another netns
}

// Guard returns an error if lending the link of v would harm the host and allow does not have the
// override of that guardrail. There is no override for a link that the kernel refuses to move.
//
// Guard sees only the host netns. Macvlans on the link that are in a pod netns are in the ledger,
// see [GuardPodLink].
func (h *Host) Guard(v *link.View, allow []string) error {
	l, f := v.Link, facts{uplink: v.IsUplink(), links: v.Links}
	var err error
	if f.immutable, err = h.immutable(l); err != nil {
		return err
	}
	if !slices.Contains(allow, netconf.AllowBPF) {
		if f.programs, err = bpf.Programs(h.Netns, l); err != nil {
			return err
		}
	}
	if !slices.Contains(allow, netconf.AllowUplink) {
		if f.inUse, err = h.use(v); err != nil {
			return err
		}
	}
	f.functions = h.functions(l)
	return f.guard(l, allow)
}

// IfGone returns err, the error of reading the chosen link, with the kind TryAgain if the cause is
// that the link has left the host. In that case the NIC may have been lent between the choice and
// taking the NIC's lock. The next try either finds another NIC, or finds out who has this NIC. name
// is the name of the link.
func IfGone(err error, name string) error {
	if !errors.Is(err, link.ErrNotFound) {
		return err
	}
	return failure.From(err, failure.TryAgain, "the NIC %s left the host while it was being chosen", name).
		Cure("see `railctl show` for the pod that has the NIC")
}

// immutable reports whether the kernel refuses to move l at all.
func (h *Host) immutable(l *link.Link) (bool, error) {
	err := link.Movable(h.Netns, l)
	if errors.Is(err, unix.EINVAL) {
		return true, nil
	}
	return false, err
}

func (f facts) guard(l *link.Link, allow []string) error {
	if l.Encap == "loopback" {
		return failure.New(failure.NICProtected, "%s is the loopback of the host and cannot be lent", l.Name).Cure("choose a NIC")
	}
	if f.immutable {
		cure := "choose a NIC, not a virtual link"
		if l.HasParent() {
			cure = fmt.Sprintf("lend a virtual function or subfunction of the NIC, or take the NIC out of switchdev mode: devlink dev eswitch set %s/%s mode legacy", l.ParentBus, l.ParentDev)
		}
		return failure.New(failure.NICProtected, "%s must stay on the host: the kernel cannot move it to another network namespace (netns-local)", l.Name).
			Cure("%s", cure)
	}
	for _, rule := range []struct {
		override string
		reason   func(*link.Link) string
	}{{netconf.AllowUplink, f.routed}, {netconf.AllowMember, f.member}, {netconf.AllowChildren, f.children}, {netconf.AllowBPF, f.bpf}, {netconf.AllowVFs, f.vfs}} {
		if slices.Contains(allow, rule.override) {
			continue
		}
		if reason := rule.reason(l); reason != "" {
			return stays(l.Name, reason, rule.override)
		}
	}
	return nil
}

// stays returns the error of a guardrail.
func stays(nic, reason, override string) error {
	return failure.New(failure.NICProtected, "%s must stay on the host: %s", nic, reason).
		Cure(`choose another NIC, or add "allow": [%q] to the config if that is intended`, override)
}

// GuardFunctions applies the guardrail "vfs" to a PCI function that has no netdev. It returns nil
// if allow overrides the guardrail.
func (h *Host) GuardFunctions(pci string, allow []string) error {
	reason := h.functionsIn(filepath.Join(h.Sys, "bus/pci/devices", pci))
	if reason == "" || slices.Contains(allow, netconf.AllowVFs) {
		return nil
	}
	return stays(pci, reason, netconf.AllowVFs)
}

func (f facts) routed(*link.Link) string {
	if f.uplink {
		return "a default route of the host leaves by it"
	}
	return f.inUse
}

func (f facts) vfs(*link.Link) string { return f.functions }

func (f facts) member(l *link.Link) string {
	if l.Master == 0 {
		return ""
	}
	for _, m := range f.links {
		if m.Index == l.Master {
			return fmt.Sprintf("it belongs to the %s %s", m.Kind, m.Name)
		}
	}
	return "it belongs to another link" // that link has just been removed
}

// LiesOn returns the index of the link in the same netns on which l is stacked, or 0 if there is
// none. l goes down together with that link.
func LiesOn(l *link.Link) int {
	if l.LowerInOtherNetns || l.Lower == l.Index || slices.Contains(peerKinds, l.Kind) {
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

func (f facts) bpf(*link.Link) string {
	if len(f.programs) == 0 {
		return ""
	}
	names := make([]string, len(f.programs))
	for i, p := range f.programs {
		names[i] = p.String()
	}
	return "BPF programs of the host are on it: " + strings.Join(names, ", ")
}
