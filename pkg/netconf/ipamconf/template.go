package ipamconf

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/netconf/document"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// Variables are the values that an "ipam" object takes from the node and the NIC of one
// attachment.
type Variables struct {
	Rail   *int             // the rail of the attachment's NIC, nil if the NIC has none
	Rails  []int            // all rails of the node, sorted
	Node   *int             // the node's number, nil if the node file has none
	Prefix *nodefile.Prefix // the node's prefix for the rail, nil if the node file has none
}

// The variables in strings of the "ipam" object.
const (
	railVariable = "rail"
	nodeVariable = "node"
)

// prefixOfNode is the value of the key "prefix" that selects the rail's prefix in the node file.
const prefixOfNode = "node"

// Keys of the "ipam" object that [Template.Expanded] reads or writes.
const (
	keyRange      = "range"
	keyGateway    = "gateway"
	keyExclude    = "exclude"
	keyStore      = "store"
	keySameHost   = "sameHost"
	keyPrefix     = "prefix"
	keyRailRanges = "railRanges"
)

// Template is an "ipam" object before its variables are replaced.
type Template struct {
	plugin string         // the IPAM plugin, which is the object's "type"
	ipam   map[string]any // numbers are json.Number

	rail, node bool // whether a string has this variable
	sameHost   bool
	nodePrefix bool // "prefix" is "node"
}

// ParseTemplate returns the "ipam" object of a configuration for this IPAM plugin. It is an error
// if a string of it has an unknown variable.
func ParseTemplate(plugin string, config []byte) (*Template, error) {
	t := &Template{plugin: plugin}
	var keys struct {
		IPAM json.RawMessage `json:"ipam"`
	}
	_ = json.Unmarshal(config, &keys) // an error is ignored: the plugin's parser or netconf.Lenient has read the configuration
	d := json.NewDecoder(bytes.NewReader(keys.IPAM))
	d.UseNumber() // numbers stay as they are written
	if err := d.Decode(&t.ipam); err != nil {
		return &Template{}, nil //nolint:nilerr // a value that is missing and one that is not an object count the same
	}
	t.sameHost = t.get(keySameHost) == true
	t.nodePrefix = t.get(keyPrefix) == prefixOfNode
	_, err := replaced("ipam", t.ipam, func(name string) (string, error) {
		switch name {
		case railVariable:
			t.rail = true
		case nodeVariable:
			t.node = true
		default:
			return "", failure.New(failure.InvalidConfig, "there is no variable ${%s}", name).Cure("use ${rail} or ${node}")
		}
		return "", nil
	})
	if err != nil && !t.whereabouts() { // for another plugin the text may have a meaning
		t.rail, t.node, err = false, false, nil
	}
	return t, err
}

// whereabouts reports whether the IPAM plugin is whereabouts. The plugin may be installed with a
// prefix before its name.
func (t *Template) whereabouts() bool { return strings.HasSuffix(t.plugin, "whereabouts") }

// NeedsRail reports whether values of the object depend on the rail.
func (t *Template) NeedsRail() bool { return t.rail || t.sameHost || t.nodePrefix }

// Varies reports whether the object has something to expand.
func (t *Template) Varies() bool { return t.node || t.NeedsRail() }

// place is where a value is, for errors. The text of a place is made only for an error, because the
// author of a network decides how deep values are nested.
type place struct {
	outer *place
	name  string // "ipam", ".range" or "[0]"
}

func (p *place) String() string {
	var names []string
	for ; p != nil; p = p.outer {
		names = append(names, p.name)
	}
	slices.Reverse(names)
	return strings.Join(names, "")
}

// replaced returns value with each variable in its strings replaced by the result of lookup.
// Variables in keys are not replaced, and results are not expanded again. name names the value in
// errors.
func replaced(name string, value any, lookup func(name string) (string, error)) (any, error) {
	return replacedAt(&place{name: name}, value, lookup)
}

func replacedAt(p *place, value any, lookup func(name string) (string, error)) (any, error) {
	switch v := value.(type) {
	case string:
		text, err := replacedText(v, lookup)
		if err != nil {
			err = failure.Wrap(err, failure.InvalidConfig, "%.200q: %.80q", p.String(), v)
		}
		return text, err
	case []any:
		list := make([]any, len(v))
		for i := range v {
			var err error
			if list[i], err = replacedAt(&place{p, "[" + strconv.Itoa(i) + "]"}, v[i], lookup); err != nil {
				return nil, err
			}
		}
		return list, nil
	case map[string]any:
		object := make(map[string]any, len(v))
		for key := range v {
			var err error
			if object[key], err = replacedAt(&place{p, "." + key}, v[key], lookup); err != nil {
				return nil, err
			}
		}
		return object, nil
	}
	return value, nil
}

