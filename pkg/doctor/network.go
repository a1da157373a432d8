package doctor

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/iprange"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// network is the configuration of a NAD in the form in which the plugins read it.
type network struct {
	config  *Config
	version string
	list    bool // the configuration has a list of plugins
	plugins []plugin
	err     error // set if the configuration is not JSON of the right form
}

// plugin is one plugin of a network.
type plugin struct {
	name string // the type in the configuration
	kind string // the rail-cni plugin that the type names, "" for a plugin of another project
	raw  []byte // the plugin's configuration, with the name and the version of the list

	hostDevice *netconf.HostDevice // also of sriov and ib-sriov
	macvlan    *netconf.Macvlan
	ipoib      *netconf.IPoIB
	common     *netconf.Common // of the plugin above; for a plugin of another project, the keys that can be read

	err       error // from the plugin's own parser
	railErr   error // from the addresses of the first rail whose addresses are invalid
	addresses []pool
	ipamErr   error // from the parser of whereabouts
}

// pool is the configuration that whereabouts reads from a network. If the addresses differ by rail,
// a pool is for one rail.
type pool struct {
	rail *int
	conf *netconf.Whereabouts
}

// kinds are the names of the rail-cni plugins that a network can have as a type.
var kinds = []string{"host-device", "ib-sriov", "sriov", "macvlan", "ipoib", "rdma"} // a name stands before the names with which it ends: ib-sriov before sriov

// whereabouts is the type of rail-cni's IPAM plugin. A type in a network may have a prefix before
// it.
const whereabouts = "whereabouts"

// kindOf returns the rail-cni plugin that a type names, or "" if it names none. The type may have
// the prefix of an installation, for example "rail-host-device".
func kindOf(name string) string {
	for _, kind := range kinds {
		if name == kind || strings.HasSuffix(name, "-"+kind) {
			return kind
		}
	}
	return ""
}

// eachNetwork calls do for each NAD that has a configuration. A NAD without one is left out,
// because its configuration is in a file on the node.
func eachNetwork(f *Facts, r *Report, do func(*network)) {
	var rails []int
	var prefixes map[int]*nodefile.Prefix
	parse := r.parsed.networks == nil
	if parse {
		rails, prefixes = railsForConfigs(f)
	}
	eachConfig(f, r, NADConfig, func(c *Config) {
		if parse && strings.TrimSpace(c.Text) != "" {
			n := parseNetwork(c)
			for k := range n.plugins {
				n.plugins[k].parse(rails, prefixes)
			}
			r.parsed.networks = append(r.parsed.networks, n)
		}
	})
	for _, n := range r.parsed.networks {
		do(n)
	}
}

// eachConfig calls do for each configuration of the kind. If there is none, the rule has nothing to
// judge.
func eachConfig(f *Facts, r *Report, kind ConfigKind, do func(*Config)) {
	if f.Configs == nil {
		return
	}
	name, fact := "configurations", f.Configs.Files
	if kind == NADConfig {
		name, fact = "NetworkAttachmentDefinitions", f.Configs.NADs
	}
	if !fact.asked() || fact.OK() && !slices.ContainsFunc(fact.Value, func(c Config) bool { return c.Kind == kind }) {
		return
	}
	list, _ := Read(r, name, fact)
	for i := range list {
		if list[i].Kind == kind {
			do(&list[i])
		}
	}
}

// Object returns the object of findings about the configuration.
func (c *Config) Object() string {
	if c.Kind == NADConfig {
		return "NAD " + c.Name
	}
	return string(c.Kind) + " " + c.Name
}

// eachPlugin calls do for each plugin whose own parser accepts its configuration.
func eachPlugin(f *Facts, r *Report, do func(*network, *plugin)) {
	eachNetwork(f, r, func(n *network) {
		for i := range n.plugins {
			if n.plugins[i].err == nil {
				do(n, &n.plugins[i])
			}
		}
	})
}

