package nvipam

import (
	"encoding/json"
	"fmt"
	"math/big"
	"net/netip"

	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/nodeprefix"
)

// cidrPool has the fields of a CIDRPool (nv-ipam.nvidia.com/v1alpha1) that count here.
type cidrPool struct {
	Metadata kube.Meta `json:"metadata"`
	Spec     struct {
		// GatewayIndex is the place of the gateway in the prefix of each node.
		GatewayIndex *int64 `json:"gatewayIndex"`
		// Exclusions are ranges of addresses, both ends included.
		Exclusions []struct {
			StartIP string `json:"startIP"`
			EndIP   string `json:"endIP"`
		} `json:"exclusions"`
		// PerNodeExclusions are ranges of places in the prefix of each node, from 0, both ends
		// included.
		PerNodeExclusions []struct {
			StartIndex int64 `json:"startIndex"`
			EndIndex   int64 `json:"endIndex"`
		} `json:"perNodeExclusions"`
		DefaultGateway bool `json:"defaultGateway"`
		Routes         []struct {
			Dst string `json:"dst"`
		} `json:"routes"`
	} `json:"spec"`
	Status struct {
		Allocations []struct {
			NodeName string `json:"nodeName"`
			Prefix   string `json:"prefix"`
			Gateway  string `json:"gateway"`
		} `json:"allocations"`
	} `json:"status"`
}

// parse returns what a node has of a CIDRPool, and the pool's resource version.
func parse(object []byte, node string) (pool nodeprefix.Pool, version string, err error) {
	var p cidrPool
	if err := json.Unmarshal(object, &p); err != nil {
		// The name is in the metadata, which every object has.
		var named struct {
			Metadata kube.Meta `json:"metadata"`
		}
		if json.Unmarshal(object, &named) != nil {
			return pool, "", err
		}
		m := named.Metadata
		return nodeprefix.Pool{Name: m.Name, Namespace: m.Namespace, Problem: err.Error()}, m.ResourceVersion, nil
	}
	pool = nodeprefix.Pool{Name: p.Metadata.Name, Namespace: p.Metadata.Namespace}
	if err := p.allocation(&pool, node); err != nil {
		pool = nodeprefix.Pool{Name: pool.Name, Namespace: pool.Namespace, Problem: err.Error()}
	}
	return pool, p.Metadata.ResourceVersion, nil
}

// allocation sets what the node has of the pool.
func (p *cidrPool) allocation(pool *nodeprefix.Pool, node string) error {
	for _, a := range p.Status.Allocations {
		if a.NodeName != node {
			continue
		}
		prefix, err := netip.ParsePrefix(a.Prefix)
		if err != nil {
			return fmt.Errorf("its status has the prefix %.80q", a.Prefix)
		}
		prefix = prefix.Masked()
		pool.Prefix, pool.Gateway = prefix.String(), a.Gateway
		if err := p.setGateway(pool, prefix); err != nil {
			return err
		}
		if pool.Exclude, err = p.excluded(prefix); err != nil {
			return err
		}
		p.setRoutes(pool, prefix)
		return nil
	}
	return fmt.Errorf("its status has no allocation for the node")
}

// setGateway completes and checks the gateway. nv-ipam's controller writes the gateway of
// gatewayIndex into the status; a status without it may be older than the index.
func (p *cidrPool) setGateway(pool *nodeprefix.Pool, prefix netip.Prefix) error {
	if pool.Gateway == "" && p.Spec.GatewayIndex != nil {
		index := *p.Spec.GatewayIndex
		// Of a larger network nv-ipam uses no gateway with the address of the network.
		if address, ok := at(prefix, index); ok && (index > 0 || prefix.Bits() >= address.BitLen()-1) {
			pool.Gateway = address.String()
		}
	}
	if pool.Gateway == "" {
		return nil
	}
	gateway, err := netip.ParseAddr(pool.Gateway)
	switch {
	case err != nil || !prefix.Contains(gateway):
		return fmt.Errorf("its gateway %.80q is not in the node's prefix %s", pool.Gateway, prefix)
	case prefix.IsSingleIP():
		return fmt.Errorf("its gateway is the only address of the node's prefix %s", prefix)
	}
	return nil
}

// setRoutes sets the destinations of the pool's routes.
func (p *cidrPool) setRoutes(pool *nodeprefix.Pool, prefix netip.Prefix) {
	if p.Spec.DefaultGateway && pool.Gateway != "" {
		everything := "0.0.0.0/0"
		if prefix.Addr().Is6() {
			everything = "::/0"
		}
		pool.Routes = append(pool.Routes, everything)
	}
	for _, r := range p.Spec.Routes {
		pool.Routes = append(pool.Routes, r.Dst)
	}
}

// excluded returns the addresses of the prefix that the pool excludes, as the fewest CIDRs of
// each range.
func (p *cidrPool) excluded(prefix netip.Prefix) ([]string, error) {
	var all []string
	for _, e := range p.Spec.Exclusions {
		first, err := netip.ParseAddr(e.StartIP)
		if err != nil {
			return nil, fmt.Errorf("exclusions: %.80q is not an address", e.StartIP)
		}
		last, err := netip.ParseAddr(e.EndIP)
		if err != nil || last.BitLen() != first.BitLen() || last.Less(first) {
			return nil, fmt.Errorf("exclusions: %s to %.80q is not a range", first, e.EndIP)
		}
		all = append(all, cidrs(prefix, first, last)...)
	}
	for _, e := range p.Spec.PerNodeExclusions {
		if e.StartIndex < 0 || e.EndIndex < e.StartIndex {
			return nil, fmt.Errorf("perNodeExclusions: %d to %d is not a range", e.StartIndex, e.EndIndex)
		}
		first, ok := at(prefix, e.StartIndex)
		if !ok {
			continue // behind the prefix
		}
		last, ok := at(prefix, e.EndIndex)
		if !ok {
			last = lastOf(prefix)
		}
		all = append(all, cidrs(prefix, first, last)...)
	}
	return all, nil
}

// cidrs returns the fewest CIDRs that have the addresses from first to last in the prefix,
// and no others.
func cidrs(prefix netip.Prefix, first, last netip.Addr) []string {
	if first.BitLen() != prefix.Addr().BitLen() {
		return nil
	}
	if first.Less(prefix.Addr()) {
		first = prefix.Addr()
	}
	if end := lastOf(prefix); end.Less(last) {
		last = end
	}
	var all []string
	for first.IsValid() && !last.Less(first) {
		block := netip.PrefixFrom(first, first.BitLen())
		for block.Bits() > prefix.Bits() {
			larger := netip.PrefixFrom(first, block.Bits()-1)
			if larger.Masked().Addr() != first || last.Less(lastOf(larger)) {
				break
			}
			block = larger
		}
		all = append(all, block.String())
		first = lastOf(block).Next()
	}
	return all
}

// at returns the address at a place of the prefix, and reports whether it has one.
func at(prefix netip.Prefix, index int64) (netip.Addr, bool) {
	if index < 0 {
		return netip.Addr{}, false
	}
	bytes := prefix.Addr().AsSlice()
	sum := new(big.Int).Add(new(big.Int).SetBytes(bytes), big.NewInt(index))
	if sum.BitLen() > 8*len(bytes) {
		return netip.Addr{}, false
	}
	address, _ := netip.AddrFromSlice(sum.FillBytes(bytes)) // as long as an address
	return address, prefix.Contains(address)
}

// lastOf returns the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	bytes := p.Masked().Addr().AsSlice()
	for bit := p.Bits(); bit < len(bytes)*8; bit++ {
		bytes[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(bytes) // as long as an address
	return last
}
