package doctor

import (
	"cmp"
	"fmt"
	"slices"
)

// Rules returns all rules, in the order of reports. Their IDs are unique.
func Rules() []Rule {
	return slices.Concat(hostRules, nicRules, portRules, ledgerRules, cniRules, kubeletRules, agentRules, podRules, configRules, clusterRules)
}

// Select returns the rules of the scopes, or of all if there is none.
func Select(rules []Rule, scopes ...Scope) []Rule {
	return slices.DeleteFunc(slices.Clone(rules), func(r Rule) bool { return len(scopes) > 0 && !slices.Contains(scopes, r.Scope) })
}

// The vendors of PCI devices that rules know.
const (
	vendorMellanox = "15b3"
	vendorNVIDIA   = "10de"
)

// InfiniBand is the link layer of ports that are not RoCE's.
const InfiniBand = "InfiniBand"

// eachNIC calls do for each NIC of the node.
func eachNIC(f *Facts, r *Report, do func(*NIC)) {
	if f.NICs == nil {
		return
	}
	list, _ := Read(r, "nics", f.NICs.List)
	for i := range list {
		do(&list[i])
	}
}

// eachRail calls do for each NIC for pods.
func eachRail(f *Facts, r *Report, do func(*NIC)) {
	eachNIC(f, r, func(n *NIC) {
		if n.forPods() {
			do(n)
		}
	})
}

// forPods reports whether pods may hold the NIC: it has a rail, or is lent, or has a macvlan.
// The others are the node's own business.
func (n *NIC) forPods() bool { return n.Rail != nil || n.Holder != "" || n.Macvlans > 0 }

// eachPort calls do for each port of the RDMA devices of rails' NICs.
func eachPort(f *Facts, r *Report, do func(*NIC, *Port)) {
	eachRail(f, r, func(n *NIC) {
		ports, _ := Read(r, n.label()+" ports", n.Ports)
		for i := range ports {
			r.within(ports[i].name(), func() { do(n, &ports[i]) })
		}
	})
}

// name returns what distinguishes the ports of one NIC.
func (p *Port) name() string { return fmt.Sprintf("%s/%d", p.Device, p.Port) }

// label returns what findings call the NIC.
func (n *NIC) label() string { return cmp.Or(n.Name, n.PCI, "without a name") }

// Object names the NIC in findings.
func (n *NIC) Object() string { return "NIC " + n.label() }

// up reports whether the NIC is known to be up with a carrier. Facts that are missing are
// noted.
func (n *NIC) up(r *Report) bool {
	admin, _ := Read(r, n.label()+" adminUp", n.AdminUp)
	carrier, _ := Read(r, n.label()+" carrier", n.Carrier)
	return admin && carrier
}

// told reports whether rules of pods judge the NIC: a pod holds it whose interfaces are known.
func (n *NIC) told(f *Facts) bool {
	return n.Holder != "" && slices.ContainsFunc(f.Pods, func(p Pod) bool {
		return p.Namespace+"/"+p.Name == n.Holder && p.Interfaces.OK()
	})
}

// nicIn returns the NIC that a line of the kernel's log names, "" for none.
func (f *Facts) nicIn(line string) string {
	if f.NICs != nil {
		for i := range f.NICs.List.Value {
			if n := &f.NICs.List.Value[i]; hasWord(line, n.Name) || hasWord(line, n.PCI) {
				return n.label()
			}
		}
	}
	return ""
}