func parseNetwork(c *Config) *network {
	n := &network{config: c}
	var keys struct {
		CNIVersion string            `json:"cniVersion"`
		Name       string            `json:"name"`
		Plugins    []json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal([]byte(c.Text), &keys); err != nil {
		n.err = position(err, []byte(c.Text))
		return n
	}
	n.version, n.list = keys.CNIVersion, keys.Plugins != nil
	if !n.list {
		n.plugins = []plugin{{raw: []byte(c.Text)}}
	}
	for i, raw := range keys.Plugins {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(raw, &object); err != nil {
			n.err = fmt.Errorf("plugins[%d]: %w", i, err)
			return n
		}
		if object == nil {
			n.err = fmt.Errorf("plugins[%d] is null", i)
			return n
		}
		// libcni does the same (libcni/api.go, buildOneConfig).
		object["name"], _ = json.Marshal(keys.Name)
		object["cniVersion"], _ = json.Marshal(keys.CNIVersion)
		text, _ := json.Marshal(object) // no error: the values were just decoded
		n.plugins = append(n.plugins, plugin{raw: text})
	}
	for i := range n.plugins {
		var conf struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal(n.plugins[i].raw, &conf); err != nil || conf.Type == "" {
			n.err = fmt.Errorf("plugin %d of the configuration has no type", i+1)
			n.plugins = nil
			return n
		}
		n.plugins[i].name, n.plugins[i].kind = conf.Type, kindOf(conf.Type)
		n.plugins[i].raw = withoutFlatFile(n.plugins[i].raw)
	}
	return n
}

// withoutFlatFile returns the configuration without the key that names the flat file. Otherwise the
// parser of whereabouts would read that file, but rules must depend only on the facts.
func withoutFlatFile(raw []byte) []byte {
	const key = "configuration_path"
	if !strings.Contains(strings.ToLower(string(raw)), key) {
		return raw
	}
	var conf, object map[string]json.RawMessage
	if json.Unmarshal(raw, &conf) != nil {
		return raw
	}
	for name := range conf {
		if !strings.EqualFold(name, "ipam") || json.Unmarshal(conf[name], &object) != nil {
			continue
		}
		maps.DeleteFunc(object, func(k string, _ json.RawMessage) bool { return strings.EqualFold(k, key) })
		conf[name], _ = json.Marshal(object)
	}
	text, _ := json.Marshal(conf)
	return text
}

// parse parses the configuration with the plugin's own parser, and its addresses with the parser of
// whereabouts.
func (p *plugin) parse(rails []int, prefixes map[int]*nodefile.Prefix) {
	switch p.kind {
	case "host-device":
		if p.hostDevice, p.err = netconf.ParseHostDevice(p.raw); p.err == nil {
			p.common = &p.hostDevice.Common
		}
	case "sriov":
		var c *netconf.SRIOV
		if c, p.err = netconf.ParseSRIOV(p.raw, netconf.Args{}); p.err == nil {
			p.hostDevice, p.common = &c.HostDevice, &c.Common
		}
	case "ib-sriov":
		var c *netconf.IBSRIOV
		if c, p.err = netconf.ParseIBSRIOV(p.raw); p.err == nil {
			p.hostDevice, p.common = &c.HostDevice, &c.Common
		}
	case "macvlan":
		if p.macvlan, p.err = netconf.ParseMacvlan(p.raw, netconf.Args{}); p.err == nil {
			p.common = &p.macvlan.Common
		}
	case "ipoib":
		if p.ipoib, p.err = netconf.ParseIPoIB(p.raw, netconf.Args{}); p.err == nil {
			p.common = &p.ipoib.Common
		}
	case "rdma":
		_, p.err = netconf.ParseRDMAChained(p.raw)
		return
	default:
		p.common = netconf.Lenient(p.raw)
	}
	if p.err != nil || !strings.HasSuffix(p.common.IPAM.Type, whereabouts) {
		return
	}
	if !p.common.Varies() || p.kind == "" {
		p.addPool(nil, p.raw)
		return
	}
	if p.byPrefix() && prefixes == nil {
		return // the ranges are in the node file, which is not known here
	}
	node := 0
	for _, rail := range p.common.PossibleRails(rails) {
		text, err := p.common.Expanded(netconf.Variables{Rail: &rail, Rails: rails, Node: &node, Prefix: prefixes[rail]})
		if err != nil {
			p.railErr = err
			return
		}
		if !p.common.VariesByRail() {
			p.addPool(nil, text)
			return
		}
		if !p.addPool(&rail, text) {
			return
		}
	}
}

// ipamType returns the type of the network's IPAM plugin, or "" if it has none.
func (p *plugin) ipamType() string {
	if p.common == nil {
		return ""
	}
	return p.common.IPAM.Type
}

// NotJudged returns sentences about the parts of networks that no rule can judge. These parts are
// the plugins of other projects, which rail-cni does not know.
func NotJudged(f *Facts) []string {
	r := &Report{parsed: &parsed{}}
	plugins, ipams := map[string]int{}, map[string]int{}
	eachNetwork(f, r, func(n *network) {
		for i := range n.plugins {
			p := &n.plugins[i]
			if p.kind == "" {
				plugins[p.name]++
			}
			if t := p.ipamType(); t != "" && !strings.HasSuffix(t, whereabouts) {
				ipams[t]++
			}
		}
	})
	var all []string
	for _, of := range []struct {
		what  string
		count map[string]int
	}{{"plugin", plugins}, {"IPAM plugin", ipams}} {
		total, names := 0, []string{}
		for _, name := range slices.Sorted(maps.Keys(of.count)) {
			total += of.count[name]
			names = append(names, clean(name))
		}
		if more := len(names) - maxShown; more > 0 {
			names = append(names[:maxShown], fmt.Sprintf("%d more types", more))
		}
		if total > 0 {
			all = append(all, fmt.Sprintf("not checked: %s of others (%s)", plural(total, of.what), strings.Join(names, ", ")))
		}
	}
	return all
}

// byPrefix reports whether the addresses come from the prefixes in the node file.
func (p *plugin) byPrefix() bool {
	var conf struct {
		IPAM struct {
			Prefix any `json:"prefix"`
		} `json:"ipam"`
	}
	return json.Unmarshal(p.raw, &conf) == nil && conf.IPAM.Prefix == "node"
}

// addPool parses the addresses and adds a pool. It reports whether whereabouts accepts the
// addresses.
func (p *plugin) addPool(rail *int, raw []byte) bool {
	conf, err := netconf.ParseWhereabouts(raw, "", nil)
	if err != nil {
		p.ipamErr = err
		return false
	}
	p.addresses = append(p.addresses, pool{rail, conf})
	return true
}

// ranges returns the ranges of the pool in the form in which whereabouts uses them. Gateways are
// not excluded from the ranges.
func (p *pool) ranges() (all []*ipam.Range, err error) {
	for _, c := range p.conf.Ranges {
		one, err := ipam.NewRange(ipam.RangeSpec{
			Prefix: c.Prefix, Start: c.Start, End: c.End, Exclude: c.Exclude, ExcludeText: c.ExcludeText, Small: p.conf.NodePrefix,
		})
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// defaultRails is the number of rails for which configurations are judged if the facts contain no
// rails.
const defaultRails = 8

// maxRails limits the number of rails for which a network is expanded. Each rail is compared with
// all others, and the facts may come from a stranger.
const maxRails = 32

// railsForConfigs returns the rails that networks can have. It also returns the prefixes of the
// node file by rail, or nil if there is no node file.
func railsForConfigs(f *Facts) (rails []int, prefixes map[int]*nodefile.Prefix) {
	set := map[int]bool{}
	for _, n := range knownNICs(f) {
		if n.Rail != nil && *n.Rail >= 0 {
			set[*n.Rail] = true
		}
	}
	if f.Configs != nil {
		for i := range f.Configs.Files.Value {
			c := &f.Configs.Files.Value[i]
			if c.Kind != NodeFile {
				continue
			}
			file, err := nodefile.Parse([]byte(c.Text))
			if err != nil {
				continue
			}
			if prefixes == nil {
				prefixes = map[int]*nodefile.Prefix{}
			}
			for k := range file.Prefixes {
				prefixes[file.Prefixes[k].Rail] = &file.Prefixes[k]
			}
			if file.Rails != nil {
				for _, rail := range file.Rails.List {
					set[rail.ID] = true
				}
			}
		}
	}
	rails = slices.Sorted(maps.Keys(set))
	for i := range defaultRails {
		if len(set) == 0 {
			rails = append(rails, i)
		}
	}
	return rails[:min(len(rails), maxRails)], prefixes
}

// knownNICs returns the NICs of the node. If f has no NICs itself, it returns the NICs of all nodes
// of the cluster.
func knownNICs(f *Facts) []*NIC {
	var all []*NIC
	add := func(n *Facts) {
		if n.NICs != nil && n.NICs.List.OK() {
			for i := range n.NICs.List.Value {
				all = append(all, &n.NICs.List.Value[i])
			}
		}
	}
	add(f)
	if all == nil {
		eachNode(f, add)
	}
	return all
}

// mastersForConfigs returns the interfaces that a network can name, by each of their names: the
// NICs, and the other interfaces of the host (bonds, VLANs). A macvlan can lie on such an
// interface, and host-device can lend it. ok reports whether there are any.
func mastersForConfigs(f *Facts, r *Report) (byName map[string][]*NIC, ok bool) {
	if byName, ok = nicsForConfigs(f, r); !ok && f.NICs != nil && !f.NICs.List.OK() {
		return nil, false
	}
	add := func(n *Facts) {
		if n.NICs == nil || !n.NICs.Others.asked() {
			return
		}
		others, _ := Read(r, "other interfaces", n.NICs.Others)
		for i := range others {
			o := &others[i]
			nic := &NIC{Name: o.Name, AltNames: o.AltNames, MTU: Known(o.MTU, n.NICs.Others.Source)}
			for _, name := range append([]string{o.Name}, o.AltNames...) {
				byName[name] = append(byName[name], nic)
			}
		}
	}
	add(f)
	if f.NICs == nil {
		eachNode(f, add)
	}
	return byName, len(byName) > 0
}

// nicsForConfigs returns the NICs that configurations can name, by each of their names. ok reports
// whether there are any. A missing fact is noted in r.
func nicsForConfigs(f *Facts, r *Report) (byName map[string][]*NIC, ok bool) {
	if f.NICs != nil {
		if _, ok := Read(r, "nics", f.NICs.List); !ok {
			return nil, false
		}
	}
	byName = map[string][]*NIC{}
	for _, n := range knownNICs(f) {
		names := map[string]bool{n.Name: true, n.PCI: true}
		for _, a := range n.AltNames {
			names[a] = true
		}
		delete(names, "")
		for name := range names {
			byName[name] = append(byName[name], n)
		}
	}
	return byName, len(byName) > 0
}

// span is a range of addresses, from the first address to the last.
type span struct {
	iprange.Range
	prefix netip.Prefix
	space  string // the address space; only ranges in the same space are compared
	owner  string
}
