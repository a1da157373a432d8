package network

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// Network is the configuration of a NAD in the form in which the plugins read it.
type Network struct {
	Config  *fact.Config
	Version string
	List    bool // the configuration has a list of plugins
	Plugins []Plugin
	Err     error // set if the configuration is not JSON of the right form
}

// Parse returns the network, with an error in it if its configuration is none. rails are those that
// the network can have, and prefixes those of the node by rail, nil if they are not known.
func Parse(c *fact.Config, rails []int, prefixes map[int]*nodefile.Prefix) *Network {
	n := &Network{Config: c}
	n.split()
	for i := range n.Plugins {
		n.Plugins[i].parse(rails, prefixes)
	}
	return n
}

// split reads the configuration's list of plugins.
func (n *Network) split() {
	c := n.Config
	var keys struct {
		CNIVersion string            `json:"cniVersion"`
		Name       string            `json:"name"`
		Plugins    []json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal([]byte(c.Text), &keys); err != nil {
		n.Err = fact.WithLine(err, []byte(c.Text))
		return
	}
	n.Version, n.List = keys.CNIVersion, keys.Plugins != nil
	if !n.List {
		n.Plugins = []Plugin{{Raw: []byte(c.Text)}}
	}
	for i, raw := range keys.Plugins {
		var object map[string]json.RawMessage
		if err := json.Unmarshal(raw, &object); err != nil {
			n.Err = fmt.Errorf("plugins[%d]: %w", i, err)
			return
		}
		if object == nil {
			n.Err = fmt.Errorf("plugins[%d] is null", i)
			return
		}
		// libcni does the same (libcni/api.go, buildOneConfig).
		object["name"], _ = json.Marshal(keys.Name)
		object["cniVersion"], _ = json.Marshal(keys.CNIVersion)
		text, _ := json.Marshal(object) // no error: the values were just decoded
		n.Plugins = append(n.Plugins, Plugin{Raw: text})
	}
	for i := range n.Plugins {
		var conf struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal(n.Plugins[i].Raw, &conf); err != nil || conf.Type == "" {
			n.Err = fmt.Errorf("plugin %d of the configuration has no type", i+1)
			n.Plugins = nil
			return
		}
		n.Plugins[i].Type, n.Plugins[i].Kind = conf.Type, kindOf(conf.Type)
		n.Plugins[i].Raw = withoutFlatFile(n.Plugins[i].Raw)
	}
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
