package configs

import (
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/ruletest"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

// TestTypesOfOthersAreCountedAndNotJudged: types of other projects, and types of rail-cni with a
func TestGatewayOfOneSubnetNeedsNoRoutes(t *testing.T) {
	f := ruletest.NADs(`{"type": "macvlan", "ipam": {"type": "whereabouts", "range": "172.31.1.0/24", "gateway": "172.31.1.1"}}`)
	if got := ruletest.Evidence(t, Rules(), f, "IPAM-GWROUTE"); got != "" {
		t.Error(got)
	}
}

func TestGatewayThatIsExcludedIsFine(t *testing.T) {
	f := ruletest.NADs(`{"type": "macvlan", "ipam": {"type": "whereabouts", "range": "10.0.0.0/24", "gateway": "10.0.0.1", "allow_gateway": true, "exclude": ["10.0.0.1/32"]}}`)
	if got := ruletest.Evidence(t, Rules(), f, "IPAM-GW"); got != "" {
		t.Error(got)
	}
}

func TestGatewayInRangeWithAnotherWhereabouts(t *testing.T) {
	f := ruletest.NADs(`{"type": "macvlan", "ipam": {"type": "whereabouts", "range": "10.0.0.0/24", "gateway": "10.0.0.1"}}`)
	if got := ruletest.Evidence(t, Rules(), f, "IPAM-GW"); got != "" {
		t.Error(got)
	}
	for _, c := range []struct {
		name, ipam string
		binaries   []fact.Binary
		want       bool
	}{
		{"another's", "whereabouts", []fact.Binary{{Path: "/opt/cni/bin/whereabouts", SHA256: "1"}}, true},
		{"another's beside ours with a prefix", "rail-whereabouts", []fact.Binary{{Path: "/opt/cni/bin/whereabouts", SHA256: "1"}, {Path: "/opt/cni/bin/rail-whereabouts", SHA256: "2", Installed: "2", RailCNI: true}}, false},
		{"ours, which may not be run", "whereabouts", []fact.Binary{{Path: "/opt/cni/bin/whereabouts", SHA256: "1", RailCNI: true}}, false},
	} {
		f.Configs.NADs.Value[0].Text = `{"type": "macvlan", "ipam": {"type": "` + c.ipam + `", "range": "10.0.0.0/24", "gateway": "10.0.0.1"}}`
		f.CNI = &fact.CNI{Binaries: fact.Known(c.binaries, "test")}
		if got := ruletest.Evidence(t, Rules(), f, "IPAM-GW"); (got != "") != c.want || c.want && !strings.Contains(got, "not rail-cni's") {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

func TestRangesThatOverlapBehindAnother(t *testing.T) {
	macvlan := func(ipam string) string {
		return `{"type": "macvlan", "ipam": {"type": "whereabouts", "range": "` + ipam + `"}}`
	}
	for _, c := range []struct {
		ranges []string
		want   int
	}{
		{[]string{"10.0.0.0/16", "10.0.5.0/24", "10.0.200.0/24", "10.1.0.0/24"}, 2},
		{[]string{"10.0.0.1-10.0.0.99/16", "10.0.1.0/24"}, 0},                   // the networks overlap, the addresses do not
		{[]string{"10.0.0.0/24", "10.0.0.0/24"}, 0},                             // one pool
		{[]string{"10.0.0.1-10.0.0.9/24", "10.0.0.5-10.0.0.20/24"}, 0},          // the same
		{[]string{`10.0.0.0/24", "network_name": "a`, "10.0.0.0/16"}, 0},        // two address spaces
		{[]string{"fd00::/64", "::ffff:10.0.0.0/104", "fd00::1:0/112"}, 1},      // of both families
		{[]string{"10.0.0.0/8", "10.0.0.0/16", "10.0.0.0/24", "11.0.0.0/8"}, 2}, // nested
	} {
		var texts []string
		for _, r := range c.ranges {
			texts = append(texts, macvlan(r))
		}
		if findings, _ := ruletest.Find(t, Rules(), ruletest.NADs(texts...), "IPAM-OVERLAP"); len(findings) != c.want {
			t.Errorf("%v: %+v", c.ranges, findings)
		}
	}
}

func TestPrefixesOfTheNodeAreReadFromTheNodeFile(t *testing.T) {
	f := ruletest.NADs(`{"type": "macvlan", "rail": "auto", "ipam": {"type": "whereabouts", "prefix": "node"}}`)
	if got := ruletest.Evidence(t, Rules(), f, "IPAM-RAILS"); got != "" {
		t.Errorf("without a node file: %s", got)
	}
	f.Configs.Files.Value = append(f.Configs.Files.Value, fact.Config{
		Kind: fact.NodeFile, Name: "node.yaml", Text: `{rails: [{id: 0, name: a}, {id: 1, name: b}], prefixes: [{rail: 0, prefix: 10.0.4.8/31, gateway: 10.0.4.8}]}`,
	})
	if got := ruletest.Evidence(t, Rules(), f, "IPAM-RAILS"); !strings.Contains(got, "no prefix for rail 1") {
		t.Errorf("%q", got)
	}
}