func replacedText(text string, lookup func(name string) (string, error)) (string, error) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		name, after, closed := strings.Cut(rest, "}")
		if !closed {
			return "", failure.New(failure.InvalidConfig, `"${" has no "}"`).Cure("write a variable as ${rail} or ${node}")
		}
		value, err := lookup(name)
		if err != nil {
			return "", err
		}
		out.WriteString(value)
		text = after
	}
}

// Check returns an error if the keys of the object cannot be expanded, whichever rail the NIC has.
func (t *Template) Check() error {
	for _, key := range []struct {
		text string
		set  bool
	}{{`"sameHost"`, t.sameHost}, {`"prefix": "node"`, t.nodePrefix}} {
		if key.set && !t.whereabouts() {
			return failure.New(failure.InvalidConfig, "the IPAM plugin %q does not know %s", t.plugin, key.text).Cure(`use whereabouts, or remove the key`)
		}
	}
	switch {
	case t.sameHost && t.nodePrefix:
		return failure.New(failure.InvalidConfig, `"sameHost" and "prefix": "node" both choose the addresses`).Cure("remove one of them")
	case t.sameHost && !hasVariable(t.get(keyRange), railVariable):
		return failure.New(failure.InvalidConfig, `"sameHost" needs a "range" that differs by rail, but "range" has no ${rail}`).
			Cure(`write the range as 10.${rail}.0.0/16, or remove "sameHost"`)
	case t.nodePrefix:
		for _, key := range []string{keyRange, "range_start", "range_end", "ipRanges", keyGateway, keyExclude, "network_name"} {
			if t.get(key) != nil {
				return failure.New(failure.InvalidConfig, `"prefix": "node" and %q both choose the addresses`, key).Cure("remove one of them")
			}
		}
		if store := t.get(keyStore); store != nil && store != "" && store != StoreLocal {
			return failure.New(failure.InvalidConfig, `"store": "%v" is for pools of the cluster, but "prefix": "node" is for a pool of one node`, store).
				Cure(`remove "store"`)
		}
	}
	return nil
}

// get returns the value of a key, or nil. It compares keys as encoding/json does. If several
// spellings of the key exist, the spelling in key counts. Otherwise the last spelling in
// alphabetical order counts, so that the order of the map does not matter.
func (t *Template) get(key string) any {
	if value, ok := t.ipam[key]; ok {
		return value
	}
	last := ""
	var value any
	for k, v := range t.ipam {
		if strings.EqualFold(k, key) && k > last {
			last, value = k, v
		}
	}
	return value
}

// hasVariable reports whether a string in value has the variable.
func hasVariable(value any, variable string) bool {
	found := false
	_, _ = replaced("", value, func(name string) (string, error) { // of returns no error; ParseTemplate has reported those of replaced
		found = found || name == variable
		return "", nil
	})
	return found
}

// OfLocalPrefix reports whether the addresses are from a prefix of the node, in the local store of
// rail-cni's whereabouts.
func (t *Template) OfLocalPrefix() bool { return t.nodePrefix && t.whereabouts() }

// Expanded returns config, which is the configuration with the object, with the variables in the object
// replaced by their values. It is for an IPAM plugin, which does not know rails. If there is nothing to expand,
// Expanded returns the configuration unchanged.
//
// With "sameHost": true the object gets the key "railRanges", which lists the values that "range"
// has on the node's rails, by ascending rail. With "prefix": "node" the object gets "range",
// "gateway", "exclude" and "store" from the node's prefix.
//
// Expanded returns an error of the kind InvalidConfig if a value is missing, if the ranges of two
// rails overlap, or if the gateway is not in the range.
func (t *Template) Expanded(config []byte, v Variables) ([]byte, error) {
	if !t.Varies() {
		return config, nil
	}
	if err := t.Check(); err != nil {
		return config, err
	}
	if t.NeedsRail() && v.Rail == nil {
		return nil, failure.New(failure.InvalidConfig, "the addresses of the network depend on the rail, but the NIC has no rail").
			Cure(`add the NIC to "rails" in the node file: "railctl rails discover" proposes them`)
	}
	ipam, err := t.expanded(v)
	if err != nil {
		return nil, err
	}
	out, err := Replaced(config, ipam)
	if err == nil {
		err = document.CheckSize(out)
	}
	return out, err
}

