package doctor

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/ruletest"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

// idle returns the facts of a node whose node file names no rails, with eight NICs that no pod
// holds, and an uplink with RDMA. There is no cluster.
func idle() *fact.Facts {
	f := healthy()
	f.Cluster, f.Pods, f.Configs = nil, nil, nil
	f.Ledger.Attachments.Value, f.Kubelet.Pools.Value = nil, nil
	f.NICs.List.Value = f.NICs.List.Value[:8]
	for i := range 8 {
		n := nic(f, i)
		n.Rail, n.Holder, n.Children, n.Device = nil, "", 0, "1021"
		n.Addresses.Value, port(f, i).GIDs.Value = []string{"fe80::1/64"}, addressed(2, mapped(i, 1), n.Name)
	}
	uplink := healthyNIC(7)
	uplink.Name, uplink.AltNames, uplink.PCI, uplink.Rail, uplink.Device, uplink.Uplink = "eno1", nil, "0000:90:00.0", nil, "101f", true
	uplink.MTU.Value, uplink.Mbps.Value, uplink.Carrier.Value = 1500, 25_000, false
	f.NICs.List.Value = append(f.NICs.List.Value, uplink)
	return f
}

// defects has, by the ID of the rule that must find it, a function that plants a defect in a NIC of
// an idle node.
var defects = map[string]func(*fact.NIC){
	"NIC-CARRIER":  func(n *fact.NIC) { n.Carrier.Value, n.Mbps.Value = false, 0 },
	"NIC-MTU":      func(n *fact.NIC) { n.MTU.Value = 1500 },
	"NIC-PCIE":     func(n *fact.NIC) { n.PCIe.Value.Width = 8 },
	"NIC-SPEED":    func(n *fact.NIC) { n.Mbps.Value = 200_000 },
	"NIC-FIRMWARE": func(n *fact.NIC) { n.Firmware.Value = "28.39.1002" },
}

func TestDefectsOfAnIdleNodeWithoutRailsAreFound(t *testing.T) {
	sound := idle()
	for _, r := range rule.Judge(rule.Select(Rules(), rule.NodeScope), sound) {
		if len(r.Findings) > 0 {
			t.Errorf("without a defect %s finds %+v", r.ID, r.Findings)
		}
	}
	f, at := idle(), 0
	on := map[string]string{}
	for id, plant := range defects {
		plant(nic(f, at))
		on[id] = nic(f, at).Object()
		at++
	}
	for id, object := range on {
		findings, _ := found(t, f, id)
		if len(findings) != 1 || findings[0].Object != object {
			t.Errorf("%s on %s: %+v", id, object, findings)
		}
	}
}

func TestNetworksAndPoolsNameTheNICsOfANodeWithoutRails(t *testing.T) {
	sick := func() *fact.Facts {
		f := idle()
		for i := range f.NICs.List.Value {
			defects["NIC-CARRIER"](nic(f, i))
		}
		return f
	}
	of := func(networks ...string) func(*fact.Facts) {
		return func(f *fact.Facts) { f.Configs = ruletest.NADs(networks...).Configs }
	}
	for _, c := range []struct {
		name string
		set  func(*fact.Facts)
		want []string
	}{
		{"all with RDMA but the uplink", func(*fact.Facts) {}, []string{"ens1np0", "ens2np0", "ens3np0", "ens4np0", "ens5np0", "ens6np0", "ens7np0", "ens8np0"}},
		{"a device", of(`{"cniVersion": "1.0.0", "type": "host-device", "device": "ens2np0"}`), []string{"ens2np0"}},
		{"an alternative name and a PCI address", of(`{"type": "host-device", "device": "enp18s0np0"}`, `{"type": "host-device", "pciBusID": "0000:14:00.0"}`), []string{"ens3np0", "ens5np0"}},
		{"a master, even an uplink", of(`{"type": "macvlan", "master": "eno1"}`), []string{"eno1"}},
		{"a pool", func(f *fact.Facts) {
			f.Kubelet.Pools.Value = []fact.Pool{{Resource: "rdma/a", Kind: "shared", NICs: []string{"ens4np0"}, Count: 1}}
		}, []string{"ens4np0"}},
		{"networks that name none", of(`{"type": "host-device", "rail": "auto"}`), []string{"ens1np0", "ens2np0", "ens3np0", "ens4np0", "ens5np0", "ens6np0", "ens7np0", "ens8np0"}},
		{"a lent NIC beside a named one", func(f *fact.Facts) {
			of(`{"type": "host-device", "device": "ens2np0"}`)(f)
			nic(f, 6).Holder = "default/p"
		}, []string{"ens2np0", "ens7np0"}},
		{"a rail, which is the node file's word", func(f *fact.Facts) { nic(f, 5).Rail = &[]int{0}[0] }, []string{"ens6np0"}},
		{"an uplink of facts without the field", func(f *fact.Facts) {
			nic(f, 8).Uplink, nic(f, 8).Protected = false, "eno1 must stay on the host: a default route of the host leaves by it"
			f.NICs.List.Value = f.NICs.List.Value[7:]
		}, []string{"ens8np0"}},
		{"a NIC without RDMA", func(f *fact.Facts) {
			nic(f, 0).Vendor, nic(f, 0).CharDevices, nic(f, 0).Ports.Value = "8086", nil, nil
			f.NICs.List.Value = f.NICs.List.Value[:2]
		}, []string{"ens2np0"}},
	} {
		f := sick()
		c.set(f)
		findings, _ := found(t, f, "NIC-CARRIER")
		var have []string
		for _, x := range findings {
			have = append(have, strings.TrimPrefix(x.Object, "NIC "))
		}
		if !slices.Equal(have, c.want) {
			t.Errorf("%s: judged %v, want %v", c.name, have, c.want)
		}
	}
}

