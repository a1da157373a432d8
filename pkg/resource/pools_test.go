package resource

import (
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestSelectors(t *testing.T) {
	all := "ens12np0 ens11np0 ens13np0 ens14np0 ens16np0 ens15np0 ens17np0 ens18np0"
	for text, want := range map[string]string{
		"{rdma: true}":  all + " ens1f0v0 ens1f0v1 ens1f0v2 ens1f0v3",
		"{rdma: false}": "",
		"{vendors: ['15B3'], devices: ['1021', '1023']}":    all,
		"{drivers: [mlx5_core], devices: [101e]}":           "ens1f0v0 ens1f0v1 ens1f0v2 ens1f0v3",
		"{ifNames: [rail0, ens15np0]}":                      "ens12np0 ens15np0",
		"{ifNames: [rail0], vendors: ['8086', '15b3']}":     "ens12np0",
		"{linkTypes: [ether, infiniband], drivers: [i40e]}": "",
		"{linkTypes: [infiniband]}":                         "",
		"{pciAddresses: ['0000:3C:00.0', '0000:1c:00.0']}":  "ens12np0 ens13np0",
		"{rails: [7, 1]}":                                   "ens11np0 ens18np0",
		"{rails: all}":                                      all,
		"{pfNames: [ens1f0]}":                               "ens1f0v0 ens1f0v1 ens1f0v2 ens1f0v3",
		"{pfNames: ['ens1f0#0-1,3']}":                       "ens1f0v0 ens1f0v1 ens1f0v3",
		"{pfNames: ['ENS1F0#2', 'ens1f0#0']}":               "ens1f0v0 ens1f0v2",
		"{pfNames: [ens12np0]}":                             "ens12np0", // a NIC that is no virtual function is its own physical function
		"{pfNames: ['ens12np0#0']}":                         "",
		"{rootDevices: ['0000:99:00.1#1-2']}":               "ens1f0v1 ens1f0v2",
		"{rootDevices: ['0000:1c:00.0']}":                   "ens12np0",
		"{rootDevices: ['0000:99:00.0']}":                   "",
	} {
		c := parse(t, "pools: [{name: a/b, mode: exclusive, select: "+text+"}]")
		rails, _ := eight(t).Assign(server())
		pools, problems := c.Pools(server(), rails)
		if got := names(pools[0]); got != want {
			t.Errorf("%s: %q, want %q; %v", text, got, want, problems)
		}
	}
}

func TestPools(t *testing.T) {
	for name, c := range map[string]struct {
		text, want string // lines of describe; of a problem a part
		noRails    bool
		nics       []NIC // beside the server's
	}{
		"perRail": {text: `pools: [{name: rdma/roce, mode: perRail, select: {rails: [1, 0]}}]`, want: `
rdma/roce_rail_0 exclusive: ens12np0
rdma/roce_rail_1 exclusive: ens11np0`},
		"perRail, of NICs without a rail too": {text: `pools: [{name: a/b, mode: perRail, select: {vendors: ["15b3"], pciAddresses: ["0000:8c:00.0", "0000:99:00.2"]}}]`, want: `
a/b_rail_7 exclusive: ens18np0
NoRail: ens1f0v0 (0000:99:00.2): no rail; add each NIC`},
		"perRail without rails": {text: `pools: [{name: a/b, mode: perRail, select: {devices: ["1021"]}}]`, noRails: true, want: `
NoRail: none of the 8 selected NICs has a rail`},
		"perRail, one rail twice": {text: `pools: [{name: a/b, mode: perRail, select: {rails: [7]}}]`, nics: []NIC{{PCI: "0000:8c:00.0", Names: []string{"port2"}}}, want: `
a/b_rail_7 exclusive: ens18np0
Ambiguous: ens18np0 (0000:8c:00.0) and port2 (0000:8c:00.0) are both rail 7`},
		"shared and exclusive": {text: `pools: [{name: a/s, mode: shared, max: 2, select: {ifNames: [rail0, rail1]}}, {name: a/e, mode: exclusive, select: {ifNames: [rail1, rail2]}}]`, want: `
a/s shared: ens12np0 ens11np0
a/e exclusive: ens13np0
Overlap: ens11np0 (0000:2c:00.0) is in the pool a/s already`},
		"exclusive and perRail": {text: `pools: [{name: a/e, mode: exclusive, select: {rails: [0]}}, {name: a/r, mode: perRail, select: {rails: [0, 1]}}]`, want: `
a/e exclusive: ens12np0
a/r_rail_1 exclusive: ens11np0
Overlap: ens12np0 (0000:1c:00.0) is in the pool a/e already`},
		"two shared": {text: `pools: [{name: a/s, mode: shared, max: 2, select: {rails: [0]}}, {name: a/t, mode: shared, max: 3, select: {rails: [0]}}]`, want: `
a/s shared: ens12np0
a/t shared: ens12np0`},
		"exclusive before shared": {text: `pools: [{name: a/e, mode: exclusive, select: {rails: [0]}}, {name: a/t, mode: shared, max: 3, select: {rails: [0]}}]`, want: `
a/e exclusive: ens12np0
a/t shared: 
Overlap: ens12np0 (0000:1c:00.0) is in the pool a/e already`},
		"overlap allowed": {text: `{allowOverlap: true, pools: [{name: a/e, mode: exclusive, select: {rails: [0]}}, {name: a/t, mode: shared, max: 3, select: {rails: [0]}}]}`, want: `
a/e exclusive: ens12np0
a/t shared: ens12np0`},
		"protected, named": {text: `pools: [{name: a/e, mode: exclusive, select: {ifNames: [eno1, rail0]}}]`, want: `
a/e exclusive: ens12np0
Protected: eno1 (0000:05:00.0) may not be lent: it has the default route`},
		"protected, not named": {text: `pools: [{name: a/e, mode: exclusive, select: {drivers: [i40e]}}]`, want: `
a/e exclusive: `},
		"protected, shared": {text: `pools: [{name: a/s, mode: shared, max: 1, select: {ifNames: [up]}}]`, nics: []NIC{{PCI: "0000:01:00.0", Names: []string{"up"}, CharDevices: []string{"x"}, Protected: "it has the default route"}}, want: `
a/s shared: up`},
		"shared without RDMA": {text: `pools: [{name: a/s, mode: shared, max: 1, select: {linkTypes: [ether], drivers: [i40e]}}]`, want: `
a/s shared: 
NoRDMA: eno1 (0000:05:00.0) has no RDMA char devices`},
		"no PCI function, named": {text: `pools: [{name: a/e, mode: exclusive, select: {ifNames: [rxe0]}}, {name: a/s, mode: shared, max: 1, select: {ifNames: [rxe0]}}]`, nics: []NIC{{Names: []string{"rxe0"}, CharDevices: []string{"x"}}}, want: `
a/e exclusive: 
a/s shared: rxe0
NoPCI: rxe0 has no PCI function`},
		"two netdevs of one function": {text: `pools: [{name: a/e, mode: exclusive, select: {ifNames: [rail0, port2]}}]`, nics: []NIC{{PCI: "0000:1c:00.0", Names: []string{"port2"}}}, want: `
a/e exclusive: ens12np0
Overlap: several netdevs have the PCI function of port2`},
		"nothing selected": {text: `pools: [{name: a/s, mode: shared, max: 8, select: {ifNames: [ens98, ens99], linkTypes: [infiniband]}}, {name: a/r, mode: perRail, select: {drivers: [nosuch]}}]`, want: `
a/s shared: 
NothingSelected: no NIC of this node is selected by ifNames ens98,ens99; linkTypes infiniband
NothingSelected: no NIC of this node is selected by drivers nosuch`},
		"single values that select nothing": {text: `pools: [{name: a/s, mode: shared, max: 8, select: {ifNames: [rail0, ens99, eno1], pciAddresses: ["0000:1c:00.0", "0000:00:1f.6"], rails: [0, 9], drivers: [mlx5_core, nosuch]}}]`, want: `
a/s shared: ens12np0
NothingSelected: rails "9" is not a NIC of this node
NothingSelected: ifNames "ens99" is not a NIC of this node
NothingSelected: ifNames "eno1" is a NIC that the other keys of the selector exclude
NothingSelected: pciAddresses "0000:00:1f.6" is not a NIC of this node`},
	} {
		t.Run(name, func(t *testing.T) {
			nics := append(server(), c.nics...)
			rails, _ := eight(t).Assign(server())
			if c.noRails {
				rails = nil
			}
			got := describe(parse(t, c.text).Pools(nics, rails))
			want := strings.TrimPrefix(c.want, "\n") + "\n"
			g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
			same := len(g) == len(w)
			for i := range w {
				reason, part, problem := strings.Cut(w[i], ": ")
				same = same && i < len(g) && (g[i] == w[i] || problem && !strings.Contains(reason, " ") && strings.HasPrefix(g[i], reason) && strings.Contains(g[i], part) && strings.Contains(g[i], ";"))
			}
			if !same {
				t.Errorf("\n%swant\n%s", got, want)
			}
		})
	}
}

func TestIDs(t *testing.T) {
	rails, _ := eight(t).Assign(server())
	rails["0000:8c:00.0"], rails["0000:1c:00.0"] = 0, 7 // not in the order of PCI addresses
	c := parse(t, `{allowOverlap: true, pools: [
		{name: a/s, mode: shared, max: 3, select: {rails: [1]}}, {name: a/none, mode: shared, max: 3, select: {ifNames: [x]}},
		{name: a/e, mode: exclusive, select: {pciAddresses: ["0000:1c:00.0", "0000:2c:00.0", "0000:8c:00.0", "0000:99:00.2"]}},
		{name: a/r, mode: perRail, select: {rails: [0, 7]}}]}`)
	pools, _ := c.Pools(server(), rails)
	want := map[string][]string{
		"a/s": {"0", "1", "2"}, "a/none": nil, "a/e": {"0000:8c:00.0", "0000:2c:00.0", "0000:1c:00.0", "0000:99:00.2"},
		"a/r_rail_0": {"0000:8c:00.0"}, "a/r_rail_7": {"0000:1c:00.0"},
	}
	if len(pools) != len(want) {
		t.Errorf("%d pools", len(pools))
	}
	for _, p := range pools {
		if !slices.Equal(p.IDs(), want[p.Resource]) {
			t.Errorf("%s: %v, want %v", p.Resource, p.IDs(), want[p.Resource])
		}
		if rail := strings.TrimPrefix(p.Resource, "a/r_rail_"); rail != p.Resource && (p.Rail == nil || !strings.HasSuffix(p.Resource, string(rune('0'+*p.Rail))) || !p.Topology) {
			t.Errorf("%+v", p)
		}
	}
}

// The kubelet and the scheduler see a change of the order as a change of the devices.
func TestThePoolsDoNotDependOnTheOrderOfNICs(t *testing.T) {
	c := parse(t, `{pools: [{name: a/s, mode: shared, max: 3, select: {ifNames: [rail0, rail1, nosuch, none]}}, {name: a/e, mode: exclusive, select: {vendors: ["15b3"]}}, {name: a/r, mode: perRail, select: {rails: all}}]}`)
	rails, _ := eight(t).Assign(server())
	nics := server()
	pools, problems := c.Pools(nics, rails)
	for range 20 {
		rand.Shuffle(len(nics), func(i, j int) { nics[i], nics[j] = nics[j], nics[i] })
		given := slices.Clone(nics)
		p, q := c.Pools(nics, rails)
		if !reflect.DeepEqual(p, pools) || !reflect.DeepEqual(q, problems) {
			t.Fatalf("\n%swant\n%s", describe(p, q), describe(pools, problems))
		}
		if !reflect.DeepEqual(given, nics) {
			t.Fatal("the caller's NICs were changed")
		}
	}
}

func TestCharDevicesOfAContainer(t *testing.T) {
	all := []string{"/dev/infiniband/issm3", "/dev/infiniband/umad3", "/dev/infiniband/uverbs3"}
	for name, c := range map[string]struct {
		link string
		umad bool
		want string
	}{
		"Ethernet":             {Ethernet, false, "issm3 umad3 uverbs3"},
		"InfiniBand":           {InfiniBand, false, "uverbs3"},
		"InfiniBand with umad": {InfiniBand, true, "umad3 uverbs3"},
		"of an unknown kind":   {"", false, "uverbs3"},
	} {
		t.Run(name, func(t *testing.T) {
			pool := Pool{UMAD: c.umad}
			n := NIC{LinkType: c.link, CharDevices: slices.Clone(all)}
			var have []string
			for _, path := range pool.CharDevices(&n) {
				have = append(have, filepath.Base(path))
			}
			if strings.Join(have, " ") != c.want || !slices.Equal(n.CharDevices, all) {
				t.Errorf("%q, and %q of the NIC", have, n.CharDevices)
			}
		})
	}
}

func TestUMADIsAKeyOfEachPool(t *testing.T) {
	for name, mode := range map[string]string{"shared": "shared, max: 2", "exclusive": "exclusive", "perRail": "perRail"} {
		t.Run(name, func(t *testing.T) {
			nics := server()
			rails, _ := eight(t).Assign(nics)
			pools, _ := parse(t, "pools: [{name: a/b, mode: "+mode+", umad: true, select: {rdma: true}}]").Pools(nics, rails)
			if len(pools) == 0 || !pools[0].UMAD {
				t.Errorf("%+v", pools)
			}
		})
	}
}
