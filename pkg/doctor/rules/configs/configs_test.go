package configs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/examples"
	"github.com/rail-cni/rail-cni/integration/ruletest"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

func TestExamplesHaveNoMistakes(t *testing.T) {
	entries, err := examples.Files.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	read := 0
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".yaml") || !strings.Contains(e.Name(), "nad") {
			continue
		}
		networks, err := examples.Networks(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		var texts []string
		for _, n := range networks {
			texts = append(texts, string(n.Config))
		}
		read += len(texts)
		f := ruletest.NADs(texts...)
		for i := range texts {
			f.Configs.NADs.Value[i].Resource = "example.com/any" // package examples leaves annotations out
		}
		for _, r := range rule.Judge(Rules(), f) {
			if len(r.Findings) > 0 {
				t.Errorf("%s: %s: %+v", e.Name(), r.ID, r.Findings)
			}
		}
	}
	if read < 10 {
		t.Errorf("there are only %d networks", read)
	}
}

func TestMistakesInNetworksAreFound(t *testing.T) {
	for _, c := range []struct{ name, text, id, want string }{
		{"no JSON", "{\"cniVersion\": \"1.0.0\",\n\"type\": \"macvlan\",}", "CNI-NAD", "line 2: invalid character"},
		{"a type with a letter too many", `{"cniVersion": "1.0.0", "type": "host-devices"}`, "CNI-TYPE", `the type "host-devices" is unknown: did you mean "host-device"?`},
		{"a type in capitals", `{"cniVersion": "1.0.0", "type": "MacVLAN"}`, "CNI-TYPE", `did you mean "macvlan"?`},
		{"a type with exchanged letters", `{"cniVersion": "1.0.0", "plugins": [{"type": "amcvlan"}]}`, "CNI-TYPE", `did you mean "macvlan"?`},
		{"an ipam type with a letter less", `{"type": "macvlan", "ipam": {"type": "whereabout", "range": "10.0.0.0/24"}}`, "CNI-TYPE", `the type "whereabout" of ipam is unknown: did you mean "whereabouts"?`},
		{"an ipam type of another plugin", `{"type": "bridge", "ipam": {"type": "whereabuots"}}`, "CNI-TYPE", `did you mean "whereabouts"?`},
		{"no type", `{"name": "a"}`, "CNI-NAD", "no type"},
		{"null in a list", `{"plugins": [null]}`, "CNI-NAD", "plugins[0] is null"},
		{"bad range", `{"type": "rail-macvlan", "ipam": {"type": "whereabouts", "range": "10.0.0.0"}}`, "CNI-NAD", "invalid CIDR"},
		{"keepAddress and ipam", `{"type": "host-device", "keepAddress": true, "ipam": {"type": "whereabouts", "range": "10.0.0.0/24"}}`, "CNI-NAD", "remove one of the two keys"},
		{"key of ipam", `{"type": "macvlan", "ipam": {"type": "whereabouts", "range": "10.0.0.0/24", "exlude": []}}`, "CNI-KEY", `"ipam.exlude" is unknown: did you mean "exclude"?`},
		{"key in a list", `{"cniVersion": "1.0.0", "plugins": [{"type": "host-device", "devise": "a"}]}`, "CNI-KEY", `"devise" is unknown: did you mean "device"?`},
		{"list with an old version", `{"cniVersion": "0.2.0", "plugins": [{"type": "macvlan"}]}`, "CNI-VERSION", "the network has a list of plugins"},
		{"second interface", `{"cniVersion": "1.0.0", "plugins": [{"type": "macvlan"}, {"type": "host-device", "device": "a"}]}`, "CNI-CHAIN", "host-device makes the interface, but comes after macvlan"},
		{"rdma alone", `{"cniVersion": "1.0.0", "type": "rdma"}`, "CNI-CHAIN", "first plugin"},
		{"no selector", `{"cniVersion": "1.0.0", "type": "host-device"}`, "CNI-NIC", "selects no NIC"},
		{"sameHost without rail", `{"type": "macvlan", "rail": 1, "ipam": {"type": "whereabouts", "range": "10.0.0.0/24", "sameHost": true}}`, "CNI-NAD", "sameHost"},
		{"ranges of rails overlap", `{"type": "macvlan", "rail": "auto", "ipam": {"type": "whereabouts", "range": "10.0.${rail}.0/16"}}`, "IPAM-RAILS", "overlap"},
		{"sameHost entry by entry", `{"name": "a", "type": "host-device", "rail": "auto", "ipam": {"type": "whereabouts", "range": "10.${rail}.0.0/16", "sameHost": true}}`, "IPAM-RAILS", `network a has "sameHost"`},
		{"gateway of the rail", `{"type": "macvlan", "rail": "auto", "ipam": {"type": "whereabouts", "range": "10.${rail}.0.0/16", "gateway": "10.0.0.1"}}`, "IPAM-RAILS", "is not in the range"},
		{"gateway of a route", `{"type": "macvlan", "ipam": {"type": "whereabouts", "range": "10.0.0.0/24", "allow_gateway": true, "routes": [{"dst": "10.9.0.0/16", "gw": "10.0.0.9"}]}}`, "IPAM-GW", "the gateway 10.0.0.9"},
		{"gateway of a node without routes", `{"type": "macvlan", "rail": "auto", "ipam": {"type": "whereabouts", "range": "10.${rail}.${node}.0/24", "gateway": "10.${rail}.${node}.1"}}`, "IPAM-GWROUTE", "no routes"},
		{"range too small", `{"type": "macvlan", "ipam": {"type": "whereabouts", "range": "10.0.0.0/31"}}`, "IPAM-EMPTY", "too small"},
	} {
		if got := ruletest.Evidence(t, Rules(), ruletest.NADs(c.text), c.id); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s has %q, not %q", c.name, c.id, got, c.want)
		}
	}
}

