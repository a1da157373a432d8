package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/docs"
	"github.com/rail-cni/rail-cni/examples"
	"github.com/rail-cni/rail-cni/pkg/publish"
)

// found returns the findings of a rule, and its status.
func found(t *testing.T, f *Facts, id string) ([]Finding, Status) {
	t.Helper()
	results := Judge(Rules(), f)
	i := slices.IndexFunc(results, func(r Result) bool { return r.ID == id })
	if i < 0 {
		t.Fatalf("there is no rule %s", id)
	}
	return results[i].Findings, results[i].Status
}

// evidence returns the evidence of a rule's findings, each with its object.
func evidence(t *testing.T, f *Facts, id string) string {
	t.Helper()
	findings, _ := found(t, f, id)
	var all []string
	for _, x := range findings {
		all = append(all, x.Object+": "+x.Evidence)
	}
	return strings.Join(all, "\n")
}

func nads(texts ...string) *Facts {
	var files []Config
	for i, text := range texts {
		files = append(files, Config{Kind: NADConfig, Name: "default/" + string(rune('a'+i)), Text: text})
	}
	return &Facts{Schema: Schema, Configs: &Configs{Files: Known([]Config{}, "test"), NADs: Known(files, "test"), Networks: Known(map[string][]string{}, "test")}}
}

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
		f := nads(texts...)
		for i := range texts {
			f.Configs.NADs.Value[i].Resource = "example.com/any" // package examples leaves annotations out
		}
		for _, r := range Judge(Select(Rules(), ConfigScope), f) {
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
		if got := evidence(t, nads(c.text), c.id); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s has %q, not %q", c.name, c.id, got, c.want)
		}
	}
}

// TestTypesOfOthersAreCountedAndNotJudged: types of other projects, and types of rail-cni with a
// prefix, are not misspellings.
func TestTypesOfOthersAreCountedAndNotJudged(t *testing.T) {
	f := nads(`{"cniVersion": "1.0.0", "plugins": [{"type": "rail-host-device", "device": "a", "ipam": {"type": "rail-whereabouts", "range": "10.0.0.0/24"}}, {"type": "tuning"}, {"type": "rdma"}]}`,
		`{"type": "ipvlan", "ipam": {"type": "host-local"}}`, `{"type": "bridge", "ipam": {"type": "static"}}`, `{"type": "bridge"}`, `{"type": "sriov", "ipam": {}}`)
	if got := evidence(t, f, "CNI-TYPE"); got != "" {
		t.Error(got)
	}
	want := []string{"not checked: 4 plugins of others (bridge, ipvlan, tuning)", "not checked: 2 IPAM plugins of others (host-local, static)"}
	if got := NotJudged(f); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := NotJudged(nads(`{"type": "macvlan"}`)); len(got) > 0 {
		t.Errorf("%q", got)
	}
}

