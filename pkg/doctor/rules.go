package doctor

import "slices"

// Rules returns all rules, in the order of reports. Their IDs are unique.
func Rules() []Rule {
	return slices.Concat(hostRules, nicRules, ledgerRules, cniRules, kubeletRules, podRules, configRules, clusterRules)
}

// Select returns the rules of the scopes, or of all if there is none.
func Select(rules []Rule, scopes ...Scope) []Rule {
	return slices.DeleteFunc(slices.Clone(rules), func(r Rule) bool { return len(scopes) > 0 && !slices.Contains(scopes, r.Scope) })
}

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

// eachRail calls do for each NIC that pods may hold: with a rail, or lent, or with a macvlan.
// The others are the node's own business.
func eachRail(f *Facts, r *Report, do func(*NIC)) {
	eachNIC(f, r, func(n *NIC) {
		if n.Rail != nil || n.Holder != "" || n.Macvlans > 0 {
			do(n)
		}
	})
}

// Object names the NIC in findings.
func (n *NIC) Object() string { return "NIC " + n.Name }