// TestOnlyTheSRIOVOfOthersNeedsRDMABehindIt: rail-cni's sriov moves the RDMA device itself.
func TestOnlyTheSRIOVOfOthersNeedsRDMABehindIt(t *testing.T) {
	f := ruletest.NADs(`{"type": "sriov", "ipam": {}}`)
	f.Host = &fact.Host{RDMAMode: fact.Known("exclusive", "netlink")}
	if got := ruletest.Evidence(t, Rules(), f, "CNI-MODE"); !strings.Contains(got, "rdma does not follow sriov") {
		t.Errorf("%q", got)
	}
	f.CNI = &fact.CNI{Binaries: fact.Known([]fact.Binary{{Path: "/opt/cni/bin/sriov", RailCNI: true}}, "files")}
	if got := ruletest.Evidence(t, Rules(), f, "CNI-MODE"); got != "" {
		t.Error(got)
	}
}

// TestNetworksThatCannotBeListedAreUnknown: without the API server nothing is known about the
// networks, but the node file is still judged.
func TestNetworksThatCannotBeListedAreUnknown(t *testing.T) {
	f := ruletest.NADs()
	f.Configs.Files = fact.Known([]fact.Config{{Kind: fact.NodeFile, Name: "node.yaml", Text: "rails: {auto: pciOrder}"}}, "test")
	ruletest.Away(&f.Configs.NADs)
	for id, want := range map[string]rule.Status{
		"CNI-NAD": rule.Unknown, "CNI-KEY": rule.Unknown, "CNI-NIC": rule.Unknown, "IPAM-GW": rule.Unknown, "IPAM-OVERLAP": rule.Unknown, "IPAM-GWROUTE": rule.Unknown, "NODE-FILE": rule.OK,
	} {
		if _, status := ruletest.Find(t, Rules(), f, id); status != want {
			t.Errorf("%s is %s, not %s", id, status, want)
		}
	}
}

// TestNoRuleReadsAFile: a stranger's configuration may name a file. Only the plugin may read this
// file.
func TestNoRuleReadsAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "whereabouts.conf")
	if err := os.WriteFile(path, []byte("not JSON"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"configuration_path", "Configuration_Path"} {
		f := ruletest.NADs(`{"type": "macvlan", "IPAM": {"type": "whereabouts", "range": "10.0.0.0/24", "` + key + `": "` + path + `"}}`)
		if got := ruletest.Evidence(t, Rules(), f, "CNI-NAD"); got != "" {
			t.Errorf("%s: %s", key, got)
		}
	}
}

func TestMacvlanOnAnInterfaceThatIsNoNIC(t *testing.T) {
	f := ruletest.NADs(`{"type": "macvlan", "master": "bond0.5", "mtu": 9000}`, `{"type": "macvlan", "master": "storage"}`, `{"type": "host-device", "device": "bond1"}`)
	f.NICs = &fact.NICs{
		List:   fact.Known([]fact.NIC{{Name: "ens1", AdminUp: fact.Known(true, "test"), MTU: fact.Known(9000, "test")}}, "test"),
		Others: fact.Known([]fact.HostInterface{{Name: "bond0.5", AltNames: []string{"storage"}, MTU: 1500}}, "test"),
	}
	if got := ruletest.Evidence(t, Rules(), f, "CNI-NIC"); got != "NAD default/c: no NIC is called bond1" {
		t.Errorf("CNI-NIC: %q", got)
	}
	if got := ruletest.Evidence(t, Rules(), f, "CNI-MTU"); got != "NAD default/a: its mtu is 9000, but the MTU of bond0.5 is 1500" {
		t.Errorf("CNI-MTU: %q", got)
	}
	ruletest.Away(&f.NICs.Others)
	if _, status := ruletest.Find(t, Rules(), f, "CNI-MTU"); status != rule.Unknown {
		t.Errorf("without the interfaces CNI-MTU is %s", status)
	}
}
