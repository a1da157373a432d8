package configs

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/network"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/doctor/subject"
)

// ourKeys and ourIPAMKeys are the keys that only rail-cni's plugins read.
var (
	ourKeys = []string{
		"stateDir", "rail", "keepAddress", "allow", "rdma", "gidTimeout", "roceTos", "linkTimeout", "routing", "arp", "acceptRA",
		"pkey", "umcast",
	}
	ourIPAMKeys = []string{"allocation", "store", "block_size", "sameHost", "prefix"}
)

// checkForeignTypes compares each network with the plugin files on the nodes that can run the network's pods. On many
// nodes another project's sriov or ipoib is intended. So such a plugin is reported only if the network has keys that
// only rail-cni's plugin reads.
func checkForeignTypes(f *fact.Facts, r *rule.Report) {
	nodes := []*fact.Facts{f}
	if f.CNI == nil {
		nodes = nil
		subject.EachNode(f, func(n *fact.Facts) {
			if n.CNI != nil {
				nodes = append(nodes, n)
			}
		})
	}
	if len(nodes) == 0 {
		return
	}
	files := make([]map[string]*fact.Binary, len(nodes))
	for i, n := range nodes {
		files[i] = pluginFiles(n, r)
	}
	subject.EachNetwork(f, r, func(n *network.Network) {
		found := map[string][]string{} // for each problem, the names of the nodes that have it
		for i, node := range nodes {
			if len(files[i]) == 0 || !isFor(n, node, r) {
				continue
			}
			for k := range n.Plugins {
				p := &n.Plugins[k]
				for _, served := range []struct {
					name string
					keys []string
				}{{p.Type, keysOfOurs(p)}, {p.IPAMType(), ipamKeysOfOurs(p.Raw)}} {
					if served.name != network.Whereabouts && !slices.Contains(network.Kinds, served.name) {
						continue
					}
					r.Judged()
					if text := wrongWith(files[i][served.name], served.name, served.keys); text != "" {
						found[text] = append(found[text], rule.Clean(node.Node))
					}
				}
			}
		}
		for _, text := range slices.Sorted(maps.Keys(found)) {
			nodes := "the node"
			if f.CNI == nil {
				nodes = rule.Shortened(found[text])
			}
			r.Find(n.Config.Object(), "on %s %s", nodes, text)
		}
	})
}

// wrongWith returns the reason why the plugin's file is wrong for a network that has these keys of rail-cni. It returns
// "" if the file is not wrong.
func wrongWith(file *fact.Binary, name string, keys []string) string {
	switch {
	case file == nil:
		return "there is no plugin " + name
	case file.RailCNI, file.Installed != "", len(keys) == 0: // CNI-BINARY reports a file that was replaced
		return ""
	}
	return fmt.Sprintf("the plugin %s is not rail-cni's, and does not read %s", name, strings.Join(keys, ", "))
}

// pluginFiles returns the plugin files on the node, by their names. It returns none if none of them is rail-cni's,
// because then the node is not meant for networks of rail-cni.
func pluginFiles(f *fact.Facts, r *rule.Report) map[string]*fact.Binary {
	binaries, _ := rule.Read(r, "plugins", f.CNI.Binaries)
	if !slices.ContainsFunc(binaries, func(b fact.Binary) bool { return b.RailCNI }) {
		return nil
	}
	files := map[string]*fact.Binary{}
	for i := range binaries {
		b := &binaries[i]
		if had := files[path.Base(b.Path)]; had == nil || !had.RailCNI {
			files[path.Base(b.Path)] = b
		}
	}
	return files
}

// isFor reports whether pods with the network can run on the node. They can if the node offers the network's resource,
// or has the NIC or the rail that the network names.
func isFor(n *network.Network, node *fact.Facts, r *rule.Report) bool {
	if n.Config.Resource != "" {
		if node.Kubelet == nil {
			return false
		}
		capacity, _ := rule.Read(r, "capacity", node.Kubelet.Capacity)
		return capacity[n.Config.Resource] > 0
	}
	if node.NICs == nil {
		return false
	}
	nics, _ := rule.Read(r, "nics", node.NICs.List)
	others, _ := rule.Read(r, "other interfaces", node.NICs.Others)
	return slices.ContainsFunc(n.Plugins, func(p network.Plugin) bool {
		if p.Err != nil || !p.TakesNIC() {
			return false // CNI-NAD has the error
		}
		name, rail := p.Selected(), p.Rail()
		return slices.ContainsFunc(nics, func(nic fact.NIC) bool {
			return name != "" && (nic.Name == name || nic.PCI == name || slices.Contains(nic.AltNames, name)) ||
				nic.Rail != nil && (rail.Auto || rail.Number != nil && *rail.Number == *nic.Rail)
		}) || slices.ContainsFunc(others, func(o fact.HostInterface) bool {
			return name != "" && (o.Name == name || slices.Contains(o.AltNames, name))
		})
	})
}

// keysOfOurs returns the keys of the plugin's configuration that only rail-cni reads. It also
// returns the variables in the addresses, which only rail-cni replaces.
func keysOfOurs(p *network.Plugin) []string {
	keys := ourKeys
	if p.Kind == "ib-sriov" { // ib-sriov-cni also reads "pkey"
		keys = slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return key == "pkey" })
	}
	found := keysIn(p.Raw, keys)
	for _, variable := range []string{"${rail}", "${node}"} {
		if strings.Contains(string(p.Raw), variable) {
			found = append(found, variable)
		}
	}
	return found
}

func ipamKeysOfOurs(raw []byte) []string {
	var conf struct {
		IPAM json.RawMessage `json:"ipam"`
	}
	_ = json.Unmarshal(raw, &conf) // CNI-NAD has the error
	return keysIn(conf.IPAM, ourIPAMKeys)
}

// keysIn returns the elements of keys that are keys of the JSON object in raw. As in encoding/json, the case of a key
// does not matter.
func keysIn(raw []byte, keys []string) []string {
	var object map[string]json.RawMessage
	_ = json.Unmarshal(raw, &object)
	var found []string
	for _, key := range keys {
		for name := range object {
			if strings.EqualFold(name, key) {
				found = append(found, key)
				break
			}
		}
	}
	return found
}
