package base_test

import (
	"strings"
	"testing"
)

// An agent may read nv-ipam's pools where a node file asks for it, and nowhere else.
func TestAgentsMayReadCIDRPoolsForTheirPrefixesOnly(t *testing.T) {
	for _, c := range []struct {
		set  []string
		want bool
	}{
		{nil, false},
		{[]string{"--set-json", `nodeFile={"prefixesFrom": []}`}, false},
		{[]string{"--set", "readCIDRPools=true"}, true},
		{[]string{"--set-json", `nodeFile={"prefixesFrom": ["nv-ipam"]}`}, true},
		{[]string{"--set-json", `nodePools=[{"name": "a", "nodeSelector": {"x": "y"}}, {"name": "b", "nodeSelector": {"x": "z"}, "nodeFile": {"prefixesFrom": ["nv-ipam"]}}]`}, true},
	} {
		text := rendered(t, c.set...)["agent.yaml"]
		for _, word := range []string{"name: rail-cni-agent-nv-ipam", "resources: [cidrpools]"} {
			if strings.Contains(text, word) != c.want {
				t.Errorf("%q: the right to read CIDRPools is %v", c.set, !c.want)
			}
		}
	}
}

func TestComponentOfNVIPAMIsWhatTheChartMakes(t *testing.T) {
	wantsComponent(t, "nv-ipam", "readCIDRPools=true")
}
