package link

import (
	"fmt"
	"slices"
	"testing"
)

func TestLinksByWhichPacketsLeave(t *testing.T) {
	links := []*Link{
		{Index: 1, Name: "lo", Kind: "device"},
		{Index: 2, Name: "ens1", Kind: "device", Master: 4, ParentDev: "0000:3b:00.0"},
		{Index: 3, Name: "ens2", Kind: "device", Master: 4, ParentDev: "0000:3b:00.1"},
		{Index: 4, Name: "bond0", Kind: "bond"},
		{Index: 5, Name: "bond0.100", Kind: "vlan", Lower: 4},
		{Index: 6, Name: "mv0", Kind: "macvlan", Lower: 5},
		{Index: 7, Name: "ens3", Kind: "device", Master: 9, ParentDev: "0000:5e:00.0"},
		{Index: 8, Name: "ens3.7", Kind: "vlan", Lower: 7},
		{Index: 9, Name: "br0", Kind: "bridge"},
		{Index: 10, Name: "vx0", Kind: "vxlan", Lower: 7},
		{Index: 11, Name: "veth0", Kind: "veth", Lower: 7},
		{Index: 12, Name: "away", Kind: "vlan", Lower: 7, LowerInOtherNetns: true},
		{Index: 13, Name: "eth0", Kind: "device", ParentBus: "vmbus", ParentDev: "f8615163"},
		{Index: 14, Name: "enP1s1", Kind: "device", Master: 13, ParentDev: "0001:00:02.0"},
		{Index: 15, Name: "loop1", Kind: "vlan", Lower: 16}, // the kernel allows no cycle
		{Index: 16, Name: "loop2", Kind: "vlan", Lower: 15},
	}
	for name, want := range map[string][]string{
		"ens1":      {"ens1"},
		"bond0":     {"bond0", "ens1", "ens2"},
		"bond0.100": {"bond0.100", "bond0", "ens1", "ens2"},
		"mv0":       {"mv0", "bond0.100", "bond0", "ens1", "ens2"},
		"ens3.7":    {"ens3.7", "ens3"},
		"br0":       {"br0"},
		"vx0":       {"vx0"},
		"veth0":     {"veth0"},
		"away":      {"away"},
		"eth0":      {"eth0", "enP1s1"},
		"loop1":     {"loop1", "loop2"},
	} {
		i := slices.IndexFunc(links, func(l *Link) bool { return l.Name == name })
		var have []string
		for _, l := range below(links[i], links) {
			have = append(have, l.Name)
		}
		if !slices.Equal(have, want) {
			t.Errorf("%s: %v, not %v", name, have, want)
		}
	}
}

// A pod can make such links in its own namespace.
func TestLinksBelowAreBounded(t *testing.T) {
	chain := []*Link{{Index: 1, Kind: "vlan", Lower: 2}}
	for i := 2; i < 10_000; i++ {
		chain = append(chain, &Link{Index: i, Kind: "vlan", Lower: i + 1})
	}
	if got := len(below(chain[0], chain)); got != maxLevels+1 {
		t.Errorf("%d links of a long chain", got)
	}
	wide := []*Link{{Index: 1, Kind: "bond"}}
	for i := 2; i < 10_000; i++ {
		wide = append(wide, &Link{Index: i, Name: fmt.Sprint("m", i), Kind: "device", Master: 1})
	}
	if got := len(below(wide[0], wide)); got != maxLinks {
		t.Errorf("%d links of a large bond", got)
	}
}
