package doctor

import (
	"fmt"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
)

const (
	healthyMacvlan = `{"cniVersion": "0.3.1", "name": "rdma-net", "type": "macvlan", "master": "ens3np0", "mode": "bridge", "mtu": 9000,
		"ipam": {"type": "whereabouts", "range": "192.168.111.0/24"}}`
	healthyIPoIB = `{"cniVersion": "0.3.1", "name": "ib-net", "type": "ipoib", "master": "ens9np0", "pkey": "0x7fff", "mtu": 2044,
		"ipam": {"type": "whereabouts", "range": "192.168.5.224/28"}}`
	healthyRails = `{"cniVersion": "1.0.0", "name": "roce", "plugins": [{"type": "host-device", "rail": "auto", "routing": {"mode": "source"},
		"ipam": {"type": "whereabouts", "range": "10.${rail}.0.0/16", "gateway": "10.${rail}.0.1", "sameHost": true, "block_size": 16}}, {"type": "tuning", "any": 1}]}`
	healthyNodeFile = `{rails: {auto: pciOrder}, resources: {pools: [{name: example.com/roce, mode: perRail, select: {rails: all}}]}}`
	healthyShared   = `{"periodicUpdateInterval": 300, "configList": [{"resourceName": "hca_gpu", "rdmaHcaMax": 8, "selectors": {"ifNames": ["ens7np0", "ens8np0"]}}]}`
)

// These are the indexes of the healthy configurations.
const (
	macvlanNAD = iota
	railsNAD
	deviceNAD // four of them
	ipoibNAD  = deviceNAD + 4
)

const (
	nodeFile = iota
	sharedConfig
)

func healthyConfigs(f *fact.Facts) {
	nads := []fact.Config{
		{Kind: fact.NADConfig, Name: "default/rdma-net", Text: healthyMacvlan, Resource: "rdma/hca_gpu"},
		{Kind: fact.NADConfig, Name: "default/roce", Text: healthyRails, Resource: "example.com/roce_rail_0"},
	}
	files := []fact.Config{
		{Kind: fact.NodeFile, Name: "/etc/rail-cni/node.yaml", Text: healthyNodeFile},
		{Kind: fact.SharedConfig, Name: "config.json", Text: healthyShared},
	}
	for i := range 4 {
		nads = append(nads, fact.Config{Kind: fact.NADConfig, Name: fmt.Sprintf("default/roce-net-%d", i+4), Text: fmt.Sprintf(`{"cniVersion": "0.3.1", "name": "roce-net%d",
			"type": "host-device", "device": "ens%dnp0", "ipam": {"type": "whereabouts", "range": "172.31.%d.0/24", "gateway": "172.31.%d.1", "routes": [{"dst": "172.31.0.0/16"}]}}`, i+4, i+5, i+4, i+4)})
	}
	nads = append(nads, fact.Config{Kind: fact.NADConfig, Name: "default/ib-net", Text: healthyIPoIB})
	f.Configs = &fact.Configs{Files: fact.Known(files, "files"), NADs: fact.Known(nads, "API server"), Networks: fact.Known(map[string][]string{"nodes": {"192.168.7.1/32"}, "pods": {"10.244.0.0/16"}, "services": {"10.96.0.0/12"}}, "API server")}
	f.Configs.Requests = fact.Known(map[string][]string{"default/trainer-0": {fact.NetworksKey}}, "API server")
}

// edit returns a function that changes the text of a network. editFile returns a function that
// changes the text of a file.
func edit(i int, old, to string) func(*fact.Facts) {
	return func(f *fact.Facts) { replace(&f.Configs.NADs.Value[i], old, to) }
}

func editFile(i int, old, to string) func(*fact.Facts) {
	return func(f *fact.Facts) { replace(&f.Configs.Files.Value[i], old, to) }
}

func replace(c *fact.Config, old, to string) {
	if !strings.Contains(c.Text, old) {
		panic(old)
	}
	c.Text = strings.Replace(c.Text, old, to, 1)
}

func noNADs(f *fact.Facts) { away(&f.Configs.NADs) }

func noFiles(f *fact.Facts) { away(&f.Configs.Files) }

