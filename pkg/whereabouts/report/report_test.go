package report

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/pkg/ipam/plan"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// network returns the network of a plugin with these keys in its ipam part, on its first rail.
func network(t *testing.T, name, ipam string) *Network {
	t.Helper()
	found, err := parseNetworks(name, []byte(`{"cniVersion":"1.0.0","name":"n","type":"macvlan","ipam":{"type":"whereabouts",`+ipam+`}}`))
	if err != nil || len(found) == 0 {
		t.Fatalf("%d networks, %v", len(found), err)
	}
	return &found[0]
}

func sourcesOf(t *testing.T, n *Network) []source {
	t.Helper()
	all, err := n.sources(plan.Slice{})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestExplainPassesOverWhatIsTaken(t *testing.T) {
	s := sourcesOf(t, network(t, "a", `"range":"10.0.0.0/28","gateway":"10.0.0.2","exclude":["10.0.0.4/31"]`))[0]
	state := &api.PoolState{
		Name: s.Pool.Name(), Base: s.Pool.Prefix.Addr(), Prefix: s.Pool.Prefix,
		Entries: map[string]api.Entry{"1": {PodRef: "ns/pod"}, "3": {}},
	}
	x := s.explain(state, map[netip.Addr]string{netip.MustParseAddr("10.0.0.6"): "ns/other"})
	var got []string
	for _, step := range x.Steps {
		got = append(got, fmt.Sprint(step.From, " ", step.To, " ", step.Why))
	}
	want := []string{
		"10.0.0.1 10.0.0.1 held by ns/pod",
		"10.0.0.2 10.0.0.2 it is a gateway",
		"10.0.0.3 10.0.0.3 held by a placeholder",
		"10.0.0.4 10.0.0.5 it is excluded",
		"10.0.0.6 10.0.0.6 another pool has reserved it for ns/other",
	}
	if !slices.Equal(got, want) || x.Next.String() != "10.0.0.7" || x.Error != "" {
		t.Errorf("next %s, error %q, after\n%s", x.Next, x.Error, strings.Join(got, "\n"))
	}
}

func TestCheckComparesRangesOfOneAddressSpace(t *testing.T) {
	for _, test := range []struct {
		name, a, b string
		want       string // part of the only verdict; "" for none
	}{
		{"apart", `"range":"10.0.0.0/24"`, `"range":"10.0.1.0/24"`, ""},
		{"one pool", `"range":"10.0.0.0/24"`, `"range":"10.0.0.0/24"`, ""},
		{"overlap that is watched", `"range":"10.0.0.0/24"`, `"range":"10.0.0.0/16"`, ""},
		{"overlap that is not", `"range":"10.0.0.0/24"`, `"range":"10.0.0.0/16","enable_overlapping_ranges":false`, "one address may be assigned twice"},
		{"overlap in another space", `"range":"10.0.0.0/24"`, `"range":"10.0.0.0/16","enable_overlapping_ranges":false,"network_name":"other"`, ""},
		{"another's gateway", `"range":"10.0.0.0/24","gateway":"10.0.0.1"`, `"range":"10.0.0.0/24"`, "the network hands out 10.0.0.1, the gateway of network a"},
		{"bounds apart", `"range":"10.0.0.0/24","range_end":"10.0.0.9"`, `"range":"10.0.0.0/16","range_start":"10.0.0.10","enable_overlapping_ranges":false`, ""},
		{"blocks of one size", `"range":"10.0.0.0/24","block_size":4`, `"range":"10.0.0.0/16","block_size":4,"enable_overlapping_ranges":false`, ""},
		{"blocks of two sizes", `"range":"10.0.0.0/24","block_size":4`, `"range":"10.0.0.0/16","block_size":8`, "10.0.0.0/24 (block_size 4) overlaps 10.0.0.0/16 of network b (block_size 8): one address may be assigned twice"},
		{"blocks and none", `"range":"10.0.0.0/24","block_size":4`, `"range":"10.0.0.0/16"`, "10.0.0.0/24 (block_size 4) overlaps 10.0.0.0/16 of network b (no block_size): one address may be assigned twice"},
		{"blocks and none in one pool", `"range":"10.0.0.0/24"`, `"range":"10.0.0.0/24","block_size":4`, "the network has no block_size, and network b with the same pool has block_size 4: the pods of one of the two get no address"},
		{"blocks and none in another space", `"range":"10.0.0.0/24","block_size":4`, `"range":"10.0.0.0/16","network_name":"other"`, ""},
		{"blocks on all rails beside others", `"range":"10.${rail}.0.0/24","block_size":4,"sameHost":true`, `"range":"10.0.0.0/16","block_size":4`, "one of them has sameHost: one address may be assigned twice"},
		{"blocks and none, bounds apart", `"range":"10.0.0.0/24","range_end":"10.0.0.9","block_size":4`, `"range":"10.0.0.0/16","range_start":"10.0.0.10"`, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, b := sourcesOf(t, network(t, "a", test.a)), sourcesOf(t, network(t, "b", test.b))
			k := &checker{}
			k.pair(&a[0], &b[0])
			switch {
			case test.want == "" && len(k.verdicts) > 0:
				t.Errorf("said: %+v", k.verdicts)
			case test.want != "" && (len(k.verdicts) != 1 || !strings.Contains(k.verdicts[0].What, test.want)):
				t.Errorf("said %+v, want %q", k.verdicts, test.want)
			}
		})
	}
}

