package report

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"net/netip"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/ipam/plan"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/netconf/ipamconf"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// Verdict is a problem of a network, with its cure.
type Verdict struct {
	Level   string `json:"level"`
	Network string `json:"network"` // "" if unknown
	What    string `json:"what"`
	Cure    string `json:"cure"`
}

// The levels of a [Verdict].
const (
	LevelError   = "error"
	LevelWarning = "warning"
)

// Verdicts is the result of [Check].
type Verdicts struct {
	All    []Verdict // errors first, then by network
	Ranges int       // number of checked ranges
	// Errors are about objects that cannot be read.
	Errors []error
}

// Wrong returns how many of the verdicts are errors.
func (v *Verdicts) Wrong() int {
	n := 0
	for _, verdict := range v.All {
		if verdict.Level == LevelError {
			n++
		}
	}
	return n
}

// Check compares the ranges of all NetworkAttachmentDefinitions with each other
// and with the pools of client's namespace.
func Check(ctx context.Context, client *kube.Client) (*Verdicts, error) {
	k, err := newChecker(ctx, client)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(k.verdicts, func(a, b Verdict) int {
		return cmp.Or(cmp.Compare(a.Level, b.Level), cmp.Compare(a.Network, b.Network))
	})
	return &Verdicts{All: k.verdicts, Ranges: len(k.sources), Errors: k.errs}, nil
}

// checker holds the compared ranges, and the verdicts.
type checker struct {
	slices   map[string]*api.NodeSlices
	pools    map[string]*api.PoolState // all pools and blocks, by name
	nodes    []string                  // nil if they cannot be read
	asked    bool                      // the nodes were asked for
	sources  []source
	verdicts []Verdict
	errs     []error
}

func newChecker(ctx context.Context, client *kube.Client) (*checker, error) {
	survey, err := api.Inspect(ctx, client)
	if err != nil {
		return nil, err
	}
	k := &checker{pools: map[string]*api.PoolState{}, verdicts: []Verdict{}, errs: survey.Errors}
	for _, p := range slices.Concat(survey.Pools, survey.Divided, survey.Blocks) {
		k.pools[p.Name] = p
	}
	if k.slices, err = api.InspectSlices(ctx, client); err != nil {
		return nil, err
	}
	networks, errs := readNetworks(ctx, client)
	networks = used(networks, survey)
	for _, err := range errs {
		k.report(LevelError, "", err.Error(), "")
	}
	for i := range networks {
		if _, sliced := plan.SlicePool(networks[i].Conf); (sliced || networks[i].Conf.BlockSize != 0) && !k.asked {
			k.readNodes(ctx, client)
		}
		k.network(&networks[i])
	}
	for i := range k.sources {
		k.source(&k.sources[i])
		for j := range k.sources[:i] {
			k.pair(&k.sources[j], &k.sources[i])
		}
	}
	return k, nil
}

// report adds a verdict unless it exists already.
func (k *checker) report(level, network, what, cure string) {
	v := Verdict{level, network, what, cure}
	if !slices.Contains(k.verdicts, v) {
		k.verdicts = append(k.verdicts, v)
	}
}

func (k *checker) readNodes(ctx context.Context, client *kube.Client) {
	k.asked = true
	_, err := client.List(ctx, kube.Resource{Version: "v1", Plural: "nodes"}, kube.ListOptions{MetadataOnly: true}, func(item []byte) error {
		var node struct{ Metadata kube.Meta }
		if err := json.Unmarshal(item, &node); err != nil {
			return err
		}
		k.nodes = append(k.nodes, node.Metadata.Name)
		return nil
	})
	if err != nil {
		k.errs = append(k.errs, fmt.Errorf("cannot check which nodes have no slice or block: %w", err))
	}
}

// network checks one network by itself, and adds its ranges to the ranges that are compared
// with each other.
func (k *checker) network(n *Network) {
	whole, err := n.sources(plan.Slice{})
	if err != nil {
		k.report(LevelError, n.Name, err.Error(), "")
		return
	}
	if err := n.Conf.CheckEntryByEntry(); err != nil && n.Conf.Store != ipamconf.StoreLocal {
		k.report(LevelError, n.Name, err.Error(), "")
	}
	name, sliced := plan.SlicePool(n.Conf)
	if !sliced {
		k.sources = append(k.sources, whole...)
		for i := range whole {
			k.blockRoom(&whole[i])
		}
		return
	}
	if len(whole) != 1 {
		k.report(LevelError, n.Name, "the network has node_slice_size and several ranges", "use one network for each range")
		return
	}
	made := k.slices[name]
	switch {
	case made == nil:
		k.report(LevelError, n.Name, "there is no NodeSlicePool "+name+": no pod gets an address", "run whereabouts' node slice controller")
		return
	case len(made.ByNode) == 0:
		k.report(LevelError, n.Name, "NodeSlicePool "+name+" has no slices: no pod gets an address", "run whereabouts' node slice controller")
	}
	for _, node := range k.nodes {
		if !made.ByNode[node].IsValid() {
			k.report(LevelError, n.Name, fmt.Sprintf("node %s has no slice of %s", node, whole[0].Pool.Prefix), "make the range larger or the slices smaller, and look at the controller's log")
		}
	}
	for _, node := range slices.Sorted(maps.Keys(made.ByNode)) {
		slice := made.ByNode[node]
		part := plan.Slice{Node: node, Prefix: slice}
		if r := whole[0].Pool.Prefix; !part.Within(r) {
			k.report(LevelError, n.Name, fmt.Sprintf("the slice %s of node %s is not part of %s", slice, node, r), "delete the NodeSlicePool so that it is recreated")
			continue
		}
		some, err := n.sources(part)
		if err != nil {
			k.report(LevelError, n.Name, err.Error(), "")
		}
		k.sources = append(k.sources, some...)
	}
}