// expanded returns the object with all variables replaced.
func (t *Template) expanded(v Variables) (map[string]any, error) {
	ipam, err := t.with(v.Rail, v.Node)
	if err != nil {
		return nil, err
	}
	switch {
	case t.nodePrefix:
		err = setPrefix(ipam, v)
	case t.whereabouts():
		err = t.checkRanges(ipam, v)
	}
	if err != nil || !t.sameHost {
		return ipam, err
	}
	var ranges []any
	self := &Template{ipam: ipam}
	excluded, _ := self.get(keyExclude).([]any)
	for _, rail := range v.Rails {
		other, err := t.with(&rail, v.Node)
		if err != nil {
			return nil, err
		}
		theirs := &Template{ipam: other}
		ranges = append(ranges, theirs.get(keyRange))
		if rail != *v.Rail {
			excluded = append(excluded, t.excludedOnRail(rail, self, theirs)...)
		}
	}
	set(ipam, keyRailRanges, ranges)
	if len(excluded) > 0 {
		set(ipam, keyExclude, excluded)
	}
	return ipam, nil
}

// excludedOnRail returns the addresses of another rail whose host parts must also be excluded on
// this rail: exclusions that differ by rail, and a gateway with a different host part. Otherwise
// whereabouts could choose a host part that no pod ever gets on the other rail.
func (t *Template) excludedOnRail(rail int, self, theirs *Template) []any {
	var all []any
	if hasVariable(t.get(keyExclude), railVariable) {
		list, _ := theirs.get(keyExclude).([]any)
		all = append(all, list...)
	}
	first, _ := addresses(rail, self.ipam) // no error, because checkRanges has refused ranges that cannot be read
	other, _ := addresses(rail, theirs.ipam)
	if len(first.ranges) == 0 || !other.gateway.IsValid() {
		return all // the other rail has no gateway, or none that is an address, which whereabouts refuses there
	}
	if bits := first.ranges[0].Prefix.Bits(); hostBits(first.gateway, bits) != hostBits(other.gateway, bits) {
		all = append(all, other.gateway.String())
	}
	return all
}

// with returns the object with the variables in its strings replaced by the values of rail and
// node.
func (t *Template) with(rail, node *int) (map[string]any, error) {
	ipam, err := replaced("ipam", t.ipam, values(rail, node))
	if err != nil {
		return nil, err
	}
	object, _ := ipam.(map[string]any) // always an object, because t.ipam is one
	return object, nil
}

// values returns a function that returns the value of the variable with a given name.
func values(rail, node *int) func(name string) (string, error) {
	return func(name string) (string, error) {
		switch {
		case name == railVariable && rail != nil:
			return strconv.Itoa(*rail), nil
		case name == nodeVariable && node != nil:
			return strconv.Itoa(*node), nil
		case name == nodeVariable:
			return "", failure.New(failure.InvalidConfig, "the node has no number for ${node}").Cure(`set "node" in the node file`)
		}
		return "", failure.New(failure.InvalidConfig, "there is no value for ${%s}", name)
	}
}

// set sets a key of the object, and removes the key's other spellings.
func set(ipam map[string]any, key string, value any) {
	for k := range ipam {
		if strings.EqualFold(k, key) {
			delete(ipam, k)
		}
	}
	ipam[key] = value
}

// setPrefix sets the keys of the object from the node's prefix.
func setPrefix(ipam map[string]any, v Variables) error {
	if v.Prefix == nil {
		return failure.New(failure.InvalidConfig, `"prefix": "node": the node has no prefix for rail %d`, *v.Rail).Cure(`add the prefix to "prefixes" in the node file`)
	}
	set(ipam, keyRange, v.Prefix.Prefix)
	set(ipam, keyStore, StoreLocal)
	if v.Prefix.Gateway != "" {
		set(ipam, keyGateway, v.Prefix.Gateway)
	}
	if len(v.Prefix.Exclude) > 0 {
		set(ipam, keyExclude, v.Prefix.Exclude)
	}
	return nil
}

// Replaced returns the configuration with its "ipam" object replaced.
func Replaced(config []byte, ipam any) ([]byte, error) {
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(config, &keys); err != nil {
		return nil, failure.Wrap(err, failure.Decode, "the network configuration")
	}
	text, err := json.Marshal(ipam)
	if err != nil {
		return nil, failure.Wrap(err, failure.Decode, `"ipam" of the network configuration`)
	}
	for key := range keys {
		if strings.EqualFold(key, "ipam") {
			delete(keys, key)
		}
	}
	keys["ipam"] = text
	return json.Marshal(keys)
}
