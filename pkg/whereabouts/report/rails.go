package report

import (
	"bytes"
	"encoding/json"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/ipam/plan"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// rails is the number of possible rails of a node, from 0 on.
const rails = 256

// railConfig is a network's configuration on a rail.
type railConfig struct {
	rail *int // nil if the configuration does not depend on the rail
	text []byte
}

// onRails returns the configuration as the IPAM plugin gets it, for each possible rail. It
// returns none if the addresses depend on the node, because such addresses have no pools in
// a cluster.
func onRails(config []byte) ([]railConfig, error) {
	c := netconf.Lenient(config)
	if !c.Varies() {
		return []railConfig{{text: config}}, nil
	}
	var keys struct {
		IPAM struct {
			Prefix string `json:"prefix"`
		} `json:"ipam"`
	}
	if json.Unmarshal(config, &keys) == nil && keys.IPAM.Prefix != "" || bytes.Contains(config, []byte("${node}")) {
		return nil, nil
	}
	var all []railConfig
	for rail := range rails {
		if !slices.Contains(c.PossibleRails([]int{rail}), rail) {
			continue
		}
		text, err := c.Expanded(ipamconf.Variables{Rail: &rail, Rails: []int{rail}})
		switch {
		case err != nil && len(all) > 0:
			return all, nil // the range has no such rail, as 10.${rail}.0.0/16 has no rail 256
		case err != nil:
			return nil, err
		}
		all = append(all, railConfig{&rail, text})
	}
	return all, nil
}

// used returns networks without the networks on rails whose pools do not exist. If a
// network has no pool on any rail, its first rail stays.
func used(networks []Network, survey *api.Survey) []Network {
	exists := map[string]bool{}
	for _, p := range slices.Concat(survey.Pools, survey.Divided) {
		exists[p.Name] = true
	}
	some := map[string]bool{} // by network
	has := func(n Network) bool {
		all, _ := n.sources(plan.Slice{})
		return slices.ContainsFunc(all, func(s source) bool { return exists[s.Pool.Name()] })
	}
	for _, n := range networks {
		if n.Rail != nil && has(n) {
			some[n.Name] = true
		}
	}
	return slices.DeleteFunc(networks, func(n Network) bool {
		if n.Rail == nil || has(n) {
			return false
		}
		first := !some[n.Name]
		some[n.Name] = true
		return !first
	})
}
