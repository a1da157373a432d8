package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/ruletest"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/doctor/rules/host"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
)

// found returns the findings of a rule, and its status.
func found(t *testing.T, f *fact.Facts, id string) ([]rule.Finding, rule.Status) {
	t.Helper()
	return ruletest.Find(t, Rules(), f, id)
}

// evidence returns the evidence of a rule's findings, each with its object.
func evidence(t *testing.T, f *fact.Facts, id string) string {
	t.Helper()
	return ruletest.Evidence(t, Rules(), f, id)
}

// prefix, are not misspellings.
func TestTypesOfOthersAreCountedAndNotJudged(t *testing.T) {
	f := ruletest.NADs(`{"cniVersion": "1.0.0", "plugins": [{"type": "rail-host-device", "device": "a", "ipam": {"type": "rail-whereabouts", "range": "10.0.0.0/24"}}, {"type": "tuning"}, {"type": "rdma"}]}`,
		`{"type": "ipvlan", "ipam": {"type": "host-local"}}`, `{"type": "bridge", "ipam": {"type": "static"}}`, `{"type": "bridge"}`, `{"type": "sriov", "ipam": {}}`)
	if got := evidence(t, f, "CNI-TYPE"); got != "" {
		t.Error(got)
	}
	want := []string{"not checked: 4 plugins of others (bridge, ipvlan, tuning)", "not checked: 2 IPAM plugins of others (host-local, static)"}
	if got := NotJudged(f); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := NotJudged(ruletest.NADs(`{"type": "macvlan"}`)); len(got) > 0 {
		t.Errorf("%q", got)
	}
}

