package report

import (
	"context"
	"fmt"
	"math/big"
	"net/netip"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/ipam/plan"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// Pool is an address pool, with the networks that use it and the pods that hold
// its addresses.
type Pool struct {
	Name         string       `json:"name"`
	Namespace    string       `json:"namespace"`
	Range        netip.Prefix `json:"range"`
	Used         int          `json:"used"` // entries, including placeholders
	Placeholders int          `json:"placeholders"`
	Free         *big.Int     `json:"free"` // free addresses in Range; a network may leave some of them out
	Size         *big.Int     `json:"size"` // without the network's first and last address
	Bytes        int          `json:"bytes"`
	Networks     []string     `json:"networks"` // NetworkAttachmentDefinitions that use the pool
	Problems     []string     `json:"problems"`
	Holders      []Holder     `json:"holders"`
	// Divided is nil for a pool that is used entry by entry. Otherwise Used and Holders are
	// what the nodes' rail-agents have published about their blocks, and Bytes is the size
	// of the pool's own object.
	Divided *Divided `json:"divided,omitempty"`
}

// nearlyFull is the number of entries above which a pool counts as nearly full.
const nearlyFull = api.MaxEntries * 9 / 10

// Usage returns how full the pools of a survey are. The pools come without their holders,
// networks and problems. Usage is for a caller that has read the survey anyway. [Pools]
// reads the survey itself, and also reads the networks.
func Usage(survey *api.Survey) []*Pool {
	var all []*Pool
	for _, p := range survey.Pools {
		all = append(all, newPool(p))
	}
	divided, _ := dividedPools(survey) // only Pools reports blocks without a pool
	all = append(all, divided...)
	for _, v := range all {
		v.Networks, v.Problems, v.Holders = nil, nil, nil
	}
	return all
}

// Capacity returns how many addresses the pool can have at the most. That is the number of
// addresses in its network, or the number of addresses that one object of the API server
// can hold if that number is less. A network's range may leave some of the addresses out.
func (v *Pool) Capacity() float64 {
	host := v.Range.Addr().BitLen() - v.Range.Bits()
	if host < 2 { // all of them are used (RFC 3021, RFC 6164)
		return float64(int(1) << host)
	}
	size, _ := new(big.Float).SetInt(v.Size).Float64()
	if v.Divided == nil {
		size = min(size, api.MaxEntries)
	}
	return size
}

// Holder is an entry of a pool that names a pod.
type Holder struct {
	Address     netip.Addr `json:"address"`
	PodRef      string     `json:"podref"`
	IfName      string     `json:"ifname,omitempty"`
	ContainerID string     `json:"containerID"`
	Reservation string     `json:"reservation,omitempty"`
	Problem     string     `json:"problem,omitempty"`
	// Block is the block that has the address, and Node is the node that holds the block.
	// Both are zero in a pool that is used entry by entry.
	Block netip.Prefix `json:"block,omitzero"`
	Node  string       `json:"node,omitempty"`
}

// Pools returns all pools of client's namespace by name, first those that are used entry
// by entry, then those that are divided into blocks. It also returns an error for each
// object that cannot be read.
func Pools(ctx context.Context, client *kube.Client) ([]*Pool, []error, error) {
	survey, err := api.Inspect(ctx, client)
	if err != nil {
		return nil, nil, err
	}
	networks, errs := readNetworks(ctx, client)
	errs = append(survey.Errors, errs...)
	slicePools, err := api.InspectSlices(ctx, client)
	if err != nil {
		errs = append(errs, err)
	}
	if n := len(survey.Loose); n > 0 {
		errs = append(errs, fmt.Errorf("%d reservations have no entry, for example %s; see railctl ipam gc --dry-run", n, survey.Loose[0].Metadata.Name))
	}
	views := []*Pool{}
	byName := map[string]*Pool{}
	for _, p := range survey.Pools {
		v := newPool(p)
		views = append(views, v)
		byName[v.Name] = v
	}
	for i := range survey.Holdings {
		h := &survey.Holdings[i]
		byName[h.Pool.Name].hold(h)
	}
	divided, err := dividedPools(survey)
	if err != nil {
		errs = append(errs, err)
	}
	for _, v := range divided {
		views = append(views, v)
		byName[v.Name] = v
	}
	for i := range networks {
		for _, s := range allSources(&networks[i], slicePools) {
			if v := byName[s.Pool.Name()]; v != nil {
				v.claim(&s)
			}
		}
	}
	return views, errs, nil
}

// allSources returns a network's ranges. If the network has node slices, it returns the
// slices of all nodes. Ranges that cannot be used are left out, because [Check] reports
// them.
func allSources(n *Network, slicePools map[string]*api.NodeSlices) []source {
	name, sliced := plan.SlicePool(n.Conf)
	if !sliced {
		all, _ := n.sources(plan.Slice{})
		return all
	}
	var all []source
	if pool := slicePools[name]; pool != nil {
		for node, slice := range pool.ByNode {
			some, _ := n.sources(plan.Slice{Node: node, Prefix: slice})
			all = append(all, some...)
		}
	}
	return all
}

// newPool returns a pool without its holders and networks.
func newPool(p *api.PoolState) *Pool {
	v := &Pool{
		Name: p.Name, Namespace: p.Namespace, Range: p.Prefix, Used: len(p.Entries), Bytes: p.Bytes,
		Networks: []string{}, Problems: []string{}, Holders: []Holder{},
	}
	v.Size = new(big.Int).Lsh(big.NewInt(1), uint(p.Prefix.Addr().BitLen()-p.Prefix.Bits()))
	v.Size.Sub(v.Size, big.NewInt(2))
	inside := 0
	for key, e := range p.Entries {
		addr, err := p.Addr(key)
		switch {
		case err != nil:
			v.Problems = append(v.Problems, err.Error())
		case !p.Prefix.Contains(addr):
			v.Problems = append(v.Problems, fmt.Sprintf("%s is not in its range", addr))
		default:
			inside++
		}
		if e.PodRef == "" {
			v.Placeholders++
		}
	}
	slices.Sort(v.Problems)
	v.Free = new(big.Int).Sub(v.Size, big.NewInt(int64(inside)))
	if v.Free.Sign() < 0 {
		v.Free.SetInt64(0)
	}
	if len(p.Entries) > nearlyFull {
		v.Problems = append(v.Problems, fmt.Sprintf("one object holds at most about %d addresses: see block_size and node_slice_size", api.MaxEntries))
	}
	return v
}

// hold adds the holder of an address.
func (v *Pool) hold(h *api.Holding) {
	holder := Holder{Address: h.Addr, PodRef: h.PodRef, IfName: h.IfName, ContainerID: h.ContainerID}
	switch {
	case h.Reservation != nil:
		holder.Reservation = h.Reservation.Metadata.Name
	case h.Foreign != nil:
		holder.Problem = fmt.Sprintf("%s has the reservation %s", h.Foreign.Spec.PodRef, h.Foreign.Metadata.Name)
	case h.Missing != "":
		holder.Problem = "the reservation is missing"
	}
	if holder.Problem != "" {
		v.Problems = append(v.Problems, fmt.Sprintf("%s of %s: %s", h.Addr, h.PodRef, holder.Problem))
	}
	v.Holders = append(v.Holders, holder)
}

// claim adds a network that takes addresses from the pool.
func (v *Pool) claim(s *source) {
	if !slices.Contains(v.Networks, s.network.Name) {
		v.Networks = append(v.Networks, s.network.Name)
	}
	for i := range v.Holders {
		h := &v.Holders[i]
		if slices.Contains(s.network.Conf.Gateways(), h.Address) {
			h.Problem = "it is the gateway of network " + s.network.Name
			v.Problems = append(v.Problems, fmt.Sprintf("%s holds %s, the gateway of network %s", h.PodRef, h.Address, s.network.Name))
		}
	}
}

// Count returns a number in digits, or as a power of two if it is long, to keep
// tables narrow.
func Count(n *big.Int) string {
	const maxBits = 40 // bits
	if n.BitLen() > maxBits {
		return fmt.Sprintf("2^%d", n.BitLen())
	}
	return n.String()
}

// plural returns n and the thing, with an "s" if n is not 1.
func plural(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}
