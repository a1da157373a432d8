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

// peerKinds are the link kinds whose IFLA_LINK is a peer instead of the link
// below. A peer survives a move; all others are destroyed or disconnected.
var peerKinds = []string{"veth", "netkit", "vxcan"}

// facts are the guardrails' input.
type facts struct {
	uplink bool // a default route leaves by the NIC
	links  []*link.Link
	// The rest is about the NIC itself.
	programs  []bpf.Program // not read if the network overrides that guardrail
	inUse     string        // the host's use of it, "" if unknown
	functions string        // its virtual functions and subfunctions, "" if it has none
	immutable bool          // the kernel does not move it to another netns
}

// Guard returns an error if lending the link of v would harm the host, unless the
// override of that guardrail is in allow. There is no override for a link that the
// kernel does not move.
//
// It sees the host netns only: the ledger has the macvlans on the link that are in a
// pod netns.
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

// IfGone returns err, of reading the chosen link with this name. If the cause is that the link has
// left the host, it is of kind TryAgain: another loan may have come between the choice and
// the NIC's lock, and the next try finds another NIC, or who has this one.
func IfGone(err error, name string) error {
	if !errors.Is(err, link.ErrNotFound) {
		return err
	}
	return failure.From(err, failure.TryAgain, "the NIC %s left the host while it was chosen", name).
		Cure("`railctl show` lists which pod has it")
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
		return failure.New(failure.NICProtected, "%s is the loopback of the host and cannot be lent", l.Name).Cure("name a NIC")
	}
	if f.immutable {
		cure := "name a NIC, not a virtual link"
		if l.HasParent() {
			cure = fmt.Sprintf("lend a virtual function or subfunction of it, or take it out of switchdev mode: devlink dev eswitch set %s/%s mode legacy", l.ParentBus, l.ParentDev)
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

// GuardFunctions returns the error of the guardrail "vfs" for a PCI function that has no netdev, unless allow
// overrides it.
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
	return "it belongs to another link" // which has just been removed
}

// LiesOn returns the index of the link of the same netns on which l is stacked,
// and with which it goes down, or 0.
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