func TestNetworksOfAPluginList(t *testing.T) {
	list := `{"cniVersion":"1.0.0","name":"net","plugins":[
		{"type":"macvlan","ipam":{"type":"rail-whereabouts","range":"10.0.0.0/24"}},
		{"type":"tuning"},
		{"type":"bridge","ipam":{"type":"host-local"}}]}`
	found, err := parseNetworks("file", []byte(list))
	if err != nil || len(found) != 1 || found[0].Name != "file" || found[0].Conf.Name != "net" {
		t.Errorf("%+v, %v", found, err)
	}
	if found, err := parseNetworks("file", []byte(`{"name":"net","ipam":{"type":"whereabouts","range":"10.0.0.0/33"}}`)); err == nil {
		t.Errorf("a range that is none is network %+v", found)
	}
	if _, err := parseNetworks("file", []byte(`{`)); err == nil || !strings.Contains(err.Error(), "network file") {
		t.Errorf("half a file: %v", err)
	}
}

func TestNetworkWithAPoolForEachRail(t *testing.T) {
	n := func(ipam string) []Network {
		found, err := parseNetworks("ns/rails", []byte(`{"cniVersion":"1.0.0","name":"n","type":"host-device","rail":"auto","ipam":{"type":"whereabouts",`+ipam+`}}`))
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	of := func(networks []Network) string {
		var all []string
		for i := range networks {
			for _, s := range sourcesOf(t, &networks[i]) {
				all = append(all, s.Pool.Name())
			}
		}
		return strings.Join(all, " ")
	}
	pool := func(name string) *api.PoolState { return &api.PoolState{Name: name} }
	all := n(`"range":"10.${rail}.0.0/16","gateway":"10.${rail}.0.1","sameHost":true,"block_size":16`)
	if len(all) != rails || all[7].Conf.Gateway.String() != "10.7.0.1" {
		t.Fatalf("%d networks", len(all))
	}
	some := &api.Survey{Pools: []*api.PoolState{pool("10.2.0.0-16")}, Divided: []*api.PoolState{pool("10.9.0.0-16")}}
	if got := of(used(slices.Clone(all), some)); got != "10.2.0.0-16 10.9.0.0-16" {
		t.Errorf("used: %s", got)
	}
	if got := of(used(slices.Clone(all), &api.Survey{})); got != "10.0.0.0-16" {
		t.Errorf("without pools: %s", got)
	}
	for _, ofNode := range []string{`"range":"10.${rail}.${node}.0/24"`, `"prefix":"node"`} {
		if got := n(ofNode); len(got) > 0 {
			t.Errorf("%s: %d networks", ofNode, len(got))
		}
	}
}

// A block of host parts is shown in the pool of each rail.
func TestBlocksOfHostPartsAreInThePoolOfEachRail(t *testing.T) {
	prefix := netip.MustParsePrefix
	block := func(name, p string) *api.PoolState {
		return &api.PoolState{
			Name: name, Prefix: prefix(p), Base: prefix(p).Addr(), Block: &api.Block{Holder: api.Holder{Node: "node1", Claim: "x"}},
			Entries: map[string]api.Entry{"1": {ContainerID: "c", PodRef: "ns/pod", IfName: "net1,net2"}},
		}
	}
	for _, space := range []string{"", "blue-"} {
		guard := func(name, p string, sameHost bool) *api.PoolState {
			return &api.PoolState{Name: space + name, Prefix: prefix(p), BlockSize: 16, SameHost: sameHost}
		}
		views, err := dividedPools(&api.Survey{
			Divided: []*api.PoolState{
				guard("10.0.0.0-16", "10.0.0.0/16", true), guard("10.1.0.0-16", "10.1.0.0/16", true), guard("10.9.0.0-16", "10.9.0.0/16", false),
				guard("rail-cni-host-0.0.0.0-16", "0.0.0.0/16", false),
			},
			Blocks: []*api.PoolState{block(space+"rail-cni-block-0.0.0.16-28", "0.0.0.16/28"), block(space+"rail-cni-block-10.9.0.32-28", "10.9.0.32/28")},
		})
		if err != nil {
			t.Error(err)
		}
		var got []string
		for _, v := range views {
			got = append(got, fmt.Sprint(v.Range, " ", v.Divided.Blocks[0].Range, " ", v.Holders[0].Address, " ", v.Problems))
		}
		want := "10.0.0.0/16 10.0.0.16/28 10.0.0.17 []; 10.1.0.0/16 10.1.0.16/28 10.1.0.17 []; 10.9.0.0/16 10.9.0.32/28 10.9.0.33 []"
		if strings.Join(got, "; ") != want {
			t.Errorf("got  %s\nwant %s", strings.Join(got, "; "), want)
		}
	}
}