// source checks one range against its pool.
func (k *checker) source(s *source) {
	conf := s.network.Conf
	p := k.pools[s.Pool.Name()]
	if what, cure := s.mismatch(p); what != "" {
		k.report(LevelError, s.network.Name, what, cure)
	}
	if addresses := between(s.Range.First(), s.Range.Last()); conf.BlockSize == 0 && addresses.Cmp(big.NewInt(api.MaxEntries)) > 0 {
		level := LevelWarning
		if p != nil && len(p.Entries) > nearlyFull {
			level = LevelError
		}
		k.report(level, s.network.Name, fmt.Sprintf("%s has %s addresses, and one IPPool holds about %d", s.Pool.Prefix, Count(addresses), api.MaxEntries),
			"set block_size or node_slice_size if you expect that many pods")
	}
	if gw := conf.Gateway; conf.AllowGateway && gw.IsValid() && s.Range.Why(gw) == "" {
		k.report(LevelWarning, s.network.Name, fmt.Sprintf("the gateway %s may be handed out", gw), "remove allow_gateway")
	}
	for _, gw := range gatewaysOf(s) {
		held := p
		if conf.BlockSize != 0 && conf.SameHost == nil {
			held = k.pools[api.BlockName(s.Pool, blockAt(gw, conf.BlockSize))]
		}
		if held != nil && holderOf(held, gw) != placeholder && held.Used().Has(gw) {
			k.report(LevelError, s.network.Name, fmt.Sprintf("the gateway %s is %s", gw, holderOf(held, gw)), "delete that pod, so that it gets another address")
		}
	}
}

// blockRoom checks that a range with blocks has at least one block for each node.
func (k *checker) blockRoom(s *source) {
	size := s.network.Conf.BlockSize
	if size == 0 || len(k.nodes) == 0 {
		return
	}
	blocks := 0
	for range s.blocks() {
		if blocks++; blocks > len(k.nodes) {
			return
		}
	}
	level, what := LevelError, "not every node can have a block"
	if blocks == len(k.nodes) {
		level, what = LevelWarning, "no node can have a second block"
	}
	k.report(level, s.network.Name, fmt.Sprintf("%s and %s of %d addresses in %s: %s", plural(len(k.nodes), "node"), plural(blocks, "block"), size, s.Pool.Prefix, what),
		"make block_size smaller or the range larger")
}

// gatewaysOf returns the gateways in the range's network, including those that
// may be assigned.
func gatewaysOf(s *source) []netip.Addr {
	conf := *s.network.Conf
	conf.AllowGateway = false
	return slices.DeleteFunc(conf.Gateways(), func(a netip.Addr) bool { return !s.Pool.Prefix.Contains(a) })
}

// between returns the number of addresses from first to last.
func between(first, last netip.Addr) *big.Int {
	n := new(big.Int).Sub(new(big.Int).SetBytes(last.AsSlice()), new(big.Int).SetBytes(first.AsSlice()))
	return n.Add(n, big.NewInt(1))
}

// pair checks two ranges of one address space against each other.
func (k *checker) pair(a, b *source) {
	if a.Pool.Space != b.Pool.Space || a.network.Name == b.network.Name {
		return
	}
	for _, x := range [][2]*source{{a, b}, {b, a}} {
		for _, gw := range gatewaysOf(x[0]) {
			if x[1].Range.Why(gw) == "" {
				k.report(LevelError, x[1].network.Name, fmt.Sprintf("the network hands out %s, the gateway of network %s", gw, x[0].network.Name), "give the network the same gateway, or exclude the address")
			}
		}
	}
	same := a.Pool.Name() == b.Pool.Name()
	if !same && (a.Range.Last().Less(b.Range.First()) || b.Range.Last().Less(a.Range.First())) {
		return
	}
	switch conf, other := a.network.Conf, b.network.Conf; {
	case conf.BlockSize != other.BlockSize:
		k.blockSizes(a, b)
	case !same && conf.BlockSize != 0 && (a.SameHost != nil || b.SameHost != nil): // their blocks are not compared
		k.report(LevelError, a.network.Name, fmt.Sprintf("%s overlaps %s, and one of them has sameHost: one address may be assigned twice", a.Pool.Prefix, b),
			"change one of the ranges so that the two do not overlap, or set network_name if they are different networks")
	case same || conf.BlockSize != 0: // no two nodes hold one block
	case !conf.Overlapping || !other.Overlapping:
		k.report(LevelError, a.network.Name, fmt.Sprintf("%s overlaps %s: one address may be assigned twice", a.Pool.Prefix, b),
			"set enable_overlapping_ranges in both, or set network_name if they are different networks")
	}
}

// blockSizes reports two ranges that overlap and differ in block_size. If both ranges have
// the same pool, and that pool exists, it reports nothing: the pool fits one of the two
// networks, and [checker.source] reports the other network.
func (k *checker) blockSizes(a, b *source) {
	const cure = "give both the same block_size, or set network_name if they are different networks"
	size := func(s *source) string {
		if n := s.network.Conf.BlockSize; n != 0 {
			return fmt.Sprintf("block_size %d", n)
		}
		return "no block_size"
	}
	switch name := a.Pool.Name(); {
	case name != b.Pool.Name():
		k.report(LevelError, a.network.Name, fmt.Sprintf("%s (%s) overlaps %s (%s): one address may be assigned twice", a.Pool.Prefix, size(a), b, size(b)), cure)
	case k.pools[name] == nil:
		k.report(LevelError, a.network.Name, fmt.Sprintf("the network has %s, and network %s with the same pool has %s: the pods of one of the two get no address", size(a), b.network.Name, size(b)), cure)
	}
}
