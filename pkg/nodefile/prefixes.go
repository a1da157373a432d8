package nodefile

import (
	"fmt"
	"net/netip"

	"go.yaml.in/yaml/v3"

	"github.com/rail-cni/rail-cni/pkg/iprange"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// Prefix is a prefix of addresses that only this node's pods use, on one rail.
type Prefix struct {
	Rail    int      `yaml:"rail"`
	Prefix  string   `yaml:"prefix"`  // prefix with its length; in routed fabrics a /31 or /127
	Gateway string   `yaml:"gateway"` // an address in Prefix, or "" if there is no gateway
	Exclude []string `yaml:"exclude"` // addresses and CIDRs that no pod may get
}

// UnmarshalYAML implements [yaml.Unmarshaler].
func (p *Prefix) UnmarshalYAML(node *yaml.Node) error {
	if err := resource.CheckKeys(node, "rail", "prefix", "gateway", "exclude"); err != nil {
		return fmt.Errorf("prefixes: %w", err)
	}
	var has struct {
		Rail *int `yaml:"rail"`
	}
	if err := node.Decode(&has); err != nil {
		return fmt.Errorf("prefixes: %w", err)
	}
	if has.Rail == nil { // a missing rail must not count as rail 0
		return fmt.Errorf(`prefixes: line %d: the entry has no "rail"`, node.Line)
	}
	type plain Prefix
	return node.Decode((*plain)(p))
}

// checkPrefixes returns an error if a prefix has no address that can be assigned, or if two
// prefixes contradict each other.
func checkPrefixes(all []Prefix) error {
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
func (p Prefix) check() (netip.Prefix, error) {
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
		if block, ok := iprange.ParseBlock(e); !ok || !block.Overlaps(prefix) {
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