// empty returns facts of a machine that has nothing for pods: no RDMA, no rails, no plugins, no
// pods, no networks. All the facts were read.
func empty() *fact.Facts {
	f := healthy()
	f.Pods = nil
	f.NICs.List.Value = []fact.NIC{{Name: "eno1", Driver: "e1000e", Vendor: "8086", PCI: "0000:00:1f.6", Kind: "pf", Uplink: true, Ports: fact.Known([]fact.Port{}, "sysfs")}}
	f.NICs.GPUs.Value, f.NICs.Others = nil, fact.Known([]fact.HostInterface{}, "netlink")
	f.Ledger.Attachments.Value, f.CNI.Binaries.Value = nil, nil
	f.CNI.Multus.Value, f.CNI.Primary.Value = "", "/etc/cni/net.d/10-flannel.conflist"
	f.Kubelet, f.Agent.Running.Value = nil, false
	f.Host.Uverbs.Value, f.Host.CharDevices.Value, f.Host.Origins.Value = nil, nil, nil
	f.Host.Modules.Value, f.Host.Memlock.Value = []string{"e1000e"}, nil
	f.Configs = &fact.Configs{Files: fact.Known([]fact.Config{}, "test"), NADs: fact.Known([]fact.Config{}, "test"), Networks: fact.Known(map[string][]string{}, "test")}
	f.Cluster = &fact.Cluster{Silent: fact.Known(map[string]string{}, "test"), Leases: fact.Known([]fact.Lease{}, "test"), Pods: fact.Known([]string{}, "test")}
	return f
}

// TestZeroObjectsAreSkippedAndNeverOK: a rule that has judged no object must not be ok. The rules
// that are ok here judge the machine itself.
func TestZeroObjectsAreSkippedAndNeverOK(t *testing.T) {
	ofTheMachine := []string{"HOST-KERNEL", "HOST-LIMITSCONF", "HOST-SWAP"}
	for _, r := range rule.Judge(Rules(), empty()) {
		want := rule.Skipped
		if slices.Contains(ofTheMachine, r.ID) {
			want = rule.OK
		}
		if r.Status != want {
			t.Errorf("%s is %s, not %s: %+v %v", r.ID, r.Status, want, r.Findings, r.Missing)
		}
	}
}

// TestRulesWithoutTheirOwnObjectsAreSkipped: one object is enough for a rule to be ok. Each case
// removes all objects of one rule from a healthy node.
func TestRulesWithoutTheirOwnObjectsAreSkipped(t *testing.T) {
	for id, take := range map[string]func(*fact.Facts){
		"NIC-DOWN": func(f *fact.Facts) {
			for i := range f.NICs.List.Value {
				nic(f, i).Children = 0
			}
		},
		"NIC-VFS":         func(f *fact.Facts) { nic(f, 0).Holder, nic(f, 1).Holder = "", "" },
		"IB-SM":           func(f *fact.Facts) { f.NICs.List.Value = f.NICs.List.Value[:8] },
		"HOST-UMAD":       func(f *fact.Facts) { f.NICs.List.Value = f.NICs.List.Value[:8] },
		"NIC-SPEED":       func(f *fact.Facts) { f.NICs.List.Value = f.NICs.List.Value[:1] },
		"CNI-BINARY":      func(f *fact.Facts) { f.CNI.Binaries.Value = nil },
		"LEDGER-ORPHAN":   func(f *fact.Facts) { f.Ledger.Attachments.Value = nil },
		"DP-DUP":          func(f *fact.Facts) { f.Kubelet.Pools.Value = nil },
		"CLUSTER-MTU":     func(f *fact.Facts) { f.Cluster.Nodes = f.Cluster.Nodes[:1] },
		"POD-HCA":         func(f *fact.Facts) { delete(container(f).Env, "NCCL_IB_HCA") },
		"CNI-RESOURCE":    func(f *fact.Facts) { each(f, func(c *fact.Config) { c.Resource = "" }) },
		"HOST-PEERMEM":    func(f *fact.Facts) { f.NICs.GPUs.Value = nil },
		"RAIL-ARPFLUX":    func(f *fact.Facts) { pod(f).Interfaces.Value = pod(f).Interfaces.Value[:2] },
		"HOST-RDMADRIVER": func(f *fact.Facts) { f.NICs.List.Value = nil },
	} {
		f := healthy()
		take(f)
		if got := statusOf(rule.Judge(Rules(), f), id); got != rule.Skipped {
			t.Errorf("%s is %s", id, got)
		}
	}
}

