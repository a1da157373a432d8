package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

var nicRules = []Rule{
	{
		ID: "NIC-CARRIER", Scope: NodeScope, Severity: Fail,
		Expects:     "Each NIC with a rail has a carrier.",
		Consequence: "The pod that gets the NIC waits for its link, or starts without this rail, and collective operations stop or fall back to TCP.",
		Cure:        "Check the cable, the transceiver and the switch port; a NIC that is set down on purpose needs no rail in the node file.",
		Check: func(f *Facts, r *Report) {
			eachRail(f, r, func(n *NIC) {
				up, known := Read(r, n.Name+" adminUp", n.AdminUp)
				if !known || !up {
					return // without an administrator's "up" there is no carrier to judge
				}
				if carrier, ok := Read(r, n.Name+" carrier", n.Carrier); ok && !carrier {
					r.Find(n.Object(), "it is up and has no carrier")
				}
			})
		},
	},
	{
		ID: "NIC-PCIE", Scope: NodeScope, Severity: Warn,
		Expects:     "The link of each rail's NIC to its slot has the speed and width that both ends can have.",
		Consequence: "The slot bounds the rail's bandwidth, and the slowest rail that of every collective operation.",
		Cure:        "Reseat the NIC, check the slot's settings in the firmware setup (bifurcation, generation) and the kernel's log for AER errors; a cold reset often retrains the link.",
		Check: func(f *Facts, r *Report) {
			eachRail(f, r, func(n *NIC) {
				p, ok := Read(r, n.Name+" pcie", n.PCIe)
				if ok && (p.GTs < p.MaxGTs || p.Width < p.MaxWidth) {
					r.Find(n.Object(), "%g GT/s × %d lanes of %g GT/s × %d: about %.0f of %.0f Gb/s", p.GTs, p.Width, p.MaxGTs, p.MaxWidth, p.gbps(), (&PCIe{GTs: p.MaxGTs, Width: p.MaxWidth}).gbps())
				}
			})
		},
	},
	{
		ID: "NIC-SPEED", Scope: NodeScope, Severity: Warn,
		Expects:     "All rails have the same speed.",
		Consequence: "The slowest rail sets the speed of every collective operation.",
		Cure:        "Compare the port's and the switch's speed settings with those of the other rails (ethtool NIC).",
		Check: func(f *Facts, r *Report) {
			differ(f, r, "mbps", func(n *NIC) Fact[int64] { return n.Mbps }, func(v int64) string { return fmt.Sprintf("%g Gb/s", float64(v)/1000) })
		},
	},
	{
		ID: "NIC-FIRMWARE", Scope: NodeScope, Severity: Warn,
		Expects:     "All rails' NICs of one model have the same firmware.",
		Consequence: "Rails behave differently under congestion, and errors are hard to compare.",
		Cure:        "Install the same firmware on all of them (flint, mlxfwmanager).",
		Check: func(f *Facts, r *Report) {
			differ(f, r, "firmware", func(n *NIC) Fact[string] { return n.Firmware }, func(v string) string { return "firmware " + v })
		},
	},
}

// differ reports the NICs of rails whose value is not that of most NICs of the same driver.
// Empty values are not compared.
func differ[T comparable](f *Facts, r *Report, name string, of func(*NIC) Fact[T], text func(T) string) {
	type group struct {
		count map[T]int
		nics  []*NIC
	}
	groups := map[string]*group{}
	eachRail(f, r, func(n *NIC) {
		value, ok := Read(r, n.Name+" "+name, of(n))
		var none T
		if !ok || value == none {
			return
		}
		g := groups[n.Driver]
		if g == nil {
			g = &group{count: map[T]int{}}
			groups[n.Driver] = g
		}
		g.count[value]++
		g.nics = append(g.nics, n)
	})
	for _, driver := range slices.Sorted(maps.Keys(groups)) {
		g := groups[driver]
		if len(g.count) < 2 {
			continue
		}
		// Values in the order of the NICs, so that a tie is judged the same way each time.
		most := of(g.nics[0]).Value
		for _, n := range g.nics {
			if v := of(n).Value; g.count[v] > g.count[most] {
				most = v
			}
		}
		for _, n := range g.nics {
			if v := of(n).Value; v != most {
				r.Find(n.Object(), "it has %s, and %d of %d have %s", text(v), g.count[most], len(g.nics), text(most))
			}
		}
	}
}

// gbps returns the bandwidth of the link in gigabits per second, after its line code
// (8b/10b up to 5 GT/s, 128b/130b above) and without the overhead of its packets.
func (p *PCIe) gbps() float64 {
	if p.GTs <= 5 {
		return p.GTs * float64(p.Width) * 8 / 10
	}
	return p.GTs * float64(p.Width) * 128 / 130
}

// isMellanox reports whether the NIC is one of NVIDIA's (15b3).
func (n *NIC) isMellanox() bool { return strings.EqualFold(strings.TrimPrefix(n.Vendor, "0x"), "15b3") }