// TestTypesThatNoPluginServesAsTheNetworkAsks: plugins of other projects may be installed
// intentionally. That is a problem only if a network needs rail-cni's plugin.
func TestTypesThatNoPluginServesAsTheNetworkAsks(t *testing.T) {
	const function = `{"cniVersion": "1.0.0", "name": "n", "type": "sriov", "vlan": 7, "ipam": {"type": "whereabouts", "range": "10.0.0.0/24"}}`
	with := func(old, to string) string { return strings.Replace(function, old, to, 1) }
	others := func(name string) func(*fact.CNI) {
		return func(c *fact.CNI) {
			c.Binaries.Value = append(c.Binaries.Value, fact.Binary{Path: "/opt/cni/bin/" + name, SHA256: "1"})
		}
	}
	for name, c := range map[string]struct {
		text, resource string
		set            func(*fact.CNI)
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
		"a node without ours":       {text: function, set: func(c *fact.CNI) { c.Binaries.Value = nil }},
		"a file that is not ours now": {text: with(`"vlan"`, `"rail": 1, "vlan"`), set: func(c *fact.CNI) {
			c.Binaries.Value = append(c.Binaries.Value, fact.Binary{Path: "/opt/cni/bin/sriov", SHA256: "1", Installed: "2"}) // CNI-BINARY
		}},
		"whereabouts": {text: with(`"range"`, `"block_size": 16, "range"`), want: "whereabouts is not rail-cni's, and does not read block_size", set: func(c *fact.CNI) {
			others("sriov")(c)
			c.Binaries.Value[2] = fact.Binary{Path: "/opt/cni/bin/whereabouts", SHA256: "1"}
		}},
		"whereabouts without our keys": {text: function, set: func(c *fact.CNI) {
			others("sriov")(c)
			c.Binaries.Value[2] = fact.Binary{Path: "/opt/cni/bin/whereabouts", SHA256: "1"}
		}},
	} {
		f := healthy()
		f.Configs.NADs.Value = []fact.Config{{Kind: fact.NADConfig, Name: "default/n", Text: c.text, Resource: cmp.Or(c.resource, "example.com/roce_rail_0")}}
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

// TestOnlySettingsUnlikeThoseOfOtherFreeFunctionsAreStale: a setting that an administrator has made on all functions,
// or on a function that the host uses, does not come from a former pod.
func TestOnlySettingsUnlikeThoseOfOtherFreeFunctionsAreStale(t *testing.T) {
	yes, no := true, false
	all := func(f *fact.Facts, do func(i int, v *fact.Function)) {
		for i := range 5 {
			do(i, function(f, i))
		}
	}
	for name, c := range map[string]struct {
		set   func(f *fact.Facts)
		fixes []string
	}{
		"a VLAN": {func(f *fact.Facts) { function(f, 3).VLAN = "7 802.1ad" }, []string{"ip link set ens20np0 vf 3 vlan 0"}},
		"all three": {
			func(f *fact.Facts) { v := function(f, 3); v.VLAN, v.Trust, v.SpoofCheck = "7", &yes, &no },
			[]string{"ip link set ens20np0 vf 3 vlan 0 trust off spoofchk on"},
		},
		"two of five": {
			func(f *fact.Facts) { function(f, 1).VLAN, function(f, 2).Trust = "7", &yes },
			[]string{"ip link set ens20np0 vf 1 vlan 0", "ip link set ens20np0 vf 2 trust off"},
		},
		"another VLAN on each": {set: func(f *fact.Facts) { all(f, func(i int, v *fact.Function) { v.VLAN = fmt.Sprint(100 + i) }) }},
		"most have a VLAN": {set: func(f *fact.Facts) {
			all(f, func(i int, v *fact.Function) { v.VLAN = []string{"7", "", "7", "7", ""}[i] })
		}},
		"all are trusted":             {set: func(f *fact.Facts) { all(f, func(_ int, v *fact.Function) { v.Trust, v.SpoofCheck = &yes, &no }) }},
		"mlx5, without a spoof check": {set: func(f *fact.Facts) { all(f, func(_ int, v *fact.Function) { v.SpoofCheck = &no }) }},
		"unknown settings":            {set: func(f *fact.Facts) { all(f, func(_ int, v *fact.Function) { v.Trust, v.SpoofCheck = nil, nil }) }},
		"a record holds it":           {set: func(f *fact.Facts) { function(f, 3).VLAN, function(f, 3).Held = "7", true }},
		"a pod has it":                {set: func(f *fact.Facts) { function(f, 3).VLAN, nic(f, physical+4).Holder = "7", "default/a" }},
		"sriov-cni has taken it":      {set: func(f *fact.Facts) { function(f, 3).VLAN, nic(f, physical+4).Name = "7", "" }},
		"the host uses it":            {set: func(f *fact.Facts) { function(f, 3).VLAN, nic(f, physical+4).Protected = "7", "it has an address" }},
		"a device that is no NIC":     {set: func(f *fact.Facts) { function(f, 3).VLAN, function(f, 3).PCI = "7", "" }},
		"the only free one": {set: func(f *fact.Facts) {
			all(f, func(i int, v *fact.Function) { v.VLAN, v.Held = "7", i != 3 })
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
	nic(f, physical).Functions = fact.Fact[[]fact.Function]{}
	if _, status := found(t, f, "VF-STALE"); status != rule.Skipped {
		t.Errorf("%s", status)
	}
}

func TestNICWithoutInterfaceIsUnknownWithoutItsPorts(t *testing.T) {
	f := healthy()
	nic(f, 7).Name = ""
	away(&nic(f, 7).Ports)
	away(&nic(f, 3).Ports) // of one that has its interface
	if findings, got := found(t, f, "NIC-NETDEV"); got != rule.Unknown {
		t.Errorf("%s: %+v", got, findings)
	}
}

// TestNeedOfRDMAModulesIsUnknownWithoutPorts: a NIC of another vendor is meant for RDMA if it has
// RDMA ports.
func TestNeedOfRDMAModulesIsUnknownWithoutPorts(t *testing.T) {
	n := fact.NIC{Name: "eno1", Driver: "ice", Vendor: "8086"}
	away(&n.Ports)
	f := healthy()
	f.Host.Modules.Value, f.Host.Memlock.Value[0].Soft, f.Agent.Memlock.Value = []string{"ice"}, 64<<10, false
	f.NICs.List.Value = []fact.NIC{n}
	for _, id := range []string{"HOST-MODULES", "HOST-MEMLOCK"} {
		if findings, got := found(t, f, id); got != rule.Unknown {
			t.Errorf("%s is %s: %+v", id, got, findings)
		}
	}
	f.NICs.List.Value = append(f.NICs.List.Value, fact.NIC{Name: "ens1", Vendor: "15b3"})
	for _, id := range []string{"HOST-MODULES", "HOST-MEMLOCK"} {
		if _, got := found(t, f, id); got == rule.Unknown || got == rule.OK {
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
		results := rule.Judge(Rules(), f)
		i := slices.IndexFunc(results, func(r rule.Result) bool { return r.ID == "IPAM-NETS" })
		if r := results[i]; r.Status != rule.Unknown || len(r.Missing) != 1 || !strings.Contains(r.Missing[0], by) {
			t.Errorf("%s: %+v", by, r)
		}
	}
}

// TestFixOfNetworkManagerKeepsAddresses: if NetworkManager has set addresses on the NIC, it removes
// them when it stops managing the NIC. So there must be no such fix.
func TestFixOfNetworkManagerKeepsAddresses(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(n *fact.NIC)
		want bool
	}{
		{"no address", func(n *fact.NIC) { n.Addresses.Value = nil }, true},
		{"a link-local address", func(n *fact.NIC) { n.Addresses.Value = []string{"fe80::1/64"} }, true},
		{"an address", func(*fact.NIC) {}, false},
		{"unknown addresses", func(n *fact.NIC) { away(&n.Addresses) }, false},
		{"macvlans", func(n *fact.NIC) { n.Addresses.Value, n.Children = nil, 2 }, false},
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
		if have := evidence(t, f, "HOST-KMSG") != ""; have != want || !host.KernelTrouble(line) {
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
		if have := evidence(t, f, "HOST-KMSG"); have != "" || host.KernelTrouble(line) {
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
	if _, got := found(t, f, "HOST-KMSG"); got != rule.Unknown {
		t.Errorf("without the virtual functions: %s", got)
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
	i := &n.Pods[0].Interfaces.Value[slices.IndexFunc(n.Pods[0].Interfaces.Value, func(i fact.Interface) bool { return i.NIC != "" })]
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
	if findings, got := found(t, f, "VER-SKEW"); got != rule.OK {
		t.Errorf("%s: %+v", got, findings)
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
		{"no limit", fact.Unlimited, 1000, 0, 0, ""},
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
		set  func(n *fact.NIC)
		want rule.Status
	}{
		{"ports and char devices", func(*fact.NIC) {}, rule.OK},
		{"a port in a pod's namespace", func(n *fact.NIC) { n.CharDevices = nil }, rule.OK},
		{"a char device, and ports that could not be read", func(n *fact.NIC) { away(&n.Ports) }, rule.OK},
		{"no RDMA device", func(n *fact.NIC) { n.Ports.Value, n.CharDevices = nil, nil }, rule.Status(rule.Fail)},
		{"no interface either", func(n *fact.NIC) { n.Ports.Value, n.CharDevices, n.Name = nil, nil, "" }, rule.OK},
		{"nobody knows", func(n *fact.NIC) { away(&n.Ports); n.CharDevices = nil }, rule.Unknown},
	} {
		f := healthy()
		f.Host.Modules.Value = slices.DeleteFunc(f.Host.Modules.Value, func(name string) bool { return name == "mlx5_ib" })
		c.set(nic(f, 3))
		if _, got := found(t, f, "HOST-RDMADRIVER"); got != c.want {
			t.Errorf("%s: %s", c.name, got)
		}
		if got := evidence(t, f, "HOST-RDMADRIVER"); c.want == rule.Status(rule.Fail) && !strings.Contains(got, "mlx5_ib, which makes the RDMA devices of ens4np0, is not loaded") {
			t.Errorf("%s: %s", c.name, got)
		}
	}
}

func TestRuntimeMemlockCountsUnlessNRISetsIt(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*fact.Agent)
		want rule.Status
	}{
		{"NRI sets it", func(*fact.Agent) {}, rule.OK},
		{"NRI is off", func(a *fact.Agent) { a.NRI.Value = false }, rule.Status(rule.Warn)},
		{"publish.memlock is false", func(a *fact.Agent) { a.Memlock.Value = false }, rule.Status(rule.Warn)},
		{"no agent", func(a *fact.Agent) { a.Running.Value = false; away(&a.NRI); away(&a.Memlock) }, rule.Status(rule.Warn)},
		{"nobody knows", func(a *fact.Agent) { away(&a.Memlock) }, rule.Unknown},
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
		if findings, got := found(t, f, id); got != rule.Unknown {
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
	f.Host.Sysctls.Value[ofDefault] = "0"
	f.Kubelet.Pools.Value, f.Kubelet.Labels.Value = nil, nil
	f.Kubelet.Capacity.Value, f.Kubelet.Allocatable.Value = nil, nil
	f.Ledger.Attachments.Value = nil
	var nics []fact.NIC
	for i := range 8 {
		nics = append(nics, fact.NIC{
			Name: "rail" + string(rune('0'+i)), Driver: "veth", LinkType: "ether", Children: 1,
			AdminUp: fact.Known(true, "netlink"), Carrier: fact.Known(true, "netlink"), Mbps: fact.Known(int64(10_000), "sysfs"), MTU: fact.Known(1500, "netlink"), DCB: fact.Known(fact.DCB{}, "netlink"), Firmware: fact.Known("", "ethtool"),
			Flaps: fact.Known(fact.Flaps{}, "rail-agent"), Rising: fact.Known(fact.Rising{Seconds: 1}, "sysfs"), ManagedBy: fact.Known("", "/run"), VFs: fact.Known(fact.VFs{}, "sysfs"),
			Addresses: fact.Known([]string{"fe80::1/64"}, "netlink"), Ports: fact.Known([]fact.Port(nil), "sysfs"),
		})
	}
	f.NICs.List.Value = nics
	for _, r := range rule.Judge(Rules(), f) {
		if len(r.Findings) > 0 || r.Status == rule.Unknown {
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
		for _, r := range rule.Judge(Rules(), f) {
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
		{`[]`, "does not list the interface net1"},
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
	read, err := fact.Decode(strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rule.Judge(Rules(), read) {
		if r.Status != rule.OK {
			t.Errorf("%s is %s: %+v %v", r.ID, r.Status, r.Findings, r.Missing)
		}
	}
}

// TestPodsOfASharedPoolThatFitTheGIDTable: each pod of a shared pool takes four entries of the GID
// table. The NIC's own entries come in addition.
func TestPodsOfASharedPoolThatFitTheGIDTable(t *testing.T) {
	for count, want := range map[int64]rule.Status{60: rule.OK, 62: rule.OK, 63: rule.OK, 64: rule.Status(rule.Warn), 100: rule.Status(rule.Warn), 127: rule.Status(rule.Warn)} {
		f := healthy()
		f.Kubelet.Pools.Value[0].Count, f.Kubelet.Capacity.Value["rdma/hca_gpu"] = count, count
		if got := statusOf(rule.Judge(Rules(), f), "DP-HCAMAX"); got != want {
			t.Errorf("%d pods: %s, want %s", count, got, want)
		}
	}
}

// TestPartitionAtIndexZero: programs that do not name a partition use index 0 of the port's table.
func TestPartitionAtIndexZero(t *testing.T) {
	for name, c := range map[string]struct {
		table []fact.PKey
		want  rule.Status
	}{
		"full":                     {[]fact.PKey{{Index: 0, Key: "0xffff"}, {Index: 1, Key: "0x0010"}}, rule.OK},
		"limited, a full one next": {[]fact.PKey{{Index: 0, Key: "0x7fff"}, {Index: 1, Key: "0x8010"}}, rule.Status(rule.Warn)}, // a partitions.conf without a line Default
		"a hole":                   {[]fact.PKey{{Index: 1, Key: "0x8010"}, {Index: 10, Key: "0x8030"}}, rule.Status(rule.Warn)},
		"limited and full in one":  {[]fact.PKey{{Index: 0, Key: "0x7fff"}, {Index: 1, Key: "0xffff"}}, rule.Status(rule.Warn)},
		"none full":                {[]fact.PKey{{Index: 0, Key: "0x7fff"}, {Index: 1, Key: "0x0010"}}, rule.Status(rule.Warn)},
	} {
		f := healthy()
		port(f, 8).PKeys.Value = c.table
		if got := statusOf(rule.Judge(Rules(), f), "IB-PKEY"); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestActivePortWithoutACarrier: when the subnet manager ends, the port stays active, but its
// interface loses the carrier.
func TestActivePortWithoutACarrier(t *testing.T) {
	f := healthy()
	nic(f, 8).Carrier.Value = false
	if got := statusOf(rule.Judge(Rules(), f), "IB-SM"); got != rule.Status(rule.Fail) {
		t.Errorf("IB-SM is %s", got)
	}
}

// TestGIDWithoutAnAddressIsNoFinding: the kernel makes GID 0 from the MAC address, even if the NIC
// has another link-local address or no IPv6. Such a GID belongs to no address of the NIC, and this
// is not a problem.
func TestGIDWithoutAnAddressIsNoFinding(t *testing.T) {
	want := map[string]rule.Status{}
	for name, change := range map[string]func(*fact.Facts){
		"as it is":                  func(*fact.Facts) {},
		"a container without index": func(f *fact.Facts) { delete(container(f).Env, "NCCL_IB_GID_INDEX") },
	} {
		f := healthy()
		change(f)
		for _, r := range rule.Judge(Rules(), f) {
			want[r.ID] = r.Status
		}
		for i := range f.NICs.List.Value {
			for k := range nic(f, i).Ports.Value {
				p := &nic(f, i).Ports.Value[k]
				if p.LinkLayer != fact.InfiniBand {
					p.GIDs.Value = append(addressed(0, "fe80:0000:0000:0000:5054:00ff:fe12:3456", p.GIDs.Value[0].Netdev), p.GIDs.Value...)
				}
			}
		}
		for _, r := range rule.Judge(Rules(), f) {
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
		pool   fact.Pool
		want   rule.Status
	}{
		"umad, granted":            {"umad8", fact.Pool{NICs: []string{"ens9np0"}, UMAD: true}, rule.OK},
		"umad, granted by address": {"umad8", fact.Pool{NICs: []string{"0000:18:00.0"}, UMAD: true}, rule.OK},
		"umad, of another pool":    {"umad8", fact.Pool{NICs: []string{"ens1np0"}, UMAD: true}, rule.Status(rule.Warn)},
		"umad, in a pool without":  {"umad8", fact.Pool{NICs: []string{"ens9np0"}}, rule.Status(rule.Warn)},
		"issm, though umad is":     {"issm8", fact.Pool{NICs: []string{"ens9np0"}, UMAD: true}, rule.Status(rule.Warn)},
		"verbs":                    {"uverbs8", fact.Pool{NICs: []string{"ens9np0"}}, rule.OK},
	} {
		t.Run(name, func(t *testing.T) {
			f := healthy()
			manages(f, c.device)
			f.Kubelet.Pools.Value = append(f.Kubelet.Pools.Value, c.pool)
			if have := statusOf(rule.Judge(Rules(), f), "IB-UMAD-IN-POD"); have != c.want {
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
		"its own":         {"2", "NCCL_IB_HCA", fact.InfiniBand, "container main sets NCCL_IB_PKEY=2; at that index port 1 of mlx5_0 now has 0x8001"},
		"of an empty one": {"1", "", fact.InfiniBand, "now has no partition"},
		"rail-agent's":    {"2", "NCCL_IB_HCA,NCCL_IB_PKEY", fact.InfiniBand, ""},
		"the default":     {"0", "", fact.InfiniBand, ""},
		"on Ethernet":     {"2", "", "Ethernet", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := healthy()
			partition(f, c.value)
			container(f).Env[railinfo.ListVar] = c.list
			if port := &pod(f).Devices.Value[0]; c.layer != fact.InfiniBand {
				port.LinkLayer, port.PKeys = c.layer, fact.Fact[[]fact.PKey]{} // nobody reads them
			}
			if status := statusOf(rule.Judge(Rules(), f), "POD-PKEY"); c.want == "" && status != rule.OK {
				t.Errorf("it is %s", status)
			}
			var said []string
			for _, result := range rule.Judge(Rules(), f) {
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
