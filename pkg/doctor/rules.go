package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// Rules returns all rules in the order in which reports show them. Their IDs are unique.
func Rules() []Rule {
	return slices.Concat(hostRules, nicRules, portRules, functionRules, ledgerRules, cniRules, kubeletRules, agentRules, podRules, configRules, clusterRules)
}

// Select returns the rules that have one of the scopes. Without scopes it returns all rules.
func Select(rules []Rule, scopes ...Scope) []Rule {
	return slices.DeleteFunc(slices.Clone(rules), func(r Rule) bool { return len(scopes) > 0 && !slices.Contains(scopes, r.Scope) })
}

// These are the PCI vendor IDs that rules know.
const (
	vendorMellanox = "15b3"
	vendorNVIDIA   = "10de"
)

// InfiniBand is the link layer of InfiniBand ports. RoCE ports have the link layer "Ethernet".
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

// eachRail calls do for each NIC that pods may hold (see nicsForPods).
func eachRail(f *Facts, r *Report, do func(*NIC)) {
	eachNIC(f, r, func(n *NIC) {
		if r.nicsForPods(f)[n] {
			do(n)
		}
	})
}

// nicsForPods returns true for each NIC that pods may hold. Rules do not judge the other NICs of
// the node. Pods may hold a NIC that has a rail, that is lent, or that has a child interface. If no
// NIC of the node has a rail, pods may also hold the NICs that networks and device pools name. If
// these name no NIC either, pods may hold all NICs with RDMA except uplinks. Without this guess, a
// node without a node file would always count as healthy.
func (r *Report) nicsForPods(f *Facts) map[*NIC]bool {
	if r.parsed.forPods != nil {
		return r.parsed.forPods
	}
	named := map[*NIC]bool{}
	if f.withoutRails() {
		named = r.named(f)
	}
	forPods := map[*NIC]bool{}
	for _, n := range f.nics() {
		guessed := f.withoutRails() && len(named) == 0 && n.isRDMA() && !n.isUplink()
		forPods[n] = n.Rail != nil || n.Holder != "" || n.Children > 0 || named[n] || guessed
	}
	r.parsed.forPods = forPods
	return forPods
}

// nics returns the NICs of the node. It returns none if they could not be read.
func (f *Facts) nics() []*NIC {
	var all []*NIC
	if f.NICs != nil && f.NICs.List.OK() {
		for i := range f.NICs.List.Value {
			all = append(all, &f.NICs.List.Value[i])
		}
	}
	return all
}

// withoutRails reports whether it is known that no NIC of the node has a rail. This is not known if
// the node file is damaged.
func (f *Facts) withoutRails() bool {
	damaged := false
	eachConfig(f, &Report{}, NodeFile, func(c *Config) {
		_, err := nodefile.Parse([]byte(c.Text))
		damaged = damaged || err != nil
	})
	return !damaged && f.NICs != nil && f.NICs.List.OK() && !slices.ContainsFunc(f.nics(), func(n *NIC) bool { return n.Rail != nil })
}

// named returns the NICs of the node that its networks and device pools name.
func (r *Report) named(f *Facts) map[*NIC]bool {
	names := map[string]bool{}
	quiet := &Report{parsed: r.parsed} // missing facts are noted by the rules that need them, not here
	eachPlugin(f, quiet, func(_ *network, p *plugin) { names[p.selected()] = true })
	if f.Kubelet != nil {
		for _, p := range f.Kubelet.Pools.Value {
			for _, name := range p.NICs {
				names[name] = true
			}
		}
	}
	delete(names, "")
	found := map[*NIC]bool{}
	for _, n := range f.nics() {
		if names[n.Name] || names[n.PCI] || slices.ContainsFunc(n.AltNames, func(name string) bool { return names[name] }) {
			found[n] = true
		}
	}
	return found
}

// isRDMA reports whether the NIC has, should have or may have an RDMA device. A NIC of NVIDIA
// should have one. A NIC whose RDMA devices could not be read may have one.
func (n *NIC) isRDMA() bool {
	return len(n.CharDevices) > 0 || len(n.Ports.Value) > 0 || n.Ports.Error != "" || n.isMellanox() && n.Kind != "" // a representor has no kind, and no RDMA device
}