// each calls do for each network of the facts.
func each(f *fact.Facts, do func(*fact.Config)) {
	for i := range f.Configs.NADs.Value {
		do(&f.Configs.NADs.Value[i])
	}
}

func TestReportBeginsWithWhatIsJudged(t *testing.T) {
	named := idle()
	named.Configs = ruletest.NADs(`{"type": "host-device", "device": "ens2np0"}`).Configs
	lent := empty()
	lent.Cluster, lent.NICs.List.Value[0].Children = nil, 1
	onlyUplinks := idle()
	onlyUplinks.NICs.List.Value = onlyUplinks.NICs.List.Value[8:]
	none := empty()
	none.Cluster = nil
	unread := idle()
	away(&unread.NICs.List)
	twoOf := &fact.Facts{Cluster: &fact.Cluster{Nodes: []*fact.Facts{idle(), nil, healthy(), idle()}}}
	twoOf.Cluster.Nodes[3].Node = "node-2"
	for _, c := range []struct {
		name string
		f    *fact.Facts
		want string
	}{
		{"rails", healthy().Cluster.Nodes[0], ""},
		{"NICs that could not be read", unread, ""},
		{"no RDMA", none, "there is no RDMA device on this machine, so rules about rails have nothing to check"},
		{"no rails", idle(), "no rails are known, because the node file has none; checked: 8 NICs with RDMA that are not uplinks (to name the rails: railctl rails discover)"},
		{"uplinks only", onlyUplinks, "no rails are known, because the node file has none; checked: no NICs: all with RDMA are uplinks of the host (to name the rails: railctl rails discover)"},
		{"networks", named, "no rails are known, because the node file has none; checked: 1 NIC that networks or device pools name, or pods hold (to name the rails: railctl rails discover)"},
		{"a cluster", twoOf, "node-1, node-2: no rails are known, because the node file has none; checked: 8 NICs with RDMA that are not uplinks (to name the rails: railctl rails discover)"},
	} {
		notes := Notes(c.f)
		if got := strings.Join(notes, "\n"); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		results := rule.Judge(rule.Select(Rules(), rule.NodeScope), c.f)
		var b bytes.Buffer
		if err := WriteText(&b, results, TextOptions{Notes: notes}); err != nil {
			t.Fatal(err)
		}
		if first, _, _ := strings.Cut(b.String(), "\n"); c.want != "" && first != c.want {
			t.Errorf("%s: the first line is %q", c.name, first)
		}
		if d := NewDocument(c.f, results); !slices.Equal(d.Notes, notes) {
			t.Errorf("%s: the document has %q", c.name, d.Notes)
		}
	}
}

// TestUnknownRulesAreGroupedByTheMissingFact: one missing right is one thing to repair, even if
// many rules need it.
func TestUnknownRulesAreGroupedByTheMissingFact(t *testing.T) {
	results := []rule.Result{}
	type missing struct{ fact, reason string }
	of := func(id string, all ...missing) {
		one := rule.Rule{ID: id, Severity: rule.Warn, Check: func(_ *fact.Facts, r *rule.Report) {
			for _, m := range all {
				rule.Read(r, m.fact, fact.Failed[int]("source of "+m.fact, fmt.Errorf("%s", m.reason)))
			}
		}}
		results = append(results, rule.Judge([]rule.Rule{one}, &fact.Facts{})...)
	}
	of("A-A", missing{"pods", "forbidden"}, missing{"nodes", "forbidden"})
	of("B-B", missing{"pods", "forbidden"}, missing{"swaps", "broken"})
	var b bytes.Buffer
	if err := WriteText(&b, results, TextOptions{}); err != nil {
		t.Fatal(err)
	}
	const want = `UNKNOWN

  * forbidden
  not known    nodes (source of nodes: forbidden), and 1 more
  rules        A-A, B-B
  * broken
  not known    swaps (source of swaps: broken)
  rules        B-B

2 rules: 2 unknown
`
	if b.String() != want {
		t.Errorf("the report is\n%s", b.String())
	}
}

// TestCuresNameThePagesOfTheVersion: a node has no copy of the documentation, so cures must have
// web addresses of the pages.
func TestCuresNameThePagesOfTheVersion(t *testing.T) {
	for version, want := range map[string]string{
		"v1.2.3": "https://github.com/rail-cni/rail-cni/blob/v1.2.3/docs/reference/kernels.md lists", "v1.2.3-rc.1": "/blob/v1.2.3-rc.1/docs/",
		"devel": "/blob/main/docs/", "": "/blob/main/docs/", "v1.2.3/../x": "/blob/main/docs/", "6e91284": "/blob/main/docs/",
	} {
		f := healthy()
		f.Version, f.Host.Kernel.Value = version, "4.18.0"
		results := rule.Judge(Rules(), f)
		i := slices.IndexFunc(results, func(r rule.Result) bool { return r.ID == "HOST-KERNEL" })
		if got := results[i].Cure; !strings.Contains(got, want) {
			t.Errorf("%q: %s", version, got)
		}
	}
}
