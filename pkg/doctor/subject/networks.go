package subject

import (
	"maps"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/network"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
	"github.com/rail-cni/rail-cni/pkg/nodefile"
)

// networksKey is the key of the networks in what rules share.
type networksKey struct{}

// EachNetwork calls do for each NAD that has a configuration. A NAD without one is left out,
// because its configuration is in a file on the node.
func EachNetwork(f *fact.Facts, r *rule.Report, do func(*network.Network)) {
	var configs []*fact.Config
	EachConfig(f, r, fact.NADConfig, func(c *fact.Config) {
		if strings.TrimSpace(c.Text) != "" {
			configs = append(configs, c)
		}
	})
	parsed := rule.Once(r, networksKey{}, func() (all []*network.Network) {
		rails, prefixes := railsForConfigs(f)
		for _, c := range configs {
			all = append(all, network.Parse(c, rails, prefixes))
		}
		return all
	})
	for _, n := range parsed {
		do(n)
	}
}

// EachConfig calls do for each configuration of the kind. If there is none, the rule has nothing to
// judge.
func EachConfig(f *fact.Facts, r *rule.Report, kind fact.ConfigKind, do func(*fact.Config)) {
	if f.Configs == nil {
		return
	}
	name, configs := "configurations", f.Configs.Files
	if kind == fact.NADConfig {
		name, configs = "NetworkAttachmentDefinitions", f.Configs.NADs
	}
	if !configs.Asked() || configs.OK() && !slices.ContainsFunc(configs.Value, func(c fact.Config) bool { return c.Kind == kind }) {
		return
	}
	list, _ := rule.Read(r, name, configs)
	for i := range list {
		if list[i].Kind == kind {
			do(&list[i])
		}
	}
}

// EachPlugin calls do for each plugin whose own parser accepts its configuration.
func EachPlugin(f *fact.Facts, r *rule.Report, do func(*network.Network, *network.Plugin)) {
	EachNetwork(f, r, func(n *network.Network) {
		for i := range n.Plugins {
			if n.Plugins[i].Err == nil {
				do(n, &n.Plugins[i])
			}
		}
	})
}

// defaultRails is the number of rails for which configurations are judged if the facts contain no
// rails.
const defaultRails = 8

// maxRails limits the number of rails for which a network is expanded. Each rail is compared with
// all others, and the facts may come from a stranger.
const maxRails = 32

// railsForConfigs returns the rails that networks can have. It also returns the prefixes of the
// node file by rail, or nil if there is no node file.
func railsForConfigs(f *fact.Facts) (rails []int, prefixes map[int]*nodefile.Prefix) {
	set := map[int]bool{}
	for _, n := range KnownNICs(f) {
		if n.Rail != nil && *n.Rail >= 0 {
			set[*n.Rail] = true
		}
	}
	if f.Configs != nil {
		for i := range f.Configs.Files.Value {
			c := &f.Configs.Files.Value[i]
			if c.Kind != fact.NodeFile {
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
