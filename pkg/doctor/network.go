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

// network is the configuration of a NAD, as its plugins read it.
type network struct {
	config  *Config
	version string
	list    bool // it has a list of plugins
	plugins []plugin
	err     error // the configuration is not JSON of that form
}

// plugin is one plugin of a network.
type plugin struct {
	name string // its type
	kind string // the plugin of rail-cni with this name, "" for others
	raw  []byte // its configuration, with the list's name and version

	hostDevice *netconf.HostDevice // also of sriov and ib-sriov
	macvlan    *netconf.Macvlan
	ipoib      *netconf.IPoIB
	common     *netconf.Common // of one of these, or what can be read of another plugin's

	err       error // its parser's
	railErr   error // of the addresses of some rail
	addresses []pool
	ipamErr   error // whereabouts' parser's
}

// pool is what whereabouts reads of a network, for one rail if that matters.
type pool struct {
	rail *int
	conf *netconf.Whereabouts
}

// kinds are the plugins of rail-cni that stand in "plugins" or alone.
var kinds = []string{"host-device", "ib-sriov", "sriov", "macvlan", "ipoib", "rdma"} // a name before those that it ends with

// whereabouts is the type of our IPAM plugin, perhaps behind a prefix.
const whereabouts = "whereabouts"

// kindOf returns the plugin that a type names, also with a prefix of an installation
// ("rail-host-device").
func kindOf(name string) string {
	for _, kind := range kinds {
		if name == kind || strings.HasSuffix(name, "-"+kind) {
			return kind
		}
	}
	return ""
}

// eachNetwork calls do for each NAD. A NAD without a text has its configuration in a file of
// the node, and is left out.
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

// eachConfig calls do for each configuration of the kind. Without one there is nothing to
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

// Object names the configuration in findings.
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
		// As libcni does (libcni/api.go, buildOneConfig).
		object["name"], _ = json.Marshal(keys.Name)
		object["cniVersion"], _ = json.Marshal(keys.CNIVersion)
		text, _ := json.Marshal(object) // of values that were just decoded
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

// withoutFlatFile returns the configuration without the file that whereabouts would read:
// rules are functions of the facts.
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

// parse reads the configuration by the plugin's own parser, and its addresses by that of
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
		return // the node file, which has the ranges, is not at hand
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

// ipamType returns the type of its IPAM plugin, "" for none.
func (p *plugin) ipamType() string {
	if p.common == nil {
		return ""
	}
	return p.common.IPAM.Type
}

// NotJudged returns sentences about the parts of networks that no rule can judge: plugins of
// other projects, which rail-cni does not know.
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

// byPrefix reports whether the addresses are from the prefixes of the node.
func (p *plugin) byPrefix() bool {
	var conf struct {
		IPAM struct {
			Prefix any `json:"prefix"`
		} `json:"ipam"`
	}
	return json.Unmarshal(p.raw, &conf) == nil && conf.IPAM.Prefix == "node"
}

// addPool reads the addresses, and reports whether whereabouts would.
func (p *plugin) addPool(rail *int, raw []byte) bool {
	conf, err := netconf.ParseWhereabouts(raw, "", nil)
	if err != nil {
		p.ipamErr = err
		return false
	}
	p.addresses = append(p.addresses, pool{rail, conf})
	return true
}

// ranges returns the ranges of the pool as whereabouts has them, without regard to gateways.
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

// defaultRails is the number of rails that configurations are judged with if no node is at
// hand.
const defaultRails = 8

// maxRails bounds the rails that a network is expanded for, each of which is compared with
// the others. The facts may be of a stranger.
const maxRails = 32

// railsForConfigs returns the rails that networks can have, and the prefixes of the node file
// by rail, nil without a node file.
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

// knownNICs returns the NICs of this node, or else of all nodes of the cluster.
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

// mastersForConfigs returns what macvlans can lie on, and host-device can lend, by each of its
// names: the NICs, and the other interfaces of the host (bonds, VLANs). It reports whether there
// are any.
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

// nicsForConfigs returns the NICs that configurations can name, by each of their names, and
// reports whether there are any. A missing fact is noted.
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

// span is the addresses from the first to the last of a range.
type span struct {
	iprange.Range
	prefix netip.Prefix
	space  string // the address space: only ranges in one are compared
	owner  string
}