func init() {
	add("CNI-NAD", fixture{fires: edit(macvlanNAD, `"bridge"`, `"bride"`), missing: noNADs})
	add("CNI-ANNOTATION", fixture{
		fires: func(f *fact.Facts) {
			f.Configs.Requests.Value["default/web-0"] = []string{"k8s.v1.cni.cncf.io/network"}
		},
		missing: func(f *fact.Facts) { away(&f.Configs.Requests) },
	})
	add("CNI-KEY", fixture{fires: edit(macvlanNAD, `"mtu"`, `"mtuu"`), missing: noNADs})
	add("CNI-VERSION", fixture{fires: edit(macvlanNAD, `0.3.1`, `2.0.0`), missing: noNADs})
	add("CNI-NETSTATUS", fixture{fires: edit(macvlanNAD, `0.3.1`, `0.2.0`), missing: noNADs})
	add("CNI-CHAIN", fixture{fires: edit(railsNAD, `"plugins": [`, `"plugins": [{"type": "rdma"}, `), missing: noNADs})
	add("CNI-TYPE", fixture{fires: edit(railsNAD, `"tuning"`, `"host-devices"`), missing: noNADs})
	add("CNI-FOREIGN-TYPE", fixture{
		fires: func(f *fact.Facts) {
			f.CNI.Binaries.Value[3] = fact.Binary{Path: "/opt/cni/bin/ipoib", SHA256: "dddd", Installed: "", Version: "", RailCNI: false}
		},
		missing: noBinaries,
	})
	add("CNI-MODE", fixture{
		fires:   func(f *fact.Facts) { f.Host.RDMAMode.Value = "exclusive" },
		missing: func(f *fact.Facts) { away(&f.Host.RDMAMode) },
		also:    []string{"HOST-RDMAMODE"},
	})
	add("CNI-DEVICE", fixture{fires: edit(deviceNAD, `"ens5np0"`, `"enp21s0np0"`), missing: noNADs})
	add("CNI-NIC", fixture{fires: edit(deviceNAD, `"ens5np0"`, `"ENS5np0"`), missing: noNICs})
	add("IB-NAD-PKEY", fixture{fires: edit(ipoibNAD, "0x7fff", "0x8002"), missing: func(f *fact.Facts) { away(&port(f, 8).PKeys) }})
	add("IB-MTU", fixture{fires: edit(ipoibNAD, "2044", "4092"), missing: func(f *fact.Facts) { away(&nic(f, 8).MTU) }})
	add("CNI-MTU", fixture{fires: edit(macvlanNAD, "9000", "9216"), missing: func(f *fact.Facts) { away(&nic(f, 2).MTU) }})
	add("CNI-RESOURCE", fixture{
		fires:   func(f *fact.Facts) { f.Configs.NADs.Value[macvlanNAD].Resource = "rdma/hca" },
		missing: noNADs,
	})
	add("IPAM-RAILS", fixture{fires: edit(railsNAD, "10.${rail}.0.0/16", "10.0.${rail}.0/16"), missing: noNADs})
	add("IPAM-GW", fixture{fires: edit(deviceNAD, `"range"`, `"allow_gateway": true, "range"`), missing: noBinaries})
	add("IPAM-GWNET", fixture{fires: edit(deviceNAD, `"gateway": "172.31.4.1"`, `"gateway": "172.31.5.1"`), missing: noNADs})
	add("IPAM-GWROUTE", fixture{
		fires: func(f *fact.Facts) {
			edit(deviceNAD, `, "routes": [{"dst": "172.31.0.0/16"}]`, "")(f)
			editFile(nodeFile, "{rails:", "{fabric: routed, rails:")(f)
		},
		missing: noNADs,
	})
	add("IPAM-EMPTY", fixture{fires: edit(macvlanNAD, `"192.168.111.0/24"`, `"192.168.111.0/30", "exclude": ["192.168.111.0/30"]`), missing: noNADs})
	add("IPAM-OVERLAP", fixture{fires: edit(deviceNAD, "172.31.4.0/24", "172.31.4.0/23"), missing: noNADs})
	add("IPAM-NETS", fixture{
		fires:   func(f *fact.Facts) { f.Configs.Networks.Value["nodes"] = []string{"192.168.0.0/16"} },
		missing: func(f *fact.Facts) { away(&f.Configs.Networks) },
	})
	add("NODE-FILE", fixture{fires: editFile(nodeFile, "mode: perRail", "mode: perRial"), missing: noFiles, also: []string{"CNI-RESOURCE"}})
	add("DP-CONFIG", fixture{fires: editFile(sharedConfig, `"rdmaHcaMax": 8`, `"rdmaHcaMax": -8`), missing: noFiles, also: []string{"CNI-RESOURCE"}})
	add("DP-KEY", fixture{fires: editFile(sharedConfig, `"ifNames"`, `"ifnams": ["x"], "ifNames"`), missing: noFiles})
	add("DP-IFNAMES", fixture{fires: editFile(sharedConfig, `"ens8np0"`, `"ens8"`), missing: noNICs})
}