// isUplink reports whether a default route of the host leaves by the NIC. Facts from versions
// before the field Uplink have only the reason of the guardrail, in Protected.
func (n *NIC) isUplink() bool {
	return n.Uplink || strings.Contains(n.Protected, "a default route of the host")
}

// These are the sentences that [Notes] returns.
const (
	noteNoRDMA  = "there is no RDMA device on this machine, so rules about rails have nothing to check"
	noteNoRails = "no rails are known, because the node file has none; checked: %s (to name the rails: railctl rails discover)"
)

// Notes returns sentences for the beginning of a report. They say what the rules could check on
// nodes without rails. For a node with rails there is no sentence.
func Notes(f *Facts) []string {
	if f.Cluster == nil {
		if note := f.note(); note != "" {
			return []string{note}
		}
		return nil
	}
	of := map[string][]string{}
	eachNode(f, func(n *Facts) {
		if note := n.note(); note != "" {
			of[note] = append(of[note], clean(n.Node))
		}
	})
	var notes []string
	for _, note := range slices.Sorted(maps.Keys(of)) {
		nodes := of[note]
		text := strings.Join(nodes[:min(len(nodes), maxShown)], ", ")
		if more := len(nodes) - maxShown; more > 0 {
			text += fmt.Sprintf(" and %d more", more)
		}
		notes = append(notes, text+": "+note)
	}
	return notes
}

// note returns the sentence about one node. It returns "" if the node has rails.
func (f *Facts) note() string {
	if !f.withoutRails() {
		return ""
	}
	r := &Report{parsed: &parsed{}}
	judged := 0
	for _, is := range r.nicsForPods(f) {
		if is {
			judged++
		}
	}
	rdma := slices.ContainsFunc(f.nics(), (*NIC).isRDMA)
	switch what := plural(judged, "NIC"); {
	case judged == 0 && !rdma:
		return noteNoRDMA
	case judged == 0:
		return fmt.Sprintf(noteNoRails, "no NICs: all with RDMA are uplinks of the host")
	case len(r.named(f)) > 0:
		return fmt.Sprintf(noteNoRails, what+" that networks or device pools name, or pods hold")
	default:
		return fmt.Sprintf(noteNoRails, what+" with RDMA that are not uplinks")
	}
}

// eachPort calls do for each port of the RDMA devices of each NIC that pods may hold.
func eachPort(f *Facts, r *Report, do func(*NIC, *Port)) {
	eachRail(f, r, func(n *NIC) {
		ports, _ := Read(r, n.label()+" ports", n.Ports)
		for i := range ports {
			r.within(ports[i].name(), func() { do(n, &ports[i]) })
		}
	})
}

// name returns a name that distinguishes the port from the NIC's other ports.
func (p *Port) name() string { return fmt.Sprintf("%s/%d", p.Device, p.Port) }

// label returns the name of the NIC in findings.
func (n *NIC) label() string { return cmp.Or(n.Name, n.PCI, "without a name") }

// Object returns the object of findings about the NIC.
func (n *NIC) Object() string { return "NIC " + n.label() }

// In reports whether a finding is about the NIC.
func (n *NIC) In(f *Finding) bool { return f.Object == clean(n.Object()) }

// up reports whether the NIC is known to be up and to have a carrier. It notes missing facts in r.
func (n *NIC) up(r *Report) bool {
	admin, _ := Read(r, n.label()+" adminUp", n.AdminUp)
	carrier, _ := Read(r, n.label()+" carrier", n.Carrier)
	return admin && carrier
}

// heldInKnownPod reports whether a pod whose interfaces are known holds the NIC. The rules about pods judge such a NIC.
func (n *NIC) heldInKnownPod(f *Facts) bool {
	return n.Holder != "" && slices.ContainsFunc(f.Pods, func(p Pod) bool {
		return p.Namespace+"/"+p.Name == n.Holder && p.Interfaces.OK()
	})
}

// nicIn returns the name of the NIC that a line of the kernel's log names. It returns "" if the
// line names no NIC.
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
