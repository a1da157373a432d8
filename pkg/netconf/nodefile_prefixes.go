package netconf

import (
	"fmt"
	"net/netip"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/pkg/resource"
)

// NVIPAM is the value of "prefixesFrom" for the CIDRPools of nv-ipam, and the first part of
// "prefix" in networks that use them.
const NVIPAM = "nv-ipam"

// ReadsPrefixesFrom reports whether rail-agent reads the node's prefixes of this origin.
func (n *NodeFile) ReadsPrefixesFrom(origin string) bool {
	return n != nil && slices.Contains(n.PrefixesFrom, origin)
}

// checkOrigins returns an error for an origin of prefixes that is not known.
func checkOrigins(origins []string) error {
	for i, o := range origins {
		if o != NVIPAM {
			return fmt.Errorf("prefixesFrom[%d]: %.40q is not known; use %q", i, o, NVIPAM)
		}
	}
	return nil
}

// NodePrefix is a prefix of addresses that only this node's pods use, on one rail.
type NodePrefix struct {
	Rail    int      `yaml:"rail"`
	Prefix  string   `yaml:"prefix"`  // with a length; in routed fabrics a /31 or /127
	Gateway string   `yaml:"gateway"` // an address in Prefix, "" if there is none
	Exclude []string `yaml:"exclude"` // addresses and CIDRs that no pod gets

	// Routes are the destinations of routes through Gateway, from a pool of nv-ipam. A node file
	// has none.
	Routes []string `yaml:"-"`
}

// UnmarshalYAML implements [yaml.Unmarshaler].
func (p *NodePrefix) UnmarshalYAML(node *yaml.Node) error {
	if err := resource.CheckKeys(node, "rail", "prefix", "gateway", "exclude"); err != nil {
		return fmt.Errorf("prefixes: %w", err)
	}
	var has struct {
		Rail *int `yaml:"rail"`
	}
	if err := node.Decode(&has); err != nil {
		return fmt.Errorf("prefixes: %w", err)
	}
	if has.Rail == nil { // 0 is a rail
		return fmt.Errorf(`prefixes: line %d: the entry has no "rail"`, node.Line)
	}
	type plain NodePrefix
	return node.Decode((*plain)(p))
}

// checkPrefixes returns an error for prefixes that no address can be assigned from, or that
// contradict each other.
func checkPrefixes(all []NodePrefix) error {
	prefixes := make([]netip.Prefix, 0, len(all))
	for i, p := range all {
		prefix, err := p.check()
		if err != nil {
			return fmt.Errorf("prefixes[%d]: %w", i, err)
		}
		for k, other := range prefixes {
			switch {
			case all[k].Rail == p.Rail:
				return fmt.Errorf("prefixes[%d]: rail %d has the prefix %s already", i, p.Rail, other)
			case other.Overlaps(prefix):
				return fmt.Errorf("prefixes[%d]: %s overlaps with %s of rail %d", i, prefix, other, all[k].Rail)
			}
		}
		prefixes = append(prefixes, prefix)
	}
	return nil
}

// check returns the prefix, or an error.
func (p NodePrefix) check() (netip.Prefix, error) {
	if p.Rail < 0 {
		return netip.Prefix{}, fmt.Errorf("the rail %d is negative", p.Rail)
	}
	prefix, err := netip.ParsePrefix(p.Prefix)
	switch {
	case err != nil || prefix.Addr().Is4In6():
		return prefix, fmt.Errorf("the prefix %q is not a network/length", p.Prefix)
	case prefix != prefix.Masked():
		return prefix, fmt.Errorf("the prefix %s has host bits: write %s", prefix, prefix.Masked())
	}
	for _, e := range p.Exclude {
		if block, ok := excludedBlock(e); !ok || !block.Overlaps(prefix) {
			return prefix, fmt.Errorf("exclude: %q is not an address or CIDR in %s", e, prefix)
		}
	}
	if p.Gateway == "" {
		return prefix, nil
	}
	gateway, err := netip.ParseAddr(p.Gateway)
	switch {
	case err != nil || !prefix.Contains(gateway):
		return prefix, fmt.Errorf("the gateway %q is not an address in %s", p.Gateway, prefix)
	case prefix.IsSingleIP():
		return prefix, fmt.Errorf("the gateway is the only address of %s", prefix)
	}
	return prefix, nil
}
