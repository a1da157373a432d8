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

// network returns the only network of a plugin with these keys in its ipam part.
func network(t *testing.T, name, ipam string) *Network {
	t.Helper()
	found, err := parseNetworks(name, []byte(`{"cniVersion":"1.0.0","name":"n","type":"macvlan","ipam":{"type":"whereabouts",`+ipam+`}}`))
	if err != nil || len(found) != 1 {
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
		{"overlap that is not", `"range":"10.0.0.0/24"`, `"range":"10.0.0.0/16","enable_overlapping_ranges":false`, "one address may be given twice"},
		{"overlap in another space", `"range":"10.0.0.0/24"`, `"range":"10.0.0.0/16","enable_overlapping_ranges":false,"network_name":"other"`, ""},
		{"another's gateway", `"range":"10.0.0.0/24","gateway":"10.0.0.1"`, `"range":"10.0.0.0/24"`, "it hands out 10.0.0.1, the gateway of network a"},
		{"bounds apart", `"range":"10.0.0.0/24","range_end":"10.0.0.9"`, `"range":"10.0.0.0/16","range_start":"10.0.0.10","enable_overlapping_ranges":false`, ""},
		{"blocks of one size", `"range":"10.0.0.0/24","block_size":4`, `"range":"10.0.0.0/16","block_size":4,"enable_overlapping_ranges":false`, ""},
		{"blocks of two sizes", `"range":"10.0.0.0/24","block_size":4`, `"range":"10.0.0.0/16","block_size":8`, "10.0.0.0/24 (block_size 4) overlaps 10.0.0.0/16 of network b (block_size 8): one address may be given twice"},
		{"blocks and none", `"range":"10.0.0.0/24","block_size":4`, `"range":"10.0.0.0/16"`, "10.0.0.0/24 (block_size 4) overlaps 10.0.0.0/16 of network b (no block_size): one address may be given twice"},
		{"blocks and none in one pool", `"range":"10.0.0.0/24"`, `"range":"10.0.0.0/24","block_size":4`, "it has no block_size, and network b with the same pool has block_size 4: the pods of one of them get no address"},
		{"blocks and none in another space", `"range":"10.0.0.0/24","block_size":4`, `"range":"10.0.0.0/16","network_name":"other"`, ""},
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