// TestTypesThatNoPluginServesAsTheNetworkAsks: plugins of other projects may be installed
// intentionally. That is a problem only if a network needs rail-cni's plugin.
func TestTypesThatNoPluginServesAsTheNetworkAsks(t *testing.T) {
	const function = `{"cniVersion": "1.0.0", "name": "n", "type": "sriov", "vlan": 7, "ipam": {"type": "whereabouts", "range": "10.0.0.0/24"}}`
	with := func(old, to string) string { return strings.Replace(function, old, to, 1) }
	others := func(name string) func(*CNI) {
		return func(c *CNI) {
			c.Binaries.Value = append(c.Binaries.Value, Binary{Path: "/opt/cni/bin/" + name, SHA256: "1"})
		}
	}
	for name, c := range map[string]struct {
		text, resource string
		set            func(*CNI)
		want           string // a part of the evidence
	}{
		"no file":                   {text: function, want: "on the node there is no plugin sriov"},
		"another project's":         {text: function, set: others("sriov")},
		"another's with a key":      {text: with(`"vlan"`, `"linkTimeout": "5s", "Rail": 1, "vlan"`), set: others("sriov"), want: "does not read rail, linkTimeout"},
		"another's with a variable": {text: with("10.0", "10.${rail}"), set: others("sriov"), want: "does not read ${rail}"},
		"a pool of another node":    {text: function, resource: "example.com/elsewhere"},
		"ours under a prefix":       {text: with(`"sriov"`, `"rail-sriov"`)},
		"another type":              {text: with(`"sriov"`, `"bridge"`)},
		"InfiniBand":                {text: with(`"sriov"`, `"ib-sriov"`), want: "there is no plugin ib-sriov"},
		"ib-sriov-cni's key":        {text: strings.Replace(with(`"sriov"`, `"ib-sriov"`), `"vlan"`, `"pkey": "0x6", "vlan"`, 1), set: others("ib-sriov")},
		"a node without ours":       {text: function, set: func(c *CNI) { c.Binaries.Value = nil }},
		"a file that is not ours now": {text: with(`"vlan"`, `"rail": 1, "vlan"`), set: func(c *CNI) {
			c.Binaries.Value = append(c.Binaries.Value, Binary{Path: "/opt/cni/bin/sriov", SHA256: "1", Installed: "2"}) // CNI-BINARY
		}},
		"whereabouts": {text: with(`"range"`, `"block_size": 16, "range"`), want: "whereabouts is not rail-cni's, and does not read block_size", set: func(c *CNI) {
			others("sriov")(c)
			c.Binaries.Value[2] = Binary{Path: "/opt/cni/bin/whereabouts", SHA256: "1"}
		}},
		"whereabouts without our keys": {text: function, set: func(c *CNI) {
			others("sriov")(c)
			c.Binaries.Value[2] = Binary{Path: "/opt/cni/bin/whereabouts", SHA256: "1"}
		}},
	} {
		f := healthy()
		f.Configs.NADs.Value = []Config{{Kind: NADConfig, Name: "default/n", Text: c.text, Resource: cmp.Or(c.resource, "example.com/roce_rail_0")}}
		if c.set != nil {
			c.set(f.CNI)
		}
		if got := evidence(t, f, "CNI-FOREIGN-TYPE"); (got != "") != (c.want != "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestTypesThatNoPluginServesOnSomeNodes(t *testing.T) {
	f := healthy()
	f.CNI = nil
	for i, n := range f.Cluster.Nodes {
		healthyNode(n)
		n.Node = fmt.Sprintf("node-%d", i)
		if i < 2 {
			n.CNI.Binaries.Value = n.CNI.Binaries.Value[:3]
		}
	}
	if got := evidence(t, f, "CNI-FOREIGN-TYPE"); got != "NAD default/ib-net: on node-0, node-1 there is no plugin ipoib" {
		t.Error(got)
	}
}

func TestKeysOfOursAreMarkedInTheReference(t *testing.T) {
	const page = "docs/reference/keys.md"
	for _, of := range []struct {
		sections []string
		keys     []string
	}{{[]string{"Every plugin", "host-device", "macvlan", "ipoib", "rdma"}, ourKeys}, {[]string{"whereabouts"}, ourIPAMKeys}} {
		marked := map[string]bool{}
		for _, section := range of.sections {
			for _, row := range docs.Rows(docs.Section(t, page, section)) {
				for _, key := range docs.Code(row[0]) {
					top, _, _ := strings.Cut(key, ".")
					marked[top] = marked[top] || strings.HasPrefix(row[1], "**ours**")
				}
			}
		}
		for _, key := range of.keys {
			if !marked[key] {
				t.Errorf("%s is not marked", key)
			}
			delete(marked, key)
		}
		// In other plugins these keys have another meaning, or are an error.
		for _, key := range []string{"mtu", "mode", "railRanges", "allow_gateway"} {
			delete(marked, key)
		}
		for key, ours := range marked {
			if ours {
				t.Errorf("%s is ours, and not looked for", key)
			}
		}
	}
}

// TestOnlyTheSRIOVOfOthersNeedsRDMABehindIt: rail-cni's sriov moves the RDMA device itself.
func TestOnlyTheSRIOVOfOthersNeedsRDMABehindIt(t *testing.T) {
	f := nads(`{"type": "sriov", "ipam": {}}`)
	f.Host = &Host{RDMAMode: Known("exclusive", "netlink")}
	if got := evidence(t, f, "CNI-MODE"); !strings.Contains(got, "rdma does not follow sriov") {
		t.Errorf("%q", got)
	}
	f.CNI = &CNI{Binaries: Known([]Binary{{Path: "/opt/cni/bin/sriov", RailCNI: true}}, "files")}
	if got := evidence(t, f, "CNI-MODE"); got != "" {
		t.Error(got)
	}
}

func TestGatewayOfOneSubnetNeedsNoRoutes(t *testing.T) {
	f := nads(`{"type": "macvlan", "ipam": {"type": "whereabouts", "range": "172.31.1.0/24", "gateway": "172.31.1.1"}}`)
	if got := evidence(t, f, "IPAM-GWROUTE"); got != "" {
		t.Error(got)
	}
}

func TestMacvlanOnAnInterfaceThatIsNoNIC(t *testing.T) {
	f := nads(`{"type": "macvlan", "master": "bond0.5", "mtu": 9000}`, `{"type": "macvlan", "master": "storage"}`, `{"type": "host-device", "device": "bond1"}`)
	f.NICs = &NICs{
		List:   Known([]NIC{{Name: "ens1", AdminUp: Known(true, "test"), MTU: Known(9000, "test")}}, "test"),
		Others: Known([]HostInterface{{Name: "bond0.5", AltNames: []string{"storage"}, MTU: 1500}}, "test"),
	}
	if got := evidence(t, f, "CNI-NIC"); got != "NAD default/c: no NIC is called bond1" {
		t.Errorf("CNI-NIC: %q", got)
	}
	if got := evidence(t, f, "CNI-MTU"); got != "NAD default/a: its mtu is 9000, but the MTU of bond0.5 is 1500" {
		t.Errorf("CNI-MTU: %q", got)
	}
	away(&f.NICs.Others)
	if _, status := found(t, f, "CNI-MTU"); status != Unknown {
		t.Errorf("without the interfaces CNI-MTU is %s", status)
	}
}

// TestNetworksThatCannotBeListedAreUnknown: without the API server nothing is known about the
// networks, but the node file is still judged.
func TestNetworksThatCannotBeListedAreUnknown(t *testing.T) {
	f := nads()
	f.Configs.Files = Known([]Config{{Kind: NodeFile, Name: "node.yaml", Text: "rails: {auto: pciOrder}"}}, "test")
	away(&f.Configs.NADs)
	for id, want := range map[string]Status{
		"CNI-NAD": Unknown, "CNI-KEY": Unknown, "CNI-NIC": Unknown, "IPAM-GW": Unknown, "IPAM-OVERLAP": Unknown, "IPAM-GWROUTE": Unknown, "NODE-FILE": OK,
	} {
		if _, status := found(t, f, id); status != want {
			t.Errorf("%s is %s, not %s", id, status, want)
		}
	}
}

// TestOnlySettingsUnlikeThoseOfOtherFreeFunctionsAreStale: a setting that an administrator has made on all functions,
// or on a function that the host uses, does not come from a former pod.
func TestOnlySettingsUnlikeThoseOfOtherFreeFunctionsAreStale(t *testing.T) {
	yes, no := true, false
	all := func(f *Facts, do func(i int, v *Function)) {
		for i := range 5 {
			do(i, function(f, i))
		}
	}
	for name, c := range map[string]struct {
		set   func(f *Facts)
		fixes []string
	}{
		"a VLAN": {func(f *Facts) { function(f, 3).VLAN = "7 802.1ad" }, []string{"ip link set ens20np0 vf 3 vlan 0"}},
		"all three": {
			func(f *Facts) { v := function(f, 3); v.VLAN, v.Trust, v.SpoofCheck = "7", &yes, &no },
			[]string{"ip link set ens20np0 vf 3 vlan 0 trust off spoofchk on"},
		},
		"two of five": {
			func(f *Facts) { function(f, 1).VLAN, function(f, 2).Trust = "7", &yes },
			[]string{"ip link set ens20np0 vf 1 vlan 0", "ip link set ens20np0 vf 2 trust off"},
		},
		"another VLAN on each":        {set: func(f *Facts) { all(f, func(i int, v *Function) { v.VLAN = fmt.Sprint(100 + i) }) }},
		"most have a VLAN":            {set: func(f *Facts) { all(f, func(i int, v *Function) { v.VLAN = []string{"7", "", "7", "7", ""}[i] }) }},
		"all are trusted":             {set: func(f *Facts) { all(f, func(_ int, v *Function) { v.Trust, v.SpoofCheck = &yes, &no }) }},
		"mlx5, without a spoof check": {set: func(f *Facts) { all(f, func(_ int, v *Function) { v.SpoofCheck = &no }) }},
		"unknown settings":            {set: func(f *Facts) { all(f, func(_ int, v *Function) { v.Trust, v.SpoofCheck = nil, nil }) }},
		"a record holds it":           {set: func(f *Facts) { function(f, 3).VLAN, function(f, 3).Held = "7", true }},
		"a pod has it":                {set: func(f *Facts) { function(f, 3).VLAN, nic(f, physical+4).Holder = "7", "default/a" }},
		"sriov-cni has taken it":      {set: func(f *Facts) { function(f, 3).VLAN, nic(f, physical+4).Name = "7", "" }},
		"the host uses it":            {set: func(f *Facts) { function(f, 3).VLAN, nic(f, physical+4).Protected = "7", "it has an address" }},
		"a device that is no NIC":     {set: func(f *Facts) { function(f, 3).VLAN, function(f, 3).PCI = "7", "" }},
		"the only free one": {set: func(f *Facts) {
			all(f, func(i int, v *Function) { v.VLAN, v.Held = "7", i != 3 })
		}},
	} {
		f := healthy()
		c.set(f)
		findings, _ := found(t, f, "VF-STALE")
		var fixes []string
		for _, x := range findings {
			fixes = append(fixes, x.Fix)
		}
		if !slices.Equal(fixes, c.fixes) {
			t.Errorf("%s: %q", name, fixes)
		}
	}
}

// TestFunctionsThatNobodyReadAreNotJudged: rail-agent does not read the settings of virtual
// functions for its own rules, and older versions did not read them at all.
func TestFunctionsThatNobodyReadAreNotJudged(t *testing.T) {
	f := healthy()
	nic(f, physical).Functions = Fact[[]Function]{}
	if _, status := found(t, f, "VF-STALE"); status != Skipped {
		t.Errorf("%s", status)
	}
}

func TestUplinkOfANodeWithoutRDMANeedsNoModules(t *testing.T) {
	n := NIC{Name: "eno1", Driver: "ice", Vendor: "8086", Ports: Known([]Port{}, "test")}
	f := &Facts{Schema: Schema, Host: &Host{Modules: Known([]string{"ice"}, "test")}, NICs: &NICs{List: Known([]NIC{n}, "test")}}
	if got := evidence(t, f, "HOST-MODULES"); got != "" {
		t.Error(got)
	}
	f.NICs.List.Value[0].Rail = &[]int{0}[0]
	if got := evidence(t, f, "HOST-MODULES"); !strings.Contains(got, "ib_core") {
		t.Errorf("of a rail: %q", got)
	}
}

// TestNICThatIsJustReturnedIsNoOrphan: a DEL may wait for the driver of a NIC although the pod's
// netns is already gone.
func TestNICThatIsJustReturnedIsNoOrphan(t *testing.T) {
	f := &Facts{Schema: Schema, Taken: time.Now(), Ledger: &Ledger{}}
	a := Attachment{Pod: "default/a", IfName: "net1", NIC: "ens1", Phase: "returning", Updated: f.Taken.Add(-30 * time.Second)}
	f.Ledger.Attachments = Known([]Attachment{a}, "test")
	if got := evidence(t, f, "LEDGER-ORPHAN"); got != "" {
		t.Error(got)
	}
	f.Ledger.Attachments.Value[0].Updated = f.Taken.Add(-time.Hour)
	if got := evidence(t, f, "LEDGER-ORPHAN"); !strings.Contains(got, "pod default/a") {
		t.Errorf("after an hour: %q", got)
	}
}

func TestNICThatIsJustLentNeedsNoCarrier(t *testing.T) {
	n := NIC{Name: "ens1", Holder: "default/a", AdminUp: Known(true, "test"), Carrier: Known(false, "test"), Moving: true}
	f := &Facts{Schema: Schema, NICs: &NICs{List: Known([]NIC{n}, "test")}}
	if got := evidence(t, f, "NIC-CARRIER"); got != "" {
		t.Error(got)
	}
	f.NICs.List.Value[0].Moving = false
	if got := evidence(t, f, "NIC-CARRIER"); got == "" {
		t.Error("NIC-CARRIER does not find a NIC that has no carrier in its pod")
	}
}

func TestPodsOfAnUnknownLedgerAreUnknown(t *testing.T) {
	f := &Facts{Schema: Schema, Host: &Host{RDMAMode: Known("shared", "test")}, Ledger: &Ledger{}}
	away(&f.Ledger.Attachments)
	for _, id := range []string{"K8S-DEVINFO", "POD-CHARDEV", "POD-DOWN"} {
		if _, status := found(t, f, id); status != Unknown {
			t.Errorf("%s is %s", id, status)
		}
	}
}

func TestGatewayThatIsExcludedIsFine(t *testing.T) {
	f := nads(`{"type": "macvlan", "ipam": {"type": "whereabouts", "range": "10.0.0.0/24", "gateway": "10.0.0.1", "allow_gateway": true, "exclude": ["10.0.0.1/32"]}}`)
	if got := evidence(t, f, "IPAM-GW"); got != "" {
		t.Error(got)
	}
}

func TestGatewayInRangeWithAnotherWhereabouts(t *testing.T) {
	f := nads(`{"type": "macvlan", "ipam": {"type": "whereabouts", "range": "10.0.0.0/24", "gateway": "10.0.0.1"}}`)
	if got := evidence(t, f, "IPAM-GW"); got != "" {
		t.Error(got)
	}
	for _, c := range []struct {
		name, ipam string
		binaries   []Binary
		want       bool
	}{
		{"another's", "whereabouts", []Binary{{Path: "/opt/cni/bin/whereabouts", SHA256: "1"}}, true},
		{"another's beside ours with a prefix", "rail-whereabouts", []Binary{{Path: "/opt/cni/bin/whereabouts", SHA256: "1"}, {Path: "/opt/cni/bin/rail-whereabouts", SHA256: "2", Installed: "2", RailCNI: true}}, false},
		{"ours, which may not be run", "whereabouts", []Binary{{Path: "/opt/cni/bin/whereabouts", SHA256: "1", RailCNI: true}}, false},
	} {
		f.Configs.NADs.Value[0].Text = `{"type": "macvlan", "ipam": {"type": "` + c.ipam + `", "range": "10.0.0.0/24", "gateway": "10.0.0.1"}}`
		f.CNI = &CNI{Binaries: Known(c.binaries, "test")}
		if got := evidence(t, f, "IPAM-GW"); (got != "") != c.want || c.want && !strings.Contains(got, "not rail-cni's") {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

// TestPluginsInTheCNIDirectory: if rail-cni's plugins have a prefix in their names, the reference
// plugins stay in the same directory.
func TestPluginsInTheCNIDirectory(t *testing.T) {
	ours := Binary{Path: "/opt/cni/bin/rail-macvlan", SHA256: "aaaa", Installed: "aaaa", Version: "v1", RailCNI: true}
	for _, c := range []struct {
		name string
		set  func(b *Binary)
		want string
	}{
		{"another's beside ours", func(*Binary) {}, ""},
		{"replaced", func(b *Binary) { *b = Binary{Path: b.Path, SHA256: "dddd", Installed: "aaaa"} }, "another program: its SHA-256 sum is dddd"},
		{"replaced by one of ours", func(b *Binary) { b.SHA256, b.Version = "dddd", "v2" }, "it is rail-cni v2: its SHA-256 sum is dddd"},
		{"replaced by one of ours that does not run", func(b *Binary) { b.SHA256, b.Version = "dddd", "" }, "it is rail-cni: its SHA-256 sum is dddd"},
		{"deleted", func(b *Binary) { *b = Binary{Path: b.Path, Installed: "aaaa"} }, "the file is missing"},
	} {
		b := ours
		c.set(&b)
		f := &Facts{Schema: Schema, CNI: &CNI{Binaries: Known([]Binary{b, {Path: "/opt/cni/bin/macvlan", SHA256: "1"}}, "test")}}
		if got := evidence(t, f, "CNI-BINARY"); !strings.Contains(got, c.want) || (got != "") != (c.want != "") || strings.Contains(got, "bin/macvlan") {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

func TestNICWithoutInterfaceIsUnknownWithoutItsPorts(t *testing.T) {
	f := healthy()
	nic(f, 7).Name = ""
	away(&nic(f, 7).Ports)
	away(&nic(f, 3).Ports) // of one that has its interface
	if findings, got := found(t, f, "NIC-NETDEV"); got != Unknown {
		t.Errorf("%s: %+v", got, findings)
	}
}

// TestNeedOfRDMAModulesIsUnknownWithoutPorts: a NIC of another vendor is meant for RDMA if it has
// RDMA ports.
func TestNeedOfRDMAModulesIsUnknownWithoutPorts(t *testing.T) {
	n := NIC{Name: "eno1", Driver: "ice", Vendor: "8086"}
	away(&n.Ports)
	f := healthy()
	f.Host.Modules.Value, f.Host.Memlock.Value[0].Soft, f.Agent.Memlock.Value = []string{"ice"}, 64<<10, false
	f.NICs.List.Value = []NIC{n}
	for _, id := range []string{"HOST-MODULES", "HOST-MEMLOCK"} {
		if findings, got := found(t, f, id); got != Unknown {
			t.Errorf("%s is %s: %+v", id, got, findings)
		}
	}
	f.NICs.List.Value = append(f.NICs.List.Value, NIC{Name: "ens1", Vendor: "15b3"})
	for _, id := range []string{"HOST-MODULES", "HOST-MEMLOCK"} {
		if _, got := found(t, f, id); got == Unknown || got == OK {
			t.Errorf("%s of a node with one of NVIDIA's NICs is %s", id, got)
		}
	}
}

// TestNetworksOfTheClusterThatAreNotKnown: a server before Kubernetes 1.33 does not report the
// network of services, and some network plugins assign addresses without podCIDR.
func TestNetworksOfTheClusterThatAreNotKnown(t *testing.T) {
	for _, by := range []string{"nodes", "pods", "services"} {
		f := healthy()
		delete(f.Configs.Networks.Value, by)
		results := Judge(Rules(), f)
		i := slices.IndexFunc(results, func(r Result) bool { return r.ID == "IPAM-NETS" })
		if r := results[i]; r.Status != Unknown || len(r.Missing) != 1 || !strings.Contains(r.Missing[0], by) {
			t.Errorf("%s: %+v", by, r)
		}
	}
}

// TestFixOfNetworkManagerKeepsAddresses: if NetworkManager has set addresses on the NIC, it removes
// them when it stops managing the NIC. So there must be no such fix.
func TestFixOfNetworkManagerKeepsAddresses(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(n *NIC)
		want bool
	}{
		{"no address", func(n *NIC) { n.Addresses.Value = nil }, true},
		{"a link-local address", func(n *NIC) { n.Addresses.Value = []string{"fe80::1/64"} }, true},
		{"an address", func(*NIC) {}, false},
		{"unknown addresses", func(n *NIC) { away(&n.Addresses) }, false},
		{"macvlans", func(n *NIC) { n.Addresses.Value, n.Children = nil, 2 }, false},
	} {
		f := healthy()
		n := nic(f, 3)
		n.ManagedBy.Value = "NetworkManager"
		c.set(n)
		findings, _ := found(t, f, "HOST-NM")
		if len(findings) != 1 || (findings[0].Fix != "") != c.want {
			t.Errorf("%s: %+v", c.name, findings)
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
		if findings, _ := found(t, nads(texts...), "IPAM-OVERLAP"); len(findings) != c.want {
			t.Errorf("%v: %+v", c.ranges, findings)
		}
	}
}

func TestPrefixesOfTheNodeAreReadFromTheNodeFile(t *testing.T) {
	f := nads(`{"type": "macvlan", "rail": "auto", "ipam": {"type": "whereabouts", "prefix": "node"}}`)
	if got := evidence(t, f, "IPAM-RAILS"); got != "" {
		t.Errorf("without a node file: %s", got)
	}
	f.Configs.Files.Value = append(f.Configs.Files.Value, Config{
		Kind: NodeFile, Name: "node.yaml", Text: `{rails: [{id: 0, name: a}, {id: 1, name: b}], prefixes: [{rail: 0, prefix: 10.0.4.8/31, gateway: 10.0.4.8}]}`,
	})
	if got := evidence(t, f, "IPAM-RAILS"); !strings.Contains(got, "no prefix for rail 1") {
		t.Errorf("%q", got)
	}
}

func TestNICsOutsideTheRailsAreNotComparedWithThem(t *testing.T) {
	f := healthy()
	storage := healthyNIC(0)
	storage.Name, storage.PCI, storage.Rail, storage.Holder = "ens20", "0000:ff:00.0", nil, "default/storage"
	storage.Mbps.Value, storage.MTU.Value = 100000, 1500
	f.NICs.List.Value = append(f.NICs.List.Value, storage)
	for _, id := range []string{"NIC-SPEED", "NIC-MTU"} {
		if have := evidence(t, f, id); have != "" {
			t.Errorf("%s: %s", id, have)
		}
	}
}

func TestKernelsLogOfOtherNICsIsNotJudged(t *testing.T) {
	f := healthy()
	other := healthyNIC(0)
	other.Name, other.PCI, other.Rail, other.Holder, other.Children = "ens30", "0000:aa:00.0", nil, "", 0
	f.NICs.List.Value = append(f.NICs.List.Value, other)
	for line, want := range map[string]bool{
		"mlx5_core 0000:aa:00.0: Port module event: module 0, Cable unplugged":                                          false, // a spare port
		"mlx5_core " + nic(f, 0).PCI + ": Port module event: module 0, Cable unplugged":                                 true,
		"mlx5_core " + nic(f, 0).PCI + ": Port module event[error]: module 0, Cable error, Bad or shorted cable/module": true,
		"mlx5_core " + nic(f, 0).PCI + ": poll_health:801:(pid 0): Fatal error 1 detected":                              true,
		"mlx5_core 0000:bb:00.0: device's health compromised - reached miss count":                                      true, // a NIC that the bus has lost
		"pcieport 0000:00:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Physical Layer":                      false,
	} {
		f.Host.KernelLog.Value = []string{line}
		if have := evidence(t, f, "HOST-KMSG") != ""; have != want || !KernelTrouble(line) {
			t.Errorf("%s: %t", line, have)
		}
	}
}

// TestLinesOfTheKernelsLogThatAreNoTrouble: each boot logs a line about a NIC in an older slot, and
// links correct single errors. Neither is trouble.
func TestLinesOfTheKernelsLogThatAreNoTrouble(t *testing.T) {
	for _, line := range []string{
		"mlx5_core 0000:13:00.0: 252.048 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x16 link at 0000:12:00.0 (capable of 504.112 Gb/s with 32.0 GT/s PCIe x16 link)",
		"mlx5_core 0000:13:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
		"mlx5_core 0000:13:00.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)",
	} {
		f := healthy()
		f.Host.KernelLog.Value = []string{line}
		if have := evidence(t, f, "HOST-KMSG"); have != "" || KernelTrouble(line) {
			t.Error(have)
		}
	}
}

func TestNamesInTheKernelsLogAreWholeWords(t *testing.T) {
	f := healthy()
	nic(f, 3).Name = "eth1"
	uplink := healthyNIC(0)
	uplink.Name, uplink.PCI, uplink.Rail, uplink.Holder, uplink.Children = "eth10", "10000:13:00.0", nil, "", 0
	f.NICs.List.Value = append(f.NICs.List.Value, uplink)
	for line, want := range map[string]bool{
		"NETDEV WATCHDOG: eth1 (mlx5_core): transmit queue 3 timed out":  true,
		"NETDEV WATCHDOG: eth10 (mlx5_core): transmit queue 3 timed out": false,
		"veth1: eth10: transmit queue 3 timed out, eth1":                 true,
		"mlx5_core 10000:13:00.0: tx timeout":                            false, // another PCI domain
		"mlx5_core 0000:13:00.0: tx timeout":                             true,
	} {
		f.Host.KernelLog.Value = []string{line}
		if have := evidence(t, f, "HOST-KMSG") != ""; have != want {
			t.Errorf("%s: %t", line, have)
		}
	}
	// A NIC without a rail may have virtual functions that are in pods.
	f.Host.KernelLog.Value = []string{"NETDEV WATCHDOG: eth10 (mlx5_core): transmit queue 3 timed out"}
	away(&f.NICs.List.Value[len(f.NICs.List.Value)-1].VFs)
	if _, got := found(t, f, "HOST-KMSG"); got != Unknown {
		t.Errorf("without the virtual functions: %s", got)
	}
}

func TestOneInterfaceWithAnAddressTwiceIsNoDuplicate(t *testing.T) {
	rail := 0
	node := func(name string, addresses ...string) *Facts {
		i := Interface{Name: "net1", NIC: "ens1", Rail: &rail, Addresses: addresses}
		return &Facts{Node: name, Pods: []Pod{{Namespace: "default", Name: "p-" + name, Interfaces: Known([]Interface{i}, "test")}}}
	}
	f := &Facts{Cluster: &Cluster{Nodes: []*Facts{node("a", "10.0.0.1/24", "10.0.0.1/32"), node("b", "10.0.0.2/24")}}}
	if have := evidence(t, f, "IPAM-DUP"); have != "" {
		t.Error(have)
	}
	f.Cluster.Nodes[1].Pods[0].Interfaces.Value[0].Addresses[0] = "10.0.0.1/24"
	if have := evidence(t, f, "IPAM-DUP"); !strings.Contains(have, "p-b") {
		t.Error(have)
	}
	for _, n := range f.Cluster.Nodes { // NICs of other names are of other networks
		n.Pods[0].Interfaces.Value[0].Rail = nil
	}
	f.Cluster.Nodes[1].Pods[0].Interfaces.Value[0].NIC = "ens2"
	if have := evidence(t, f, "IPAM-DUP"); have != "" {
		t.Error(have)
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
		f := nads(`{"type": "macvlan", "IPAM": {"type": "whereabouts", "range": "10.0.0.0/24", "` + key + `": "` + path + `"}}`)
		if got := evidence(t, f, "CNI-NAD"); got != "" {
			t.Errorf("%s: %s", key, got)
		}
	}
}

func TestTwoNodesWithExchangedRails(t *testing.T) {
	f := healthy()
	f.Cluster.Nodes = f.Cluster.Nodes[:2]
	if got := evidence(t, f, "RAIL-SWAP") + evidence(t, f, "RAIL-SUBNET"); got != "" {
		t.Fatal(got)
	}
	a, b := nic(at(f, 1), 4), nic(at(f, 1), 5)
	a.Addresses, b.Addresses = b.Addresses, a.Addresses
	if got := evidence(t, f, "RAIL-SWAP"); !strings.Contains(got, "node node-1: rail 4") || !strings.Contains(got, "node node-1: rail 5") || strings.Contains(got, "node-0: ") {
		t.Error(got)
	}
	if got := evidence(t, f, "RAIL-SUBNET"); got != "" {
		t.Error(got)
	}
	// If a rail has two networks, it is not known which one is right.
	f = healthy()
	f.Cluster.Nodes = f.Cluster.Nodes[:2]
	nic(at(f, 1), 4).Addresses.Value = []string{"172.31.99.1/24"}
	if got := evidence(t, f, "RAIL-SWAP") + evidence(t, f, "RAIL-SUBNET"); got != "" {
		t.Error(got)
	}
}

// TestRailOfAPodsInterfaceIsThatOfItsNIC: a network that names a NIC, for example for a macvlan,
// names no rail. Then the NIC's rail counts.
func TestRailOfAPodsInterfaceIsThatOfItsNIC(t *testing.T) {
	f := healthy()
	n := at(f, 1)
	i := &n.Pods[0].Interfaces.Value[slices.IndexFunc(n.Pods[0].Interfaces.Value, func(i Interface) bool { return i.NIC != "" })]
	i.Rail, i.NIC, i.Addresses = nil, nic(n, 4).Name, []string{"172.31.4.77/24"}
	if got := evidence(t, f, "IPAM-DUP"); got != "" {
		t.Fatal(got)
	}
	nic(n, 4).Addresses.Value = append(nic(n, 4).Addresses.Value, "172.31.4.77/24")
	if got := evidence(t, f, "IPAM-DUP"); !strings.Contains(got, "address 172.31.4.77: it is on "+nic(n, 4).Name+" of node") {
		t.Error(got)
	}
}

// TestVersionsOfNodesWithoutAgentAreCompared: only AGENT-DOWN may report that agents are missing.
func TestVersionsOfNodesWithoutAgentAreCompared(t *testing.T) {
	f := healthy()
	for _, n := range f.Cluster.Nodes {
		n.Agent.Running.Value = false
		away(&n.Agent.Version)
	}
	if findings, got := found(t, f, "VER-SKEW"); got != OK {
		t.Errorf("%s: %+v", got, findings)
	}
}

func TestValuesOfNCCLIBHCA(t *testing.T) {
	devices := []Port{{Device: "mlx5_1"}, {Device: "mlx5_10"}, {Device: "mlx5_2"}}
	for value, want := range map[string]string{
		"":                  "",
		"=mlx5_1,mlx5_2":    "",
		"=mlx5_1:1":         "",
		"mlx5_2":            "",
		"mlx5":              "", // all, on purpose
		"mlx5_1":            "mlx5_1 is also the beginning of mlx5_10",
		"mlx5_1:1,mlx5_2:1": "mlx5_1 is also the beginning of mlx5_10",
		"^mlx5_1":           "mlx5_1 is also the beginning of mlx5_10",
		"^=mlx5_1":          "",
		"^mlx5_7":           "",
		"=mlx5":             "the pod sees no device mlx5",
		"bnxt_re0":          "the pod sees no device bnxt_re0",
	} {
		if got := wrongHCA(value, devices); got != want {
			t.Errorf("%q: %q, not %q", value, got, want)
		}
	}
}

func TestLockedMemoryOfContainers(t *testing.T) {
	for _, c := range []struct {
		name                 string
		soft                 int64
		uid                  int
		effective, permitted uint64
		want                 string
	}{
		{"no limit", Unlimited, 1000, 0, 0, ""},
		{"enough", 16 << 30, 0, 0, 0, ""},
		{"root without the capability", 64 << 10, 0, 0, 0, "POD-MEMLOCK"},
		{"root with the capability", 64 << 10, 0, 1 << 14, 1 << 14, ""},
		{"user with the inert capability", 64 << 10, 1000, 0, 1 << 14, "POD-CAPS"},
		{"user with an ambient capability", 64 << 10, 1000, 1 << 14, 1 << 14, ""},
		{"user without the capability", 64 << 10, 1000, 0, 0, "POD-MEMLOCK"},
		{"root that has dropped it", 64 << 10, 0, 0, 1 << 14, "POD-MEMLOCK"},
	} {
		f := healthy()
		main := container(f)
		main.Memlock.Soft, main.UID, main.Capabilities, main.Permitted = c.soft, c.uid, c.effective, c.permitted
		for _, id := range []string{"POD-MEMLOCK", "POD-CAPS"} {
			if got := evidence(t, f, id) != ""; got != (id == c.want) {
				t.Errorf("%s: %s found something: %v", c.name, id, got)
			}
		}
	}
}

// TestRDMADriverIsNeededByNICsWithoutRDMADevices: a driver may make the RDMA devices of its NICs
// itself, so that no further module is needed.
func TestRDMADriverIsNeededByNICsWithoutRDMADevices(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(n *NIC)
		want Status
	}{
		{"ports and char devices", func(*NIC) {}, OK},
		{"a port in a pod's namespace", func(n *NIC) { n.CharDevices = nil }, OK},
		{"a char device, and ports that could not be read", func(n *NIC) { away(&n.Ports) }, OK},
		{"no RDMA device", func(n *NIC) { n.Ports.Value, n.CharDevices = nil, nil }, Status(Fail)},
		{"no interface either", func(n *NIC) { n.Ports.Value, n.CharDevices, n.Name = nil, nil, "" }, OK},
		{"nobody knows", func(n *NIC) { away(&n.Ports); n.CharDevices = nil }, Unknown},
	} {
		f := healthy()
		f.Host.Modules.Value = slices.DeleteFunc(f.Host.Modules.Value, func(name string) bool { return name == "mlx5_ib" })
		c.set(nic(f, 3))
		if _, got := found(t, f, "HOST-RDMADRIVER"); got != c.want {
			t.Errorf("%s: %s", c.name, got)
		}
		if got := evidence(t, f, "HOST-RDMADRIVER"); c.want == Status(Fail) && !strings.Contains(got, "mlx5_ib, which makes the RDMA devices of ens4np0, is not loaded") {
			t.Errorf("%s: %s", c.name, got)
		}
	}
}

func TestRuntimeMemlockCountsUnlessNRISetsIt(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*Agent)
		want Status
	}{
		{"NRI sets it", func(*Agent) {}, OK},
		{"NRI is off", func(a *Agent) { a.NRI.Value = false }, Status(Warn)},
		{"publish.memlock is false", func(a *Agent) { a.Memlock.Value = false }, Status(Warn)},
		{"no agent", func(a *Agent) { a.Running.Value = false; away(&a.NRI); away(&a.Memlock) }, Status(Warn)},
		{"nobody knows", func(a *Agent) { away(&a.Memlock) }, Unknown},
	} {
		f := healthy()
		f.Host.Memlock.Value[0].Soft = 8 << 20
		c.set(f.Agent)
		if _, got := found(t, f, "HOST-MEMLOCK"); got != c.want {
			t.Errorf("%s: %s", c.name, got)
		}
	}
}

func TestStateThatCouldNotBeReadIsUnknown(t *testing.T) {
	f := healthy()
	port(f, 3).State, port(f, 4).PhysState = "?", ""
	for _, id := range []string{"NIC-PORT", "NIC-PHYS"} {
		if findings, got := found(t, f, id); got != Unknown {
			t.Errorf("%s is %s: %+v", id, got, findings)
		}
	}
}

// TestNodeWithoutHardwareHasNoFindings: on a node without hardware, for example on a laptop, there
// is little to judge and nothing to find.
func TestNodeWithoutHardwareHasNoFindings(t *testing.T) {
	f := healthy()
	f.Cluster, f.Pods, f.Configs = nil, nil, nil
	f.NICs.GPUs.Value, f.Host.Hypervisor.Value = nil, true
	f.Host.Modules.Value, f.Host.Memlock.Value[0].Soft, f.Agent.NRI.Value = []string{"veth"}, 8<<20, false
	f.Host.Uverbs.Value, f.Host.CharDevices.Value = nil, nil
	f.Host.Sysctls.Value[sysctlDefault] = "0"
	f.Kubelet.Pools.Value, f.Kubelet.Labels.Value = nil, nil
	f.Kubelet.Capacity.Value, f.Kubelet.Allocatable.Value = nil, nil
	f.Ledger.Attachments.Value = nil
	var nics []NIC
	for i := range 8 {
		nics = append(nics, NIC{
			Name: "rail" + string(rune('0'+i)), Driver: "veth", LinkType: "ether", Children: 1,
			AdminUp: Known(true, "netlink"), Carrier: Known(true, "netlink"), Mbps: Known(int64(10_000), "sysfs"), MTU: Known(1500, "netlink"), DCB: Known(DCB{}, "netlink"), Firmware: Known("", "ethtool"),
			Flaps: Known(Flaps{}, "rail-agent"), Rising: Known(Rising{Seconds: 1}, "sysfs"), ManagedBy: Known("", "/run"), VFs: Known(VFs{}, "sysfs"),
			Addresses: Known([]string{"fe80::1/64"}, "netlink"), Ports: Known([]Port(nil), "sysfs"),
		})
	}
	f.NICs.List.Value = nics
	for _, r := range Judge(Rules(), f) {
		if len(r.Findings) > 0 || r.Status == Unknown {
			t.Errorf("%s is %s: %+v %v", r.ID, r.Status, r.Findings, r.Missing)
		}
	}
}

// TestLentNICIsJudgedInItsPod: a NIC in a pod is judged by the rules about pods, so that one defect
// has only one finding.
func TestLentNICIsJudgedInItsPod(t *testing.T) {
	f := healthy()
	nic(f, 0).Carrier.Value, rail(f, 1).Carrier = false, false
	if got := evidence(t, f, "NIC-CARRIER"); got != "" {
		t.Error(got)
	}
	if got := evidence(t, f, "POD-DOWN"); got == "" {
		t.Error("POD-DOWN found nothing")
	}
	away(&pod(f).Interfaces)
	if got := evidence(t, f, "NIC-CARRIER"); got == "" {
		t.Error("without the pod's facts NIC-CARRIER found nothing")
	}
}

func TestKernelLogLinesOfOtherDevicesDoNotCount(t *testing.T) {
	f := healthy()
	f.Host.KernelLog.Value = []string{
		"nvme 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer",
		"mlx5_core 0000:13:00.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer",
	}
	if got, _ := found(t, f, "HOST-KMSG"); len(got) != 1 || !strings.Contains(got[0].Evidence, "0000:13") {
		t.Errorf("%+v", got)
	}
}

// TestFixHasNoNameThatAShellReads: people paste a report's fix into a shell, and the facts may come
// from a stranger.
func TestFixHasNoNameThatAShellReads(t *testing.T) {
	f := healthy()
	for _, name := range []string{"x; reboot", "$(reboot)", "-a", "a\nb", ""} {
		nic(f, 3).Name, nic(f, 3).ManagedBy.Value, nic(f, 3).Addresses.Value = name, "NetworkManager", nil
		nic(f, 4).PCI, nic(f, 4).Driver = name, ""
		for _, r := range Judge(Rules(), f) {
			for _, x := range r.Findings {
				if strings.Contains(x.Fix, "reboot") || strings.Contains(x.Fix, " -a ") || strings.Contains(x.Fix, "\n") {
					t.Errorf("%q: %s: %s", name, r.ID, x.Fix)
				}
			}
		}
	}
}

func TestAnnotationBesideTheLedger(t *testing.T) {
	for _, c := range []struct{ status, want string }{
		{`{`, "not the JSON of Multus"},
		{`[]`, "no interface net1"},
		{`[{"interface": "net1", "ips": ["172.31.0.9"]}]`, "172.31.0.9"},
		{`[{"interface": "net1", "ips": ["172.31.0.2"], "device-info": {"pci": {"pci-address": "0000:99:00.0"}}}]`, "0000:99:00.0"},
		{`[{"interface": "net1", "ips": ["172.31.0.2"]}]`, ""},
		{``, ""},
	} {
		f := healthy()
		pod(f).Status.Value = c.status
		if got := evidence(t, f, "K8S-DEVINFO"); !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: %q", c.status, got)
		}
	}
}

func TestFreshlyParsedFactsJudgeTheSame(t *testing.T) {
	f := healthy()
	text, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	read, err := ReadFacts(strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range Judge(Rules(), read) {
		if r.Status != OK {
			t.Errorf("%s is %s: %+v %v", r.ID, r.Status, r.Findings, r.Missing)
		}
	}
}

func TestECNIsJudgedOnlyWhereTheDriverTells(t *testing.T) {
	node := func(ecn ...ECN) *Facts {
		f := &Facts{Schema: Schema, NICs: &NICs{List: Known([]NIC{}, "test")}}
		for i, e := range ecn {
			f.NICs.List.Value = append(f.NICs.List.Value, NIC{Name: fmt.Sprint("ens", i), Driver: "mlx5_core", Rail: &[]int{i}[0], DCB: Known(DCB{Supported: true, PFC: "3"}, "test"), ECN: Known(e, "test")})
		}
		return f
	}
	for _, c := range []struct {
		name   string
		facts  *Facts
		status Status
		want   string
	}{
		{"the kernel's own driver", node(ECN{}, ECN{}), Skipped, ""},
		{"on where PFC is", node(ECN{true, "3", "3"}, ECN{true, "3", "3"}), OK, ""},
		{"off on all rails", node(ECN{true, "", "3"}), Status(Warn), "NIC ens0: priority 3 has PFC, and the NIC has ECN on priorities none (np) and 3 (rp)"},
		{"another rail", node(ECN{true, "3", "3"}, ECN{true, "3", "3"}, ECN{true, "3,4", "3"}), Status(Warn), "NIC ens2: it has ECN on priorities 3,4 (np) and 3 (rp), and 2 of 3 have ECN on priorities 3 (np) and 3 (rp)"},
	} {
		if _, status := found(t, c.facts, "NIC-ECN"); status != c.status {
			t.Errorf("%s: %s, want %s", c.name, status, c.status)
		}
		if have := evidence(t, c.facts, "NIC-ECN"); have != c.want {
			t.Errorf("%s: %q", c.name, have)
		}
	}
}

// TestPodsOfASharedPoolThatFitTheGIDTable: each pod of a shared pool takes four entries of the GID
// table. The NIC's own entries come in addition.
func TestPodsOfASharedPoolThatFitTheGIDTable(t *testing.T) {
	for count, want := range map[int64]Status{60: OK, 62: OK, 63: OK, 64: Status(Warn), 100: Status(Warn), 127: Status(Warn)} {
		f := healthy()
		f.Kubelet.Pools.Value[0].Count, f.Kubelet.Capacity.Value["rdma/hca_gpu"] = count, count
		if got := statusOf(Judge(Rules(), f), "DP-HCAMAX"); got != want {
			t.Errorf("%d pods: %s, want %s", count, got, want)
		}
	}
}

// TestPartitionAtIndexZero: programs that do not name a partition use index 0 of the port's table.
func TestPartitionAtIndexZero(t *testing.T) {
	for name, c := range map[string]struct {
		table []PKey
		want  Status
	}{
		"full":                     {[]PKey{{0, "0xffff"}, {1, "0x0010"}}, OK},
		"limited, a full one next": {[]PKey{{0, "0x7fff"}, {1, "0x8010"}}, Status(Warn)}, // a partitions.conf without a line Default
		"a hole":                   {[]PKey{{1, "0x8010"}, {10, "0x8030"}}, Status(Warn)},
		"limited and full in one":  {[]PKey{{0, "0x7fff"}, {1, "0xffff"}}, Status(Warn)},
		"none full":                {[]PKey{{0, "0x7fff"}, {1, "0x0010"}}, Status(Warn)},
	} {
		f := healthy()
		port(f, 8).PKeys.Value = c.table
		if got := statusOf(Judge(Rules(), f), "IB-PKEY"); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestActivePortWithoutACarrier: when the subnet manager ends, the port stays active, but its
// interface loses the carrier.
func TestActivePortWithoutACarrier(t *testing.T) {
	f := healthy()
	nic(f, 8).Carrier.Value = false
	if got := statusOf(Judge(Rules(), f), "IB-SM"); got != Status(Fail) {
		t.Errorf("IB-SM is %s", got)
	}
}

// TestGIDWithoutAnAddressIsNoFinding: the kernel makes GID 0 from the MAC address, even if the NIC
// has another link-local address or no IPv6. Such a GID belongs to no address of the NIC, and this
// is not a problem.
func TestGIDWithoutAnAddressIsNoFinding(t *testing.T) {
	want := map[string]Status{}
	for name, change := range map[string]func(*Facts){
		"as it is":                  func(*Facts) {},
		"a container without index": func(f *Facts) { delete(container(f).Env, "NCCL_IB_GID_INDEX") },
	} {
		f := healthy()
		change(f)
		for _, r := range Judge(Rules(), f) {
			want[r.ID] = r.Status
		}
		for i := range f.NICs.List.Value {
			for k := range nic(f, i).Ports.Value {
				p := &nic(f, i).Ports.Value[k]
				if p.LinkLayer != InfiniBand {
					p.GIDs.Value = append(addressed(0, "fe80:0000:0000:0000:5054:00ff:fe12:3456", p.GIDs.Value[0].Netdev), p.GIDs.Value...)
				}
			}
		}
		for _, r := range Judge(Rules(), f) {
			if r.Status != want[r.ID] {
				t.Errorf("%s: %s is %s, without the GID %s: %+v", name, r.ID, r.Status, want[r.ID], r.Findings)
			}
		}
	}
}

// TestManagementDevicesThatAPoolGrants checks that a pool can grant only umad, and only for NICs in
// the pool.
func TestManagementDevicesThatAPoolGrants(t *testing.T) {
	for name, c := range map[string]struct {
		device string
		pool   Pool
		want   Status
	}{
		"umad, granted":            {"umad8", Pool{NICs: []string{"ens9np0"}, UMAD: true}, OK},
		"umad, granted by address": {"umad8", Pool{NICs: []string{"0000:18:00.0"}, UMAD: true}, OK},
		"umad, of another pool":    {"umad8", Pool{NICs: []string{"ens1np0"}, UMAD: true}, Status(Warn)},
		"umad, in a pool without":  {"umad8", Pool{NICs: []string{"ens9np0"}}, Status(Warn)},
		"issm, though umad is":     {"issm8", Pool{NICs: []string{"ens9np0"}, UMAD: true}, Status(Warn)},
		"verbs":                    {"uverbs8", Pool{NICs: []string{"ens9np0"}}, OK},
	} {
		t.Run(name, func(t *testing.T) {
			f := healthy()
			manages(f, c.device)
			f.Kubelet.Pools.Value = append(f.Kubelet.Pools.Value, c.pool)
			if have := statusOf(Judge(Rules(), f), "IB-UMAD-IN-POD"); have != c.want {
				t.Errorf("%s, not %s", have, c.want)
			}
		})
	}
}

func TestPartitionThatAPodNamesItself(t *testing.T) {
	for name, c := range map[string]struct {
		value, list string // of NCCL_IB_PKEY and RAIL_CNI_ENV
		layer       string
		want        string
	}{
		"its own":         {"2", "NCCL_IB_HCA", InfiniBand, "container main sets NCCL_IB_PKEY=2; at that index port 1 of mlx5_0 now has 0x8001"},
		"of an empty one": {"1", "", InfiniBand, "now has no partition"},
		"rail-agent's":    {"2", "NCCL_IB_HCA,NCCL_IB_PKEY", InfiniBand, ""},
		"the default":     {"0", "", InfiniBand, ""},
		"on Ethernet":     {"2", "", "Ethernet", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := healthy()
			partition(f, c.value)
			container(f).Env[publish.ListVar] = c.list
			if port := &pod(f).Devices.Value[0]; c.layer != InfiniBand {
				port.LinkLayer, port.PKeys = c.layer, Fact[[]PKey]{} // nobody reads them
			}
			if status := statusOf(Judge(Rules(), f), "POD-PKEY"); c.want == "" && status != OK {
				t.Errorf("it is %s", status)
			}
			var said []string
			for _, result := range Judge(Rules(), f) {
				if result.ID != "POD-PKEY" {
					continue
				}
				for _, finding := range result.Findings {
					said = append(said, finding.Evidence)
				}
			}
			if all := strings.Join(said, "; "); c.want == "" && all != "" || !strings.Contains(all, c.want) {
				t.Errorf("%q, not %q", all, c.want)
			}
		})
	}
}
