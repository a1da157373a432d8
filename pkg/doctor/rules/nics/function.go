package nics

import (
	"fmt"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/doctor/subject"
)

var functionRules = []rule.Rule{
	{
		ID: "VF-STALE", Scope: rule.NodeScope, Severity: rule.Warn,
		Expects: "If most free virtual functions of a physical function have no VLAN, trust off or spoof check on, the other free functions have the same setting. " +
			"Functions that the host or a pod uses are not checked.",
		Consequence: "If the next pod's network does not set these values, the pod gets the function with the old settings. For example, the pod is in another VLAN, " +
			"or may use other MACs than its own.",
		Cure: "If sriov-cni left the settings behind, which happens when a pod is killed, run the command below to reset them. " +
			"If the settings are intended, ignore this rule (--ignore VF-STALE).",
		Check: checkStaleFunctions,
	},
}

// functionSetting is a setting of virtual functions. A virtual function can still have the value
// that a former pod left.
type functionSetting struct {
	off   string // a text for the value that a free function usually has
	reset string // the arguments of ip-link(8) that set this usual value
	// value returns a text for the value that a pod may have left, or "" if the setting has its usual value or is
	// unknown. isOff reports whether the setting is known to have its usual value.
	value func(*fact.Function) string
	isOff func(*fact.Function) bool
}

var functionSettings = []functionSetting{
	{
		off: "no VLAN", reset: "vlan 0",
		value: func(f *fact.Function) string { return strings.TrimSuffix("VLAN "+f.VLAN, "VLAN ") },
		isOff: func(f *fact.Function) bool { return f.VLAN == "" },
	},
	{
		off: "trust off", reset: "trust off",
		value: func(f *fact.Function) string { return onlyIf(f.Trust != nil && *f.Trust, "trust on") },
		isOff: func(f *fact.Function) bool { return f.Trust != nil && !*f.Trust },
	},
	{
		off: "spoof check on", reset: "spoofchk on",
		value: func(f *fact.Function) string { return onlyIf(f.SpoofCheck != nil && !*f.SpoofCheck, "spoof check off") },
		isOff: func(f *fact.Function) bool { return f.SpoofCheck != nil && *f.SpoofCheck },
	},
}

func onlyIf(is bool, text string) string {
	if is {
		return text
	}
	return ""
}

func checkStaleFunctions(f *fact.Facts, r *rule.Report) {
	byPCI := map[string][]*fact.NIC{}
	subject.EachNIC(f, r, func(n *fact.NIC) { byPCI[n.PCI] = append(byPCI[n.PCI], n) })
	subject.EachNIC(f, r, func(n *fact.NIC) {
		if n.Kind != "pf" || !n.VFs.Asked() {
			return
		}
		vfs, ok := rule.Read(r, n.Label()+" vfs", n.VFs)
		if !ok || vfs.Count == 0 || switchdev(n) || !n.Functions.Asked() { // rail-agent does not ask
			return
		}
		table, _ := rule.Read(r, n.Label()+" functions", n.Functions)
		var free []*fact.Function
		for i := range table {
			if v := &table[i]; !v.Held && isFree(byPCI[v.PCI]) {
				free = append(free, v)
			}
		}
		for _, v := range free {
			r.Judged()
			texts, resets := unlike(v, free)
			if len(texts) == 0 {
				continue
			}
			found := r.Find(n.Object(), "virtual function %d (%s) has %s, and no record holds these settings",
				v.Number, v.PCI, strings.Join(texts, " and "))
			found.Part(fmt.Sprintf("vf %d", v.Number))
			if rule.Plain(n.Name) {
				found.Fix("ip link set %s vf %d %s", n.Name, v.Number, strings.Join(resets, " "))
			}
		}
	})
}

// isFree reports whether the interfaces of a virtual function are on the host and not in use there. A plugin of another
// project has no record in the ledger, but it takes the interface away from the host.
func isFree(nics []*fact.NIC) bool {
	for _, n := range nics {
		if n.Kind != "vf" || n.Name == "" || n.Holder != "" || n.Moving || n.Children > 0 || n.Protected != "" {
			return false
		}
	}
	return len(nics) > 0
}

// unlike returns texts for the settings of f that differ from the usual value, if most of the other functions have the
// usual value. It also returns the arguments that reset them. A difference from most functions is a sign of a former
// pod: an administrator sets the same value for all functions, or a different value for each.
func unlike(f *fact.Function, all []*fact.Function) (texts, resets []string) {
	for _, s := range functionSettings {
		off := 0
		for _, other := range all {
			if s.isOff(other) {
				off++
			}
		}
		if value := s.value(f); value != "" && 2*off > len(all)-1 { // f itself is not off
			texts = append(texts, fmt.Sprintf("%s (%d of the %d other free ones: %s)", value, off, len(all)-1, s.off))
			resets = append(resets, s.reset)
		}
	}
	return texts, resets
}
