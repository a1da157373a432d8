package doctor

import (
	"fmt"
	"strings"
)

var functionRules = []Rule{
	{
		ID: "VF-STALE", Scope: NodeScope, Severity: Warn,
		Expects: "A free virtual function has no VLAN, trust off and spoof check on, if most other free functions of its physical function have these settings. " +
			"Functions that the host uses are not checked.",
		Consequence: "The next pod gets the function with the old settings, unless its network sets others: it is in another VLAN, " +
			"or may take other MACs.",
		Cure: "If an attachment of sriov-cni left them, as it does when the pod is killed, run the command. " +
			"If the settings are meant, ignore this rule (--ignore VF-STALE).",
		Check: checkStaleFunctions,
	},
}

// functionSetting is a setting of virtual functions that one can have left from a former pod.
type functionSetting struct {
	off   string // what most have
	reset string // ip-link(8)
	// value returns the setting that a pod may have left, "" if it is off or unknown; isOff reports whether it is off.
	value func(*Function) string
	isOff func(*Function) bool
}

var functionSettings = []functionSetting{
	{
		off: "no VLAN", reset: "vlan 0",
		value: func(f *Function) string { return strings.TrimSuffix("VLAN "+f.VLAN, "VLAN ") },
		isOff: func(f *Function) bool { return f.VLAN == "" },
	},
	{
		off: "trust off", reset: "trust off",
		value: func(f *Function) string { return onlyIf(f.Trust != nil && *f.Trust, "trust on") },
		isOff: func(f *Function) bool { return f.Trust != nil && !*f.Trust },
	},
	{
		off: "spoof check on", reset: "spoofchk on",
		value: func(f *Function) string { return onlyIf(f.SpoofCheck != nil && !*f.SpoofCheck, "spoof check off") },
		isOff: func(f *Function) bool { return f.SpoofCheck != nil && *f.SpoofCheck },
	},
}

func onlyIf(is bool, text string) string {
	if is {
		return text
	}
	return ""
}

func checkStaleFunctions(f *Facts, r *Report) {
	byPCI := map[string][]*NIC{}
	eachNIC(f, r, func(n *NIC) { byPCI[n.PCI] = append(byPCI[n.PCI], n) })
	eachNIC(f, r, func(n *NIC) {
		if n.Kind != "pf" || !n.VFs.asked() {
			return
		}
		vfs, ok := Read(r, n.label()+" vfs", n.VFs)
		if !ok || vfs.Count == 0 || n.switchdev() || !n.Functions.asked() { // rail-agent does not ask
			return
		}
		table, _ := Read(r, n.label()+" functions", n.Functions)
		var free []*Function
		for i := range table {
			if v := &table[i]; !v.Held && isFree(byPCI[v.PCI]) {
				free = append(free, v)
			}
		}
		for _, v := range free {
			r.judged()
			texts, resets := v.unlike(free)
			if len(texts) == 0 {
				continue
			}
			found := r.Find(n.Object(), "virtual function %d (%s) has %s, and no record holds these settings",
				v.Number, v.PCI, strings.Join(texts, " and "))
			found.Part(fmt.Sprintf("vf %d", v.Number))
			if plain(n.Name) {
				found.Fix("ip link set %s vf %d %s", n.Name, v.Number, strings.Join(resets, " "))
			}
		}
	})
}

// isFree reports whether the interfaces of a virtual function are on the host, where nobody makes use of them. The plugins of
// other projects have no records, but take the interface away.
func isFree(nics []*NIC) bool {
	for _, n := range nics {
		if n.Kind != "vf" || n.Name == "" || n.Holder != "" || n.Moving || n.Children > 0 || n.Protected != "" {
			return false
		}
	}
	return len(nics) > 0
}

// unlike returns the settings that are off for most others of the functions, and how to reset them. An administrator sets
// them for all functions, or in each another.
func (f *Function) unlike(all []*Function) (texts, resets []string) {
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
