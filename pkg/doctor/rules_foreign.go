package doctor

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
)

// ourKeys and ourIPAMKeys are keys that no other project's plugin reads.
var (
	ourKeys = []string{
		"stateDir", "rail", "keepAddress", "allow", "rdma", "gidTimeout", "roceTos", "linkTimeout", "routing", "arp", "acceptRA",
		"pkey", "umcast",
	}
	ourIPAMKeys = []string{"allocation", "store", "block_size", "sameHost", "prefix"}
)

// checkForeignTypes judges networks by the files of plugins on the nodes that can run their pods. Many a node has sriov or
// ipoib of another project on purpose: that is found only if the network has keys that the other does not read.
func checkForeignTypes(f *Facts, r *Report) {
	nodes := []*Facts{f}
	if f.CNI == nil {
		nodes = nil
		eachNode(f, func(n *Facts) {
			if n.CNI != nil {
				nodes = append(nodes, n)
			}
		})
	}
	if len(nodes) == 0 {
		return
	}
	files := make([]map[string]*Binary, len(nodes))
	for i, n := range nodes {
		files[i] = n.pluginFiles(r)
	}
	eachNetwork(f, r, func(n *network) {
		found := map[string][]string{} // the names of the nodes, by what is wrong there
		for i, node := range nodes {
			if len(files[i]) == 0 || !n.isFor(node, r) {
				continue
			}
			for k := range n.plugins {
				p := &n.plugins[k]
				for _, served := range []struct {
					name string
					keys []string
				}{{p.name, p.keysOfOurs()}, {p.ipamType(), ipamKeysOfOurs(p.raw)}} {
					if served.name != whereabouts && !slices.Contains(kinds, served.name) {
						continue
					}
					r.judged()
					if text := wrongWith(files[i][served.name], served.name, served.keys); text != "" {
						found[text] = append(found[text], clean(node.Node))
					}
				}
			}
		}
		for _, text := range slices.Sorted(maps.Keys(found)) {
			on := "the node"
			if f.CNI == nil {
				on = strings.Join(found[text][:min(len(found[text]), maxShown)], ", ")
				if more := len(found[text]) - maxShown; more > 0 {
					on += fmt.Sprintf(" and %d more", more)
				}
			}
			r.Find(n.config.Object(), "on %s %s", on, text)
		}
	})
}

// wrongWith returns what is wrong with the plugin's file for a network with these keys of ours, "" for nothing.
func wrongWith(file *Binary, name string, keys []string) string {
	switch {
	case file == nil:
		return "there is no plugin " + name
	case file.RailCNI, file.Installed != "", len(keys) == 0: // CNI-BINARY has a file that was replaced
		return ""
	}
	return fmt.Sprintf("the plugin %s is not rail-cni's, and does not read %s", name, strings.Join(keys, ", "))
}

// pluginFiles returns the files of plugins on the node by their names, none if none is rail-cni's: the node is not for its
// networks.
func (f *Facts) pluginFiles(r *Report) map[string]*Binary {
	binaries, _ := Read(r, "plugins", f.CNI.Binaries)
	if !slices.ContainsFunc(binaries, func(b Binary) bool { return b.RailCNI }) {
		return nil
	}
	files := map[string]*Binary{}
	for i := range binaries {
		b := &binaries[i]
		if had := files[path.Base(b.Path)]; had == nil || !had.RailCNI {
			files[path.Base(b.Path)] = b
		}
	}
	return files
}

// isFor reports whether pods with the network can run on the node: it has the network's resource, or the NIC or the rail
// that the network names.
func (n *network) isFor(node *Facts, r *Report) bool {
	if n.config.Resource != "" {
		if node.Kubelet == nil {
			return false
		}
		capacity, _ := Read(r, "capacity", node.Kubelet.Capacity)
		return capacity[n.config.Resource] > 0
	}
	if node.NICs == nil {
		return false
	}
	nics, _ := Read(r, "nics", node.NICs.List)
	others, _ := Read(r, "other interfaces", node.NICs.Others)
	return slices.ContainsFunc(n.plugins, func(p plugin) bool {
		if p.err != nil || !p.takesNIC() {
			return false // CNI-NAD has the error
		}
		name, rail := p.selected(), p.rail()
		return slices.ContainsFunc(nics, func(nic NIC) bool {
			return name != "" && (nic.Name == name || nic.PCI == name || slices.Contains(nic.AltNames, name)) ||
				nic.Rail != nil && (rail.Auto || rail.Number != nil && *rail.Number == *nic.Rail)
		}) || slices.ContainsFunc(others, func(o HostInterface) bool {
			return name != "" && (o.Name == name || slices.Contains(o.AltNames, name))
		})
	})
}

// keysOfOurs returns the plugin's keys, and the variables of its addresses, that only rail-cni reads.
func (p *plugin) keysOfOurs() []string {
	ours := ourKeys
	if p.kind == "ib-sriov" { // whose "pkey" is ib-sriov-cni's
		ours = slices.DeleteFunc(slices.Clone(ours), func(key string) bool { return key == "pkey" })
	}
	found := keysIn(p.raw, ours)
	for _, variable := range []string{"${rail}", "${node}"} {
		if strings.Contains(string(p.raw), variable) {
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

// keysIn returns those of the keys that the object has. Their case does not matter, as in encoding/json.
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
