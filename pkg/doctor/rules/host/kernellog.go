package host

import (
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/doctor/subject"
)

// nicIn returns the name of the NIC that a line of the kernel's log names. It returns "" if the
// line names no NIC.
func nicIn(f *fact.Facts, line string) string {
	if f.NICs != nil {
		for i := range f.NICs.List.Value {
			if n := &f.NICs.List.Value[i]; hasWord(line, n.Name) || hasWord(line, n.PCI) {
				return n.Label()
			}
		}
	}
	return ""
}

// trouble is a kind of line in the kernel's log that reports trouble with a NIC. A line is of this
// kind if it contains all the texts, which are in lower case.
type trouble struct {
	texts     []string
	meaning   string
	anyDevice bool // lines about devices that are not NICs also contain the texts
}

// troubles are the kinds of lines that the rule HOST-KMSG reports. The texts of mlx5 are from
// drivers/net/ethernet/mellanox/mlx5/core/events.c and health.c, since Linux 5.10. Two kinds are
// left out: a single error that the PCIe link has corrected, and a slot that is slower than the NIC
// ("available PCIe bandwidth, limited by"), which NIC-PCIE judges.
var troubles = []trouble{
	{[]string{"insufficient power"}, "the slot gives the NIC too little power", false},
	{[]string{"high temperature"}, "the NIC or its transceiver is too hot", true},
	{[]string{"health compromised"}, "the NIC's firmware reports a fault", false},
	{[]string{"mlx5_core", "fatal error", "detected"}, "the NIC's firmware has stopped", false},
	{[]string{"mlx5_core", "access_reg", "failed"}, "the NIC's firmware refused a request", false},
	{[]string{"pcie bus error", "severity=uncorrect"}, "errors on a PCIe link (AER)", true},
	{[]string{"transmit queue", "timed out"}, "the NIC sent nothing for seconds", true},
	{[]string{"tx timeout"}, "the NIC sent nothing for seconds", true},
	{[]string{"cable", "unplugged"}, "a cable was unplugged", false},
	{[]string{"module", "bus stuck"}, "the transceiver does not answer", false},
	{[]string{"port module event", "cable error"}, "the cable or transceiver has a fault, or the NIC does not support it", false},
	{[]string{"peermem", "invalid context"}, "memory of a GPU was registered without its process", false},
}

// troubleOf returns the trouble that a line of the kernel's log reports. It returns nil if the line
// reports none.
func troubleOf(line string) *trouble {
	line = strings.ToLower(line)
	for i := range troubles {
		if !slices.ContainsFunc(troubles[i].texts, func(text string) bool { return !strings.Contains(line, text) }) {
			return &troubles[i]
		}
	}
	return nil
}

// concernsRail reports whether a line of the kernel's log is or may be about a rail's NIC. It looks
// for the names and the PCI addresses of NICs in the line. A line about a physical function also
// concerns its virtual functions. Without facts about NICs, every line counts.
func (t *trouble) concernsRail(f *fact.Facts, r *rule.Report, line string) bool {
	if f.NICs == nil || !f.NICs.List.OK() {
		subject.EachNIC(f, r, func(*fact.NIC) {}) // this notes that the facts are missing
		return true
	}
	named, rail, forPods := false, false, subject.NICsForPods(f, r)
	subject.EachNIC(f, r, func(n *fact.NIC) {
		if !hasWord(line, n.Name) && !hasWord(line, n.PCI) {
			return
		}
		named, rail = true, rail || forPods[n]
		if !rail {
			vfs, _ := rule.Read(r, n.Label()+" vfs", n.VFs)
			rail = vfs.Count > 0
		}
	})
	return rail || !named && !t.anyDevice
}

// hasWord reports whether the line contains the name as a whole word. For example, "eth10: NETDEV
// WATCHDOG" does not contain eth1.
func hasWord(line, name string) bool {
	part := func(c byte) bool {
		return c == '_' || c == '-' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
	}
	for start := 0; name != ""; start++ {
		i := strings.Index(line[start:], name)
		if i < 0 {
			return false
		}
		start += i
		end := start + len(name)
		if (start == 0 || !part(line[start-1])) && (end == len(line) || !part(line[end])) {
			return true
		}
	}
	return false
}

// KernelTrouble reports whether a line of the kernel's log reports trouble with a NIC that a rule
// knows.
func KernelTrouble(line string) bool { return troubleOf(line) != nil }
