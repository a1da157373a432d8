package nvipam

import (
	"encoding/json"
	"fmt"
	"math/big"
	"net/netip"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/nodeprefix"
)

// cidrPool has the fields of a CIDRPool (nv-ipam.nvidia.com/v1alpha1) that count here.
type cidrPool struct {
	Metadata kube.Meta `json:"metadata"`
	Spec     struct {
		// GatewayIndex is the index of the gateway in the prefix of each node.
		GatewayIndex *int64 `json:"gatewayIndex"`
		// Exclusions are ranges of addresses, both ends included.
		Exclusions []struct {
			StartIP string `json:"startIP"`
			EndIP   string `json:"endIP"`
		} `json:"exclusions"`
		// PerNodeExclusions are ranges of indexes in the prefix of each node, from 0, both ends
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

// parse returns a CIDRPool with the node's prefix of it, and the pool's resource version.
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

// allocation sets the node's prefix of the pool, and what belongs to it.
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
		if address, ok := at(prefix, index); ok && !reserved(prefix, address) {
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

// reserved reports whether no host can have the address: the first of a prefix shorter than
// /31 or /127 (of IPv6 the routers' anycast address), and the broadcast address of IPv4.
func reserved(prefix netip.Prefix, address netip.Addr) bool {
	if prefix.Bits() >= address.BitLen()-1 {
		return false
	}
	return address == prefix.Addr() || address.Is4() && address == lastOf(prefix)
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

// mostExclusions bounds the ranges that a pool excludes, and the CIDRs of their union: every
// ADD reads them.
const mostExclusions = 1000

// excluded returns the addresses of the prefix that the pool excludes, as the fewest CIDRs in
// ascending order.
func (p *cidrPool) excluded(prefix netip.Prefix) ([]string, error) {
	if n := len(p.Spec.Exclusions) + len(p.Spec.PerNodeExclusions); n > mostExclusions {
		return nil, fmt.Errorf("it has %d exclusions and perNodeExclusions, and at most %d are possible", n, mostExclusions)
	}
	ranges, err := p.exclusions(prefix)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(ranges, func(a, b addressRange) int { return a.first.Compare(b.first) })
	var all []string
	for i := 0; i < len(ranges); {
		union := ranges[i]
		for i++; i < len(ranges) && (!union.last.Less(ranges[i].first) || union.last.Next() == ranges[i].first); i++ {
			if union.last.Less(ranges[i].last) {
				union.last = ranges[i].last
			}
		}
		if all = append(all, cidrs(prefix, union)...); len(all) > mostExclusions {
			return nil, fmt.Errorf("it excludes more than %d CIDRs of the node's prefix %s", mostExclusions, prefix)
		}
	}
	return all, nil
}

// addressRange is a range of addresses, both ends included.
type addressRange struct{ first, last netip.Addr }

// exclusions returns the parts of the pool's exclusions that are in the prefix.
func (p *cidrPool) exclusions(prefix netip.Prefix) ([]addressRange, error) {
	var ranges []addressRange
	for _, e := range p.Spec.Exclusions {
		first, err := netip.ParseAddr(e.StartIP)
		if err != nil || first.Zone() != "" {
			return nil, fmt.Errorf("exclusions: %.80q is not an address", e.StartIP)
		}
		last, err := netip.ParseAddr(e.EndIP)
		if err != nil || last.Zone() != "" || last.BitLen() != first.BitLen() || last.Less(first) {
			return nil, fmt.Errorf("exclusions: %s to %.80q is not a range", first, e.EndIP)
		}
		start, end := prefix.Addr(), lastOf(prefix)
		if first.BitLen() != start.BitLen() || last.Less(start) || end.Less(first) {
			continue // of another family, or beyond the prefix
		}
		if first.Less(start) {
			first = start
		}
		if end.Less(last) {
			last = end
		}
		ranges = append(ranges, addressRange{first, last})
	}
	for _, e := range p.Spec.PerNodeExclusions {
		if e.StartIndex < 0 || e.EndIndex < e.StartIndex {
			return nil, fmt.Errorf("perNodeExclusions: %d to %d is not a range", e.StartIndex, e.EndIndex)
		}
		first, ok := at(prefix, e.StartIndex)
		if !ok {
			continue // beyond the prefix
		}
		last, ok := at(prefix, e.EndIndex)
		if !ok {
			last = lastOf(prefix)
		}
		ranges = append(ranges, addressRange{first, last})
	}
	return ranges, nil
}

// cidrs returns the fewest CIDRs that have the addresses of a range in the prefix, and no
// others.
func cidrs(prefix netip.Prefix, r addressRange) []string {
	var all []string
	for first := r.first; first.IsValid() && !r.last.Less(first); {
		block := netip.PrefixFrom(first, first.BitLen())
		for block.Bits() > prefix.Bits() {
			larger := netip.PrefixFrom(first, block.Bits()-1)
			if larger.Masked().Addr() != first || r.last.Less(lastOf(larger)) {
				break
			}
			block = larger
		}
		all = append(all, block.String())
		first = lastOf(block).Next()
	}
	return all
}

// at returns the address with this index in the prefix, and reports whether there is one.
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
