package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"net/netip"
	"slices"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/pkg/ipam/kubernetes"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// verdict is something that "railctl ipam check" found.
type verdict struct {
	Level   string `json:"level"`
	Network string `json:"network"`
	What    string `json:"what"`
	Cure    string `json:"cure"`
}

// The levels. Only errors make the exit code 1.
const (
	isError   = "error"
	isWarning = "warning"
)

func newIPAMCheck() *cobra.Command {
	var c clusterCommand
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check the address ranges of all networks against each other and the pools",
		Long: `Check the ranges of all NetworkAttachmentDefinitions that use whereabouts:

  ranges that overlap without enable_overlapping_ranges (duplicate addresses);
  a gateway that a pod holds, or that another network of the pool hands out;
  ranges with more addresses than one IPPool can hold, without node slices;
  node slices that nobody has made, or that some node lacks;
  configurations that cannot work.

The exit code is 1 if there is an error; warnings alone leave it 0.`,
		Args: cobra.NoArgs,
	}
	output := addOutputFlag(cmd)
	c.Add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel, client, err := c.begin(cmd, 0)
		if err != nil {
			return err
		}
		defer cancel()
		k, err := newChecker(ctx, client)
		if err != nil {
			return err
		}
		if err := k.print(cmd, output); err != nil {
			return err
		}
		return report(cmd.ErrOrStderr(), k.errs)
	}
	return cmd
}

// checker holds what is compared.
type checker struct {
	slices   map[string]*kubernetes.NodeSlices
	pools    map[string]*kubernetes.PoolState
	nodes    []string // nil when they cannot be read
	sources  []source
	verdicts []verdict
	errs     []error
}

func newChecker(ctx context.Context, client *kube.Client) (*checker, error) {
	survey, err := kubernetes.Inspect(ctx, client)
	if err != nil {
		return nil, err
	}
	k := &checker{pools: map[string]*kubernetes.PoolState{}, verdicts: []verdict{}, errs: survey.Errors}
	for _, p := range survey.Pools {
		k.pools[p.Name] = p
	}
	if k.slices, err = kubernetes.InspectSlices(ctx, client); err != nil {
		return nil, err
	}
	networks, errs := readNetworks(ctx, client)
	for _, err := range errs {
		k.say(isError, "", err.Error(), "")
	}
	for i := range networks {
		if _, sliced := networks[i].sliced(); sliced && k.nodes == nil {
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

func (k *checker) say(level, network, what, cure string) {
	v := verdict{level, network, what, cure}
	if !slices.Contains(k.verdicts, v) {
		k.verdicts = append(k.verdicts, v)
	}
}

func (k *checker) readNodes(ctx context.Context, client *kube.Client) {
	_, err := client.List(ctx, kube.Resource{Version: "v1", Plural: "nodes"}, kube.ListOptions{MetadataOnly: true}, func(item []byte) error {
		var node struct{ Metadata kube.Meta }
		if err := json.Unmarshal(item, &node); err != nil {
			return err
		}
		k.nodes = append(k.nodes, node.Metadata.Name)
		return nil
	})
	if err != nil {
		k.errs = append(k.errs, fmt.Errorf("nodes without a slice are not found: %w", err))
	}
}

// network looks at one alone, and notes its ranges.
func (k *checker) network(n *network) {
	whole, err := n.sources("", netip.Prefix{})
	if err != nil {
		k.say(isError, n.name, err.Error(), "")
		return
	}
	name, sliced := n.sliced()
	if !sliced {
		k.sources = append(k.sources, whole...)
		return
	}
	if len(whole) != 1 {
		k.say(isError, n.name, "node_slice_size with several ranges", "use one network for each range")
		return
	}
	made := k.slices[name]
	switch {
	case made == nil:
		k.say(isError, n.name, "there is no NodeSlicePool "+name+": no pod gets an address", "run whereabouts' node slice controller")
		return
	case len(made.Of) == 0:
		k.say(isError, n.name, "NodeSlicePool "+name+" has no slices: no pod gets an address", "run whereabouts' node slice controller")
	}
	for _, node := range k.nodes {
		if !made.Of[node].IsValid() {
			k.say(isError, n.name, fmt.Sprintf("node %s has no slice of %s", node, whole[0].pool.Prefix), "make the range larger or the slices smaller, and look at the controller's log")
		}
	}
	for _, node := range slices.Sorted(maps.Keys(made.Of)) {
		slice := made.Of[node]
		if r := whole[0].pool.Prefix; !r.Contains(slice.Addr()) || slice.Bits() < r.Bits() {
			k.say(isError, n.name, fmt.Sprintf("the slice %s of node %s is no part of %s", slice, node, r), "delete the NodeSlicePool so that it is made anew")
			continue
		}
		some, err := n.sources(node, slice)
		if err != nil {
			k.say(isError, n.name, err.Error(), "")
		}
		k.sources = append(k.sources, some...)
	}
}

// source looks at one range.
func (k *checker) source(s *source) {
	if addresses := between(s.rng.First(), s.rng.Last()); addresses.Cmp(big.NewInt(kubernetes.Largest)) > 0 {
		level := isWarning
		if p := k.pools[s.pool.Name()]; p != nil && len(p.Entries) > kubernetes.Largest*9/10 {
			level = isError
		}
		k.say(level, s.network.name, fmt.Sprintf("%s has %s addresses, and one IPPool holds about %d", s.pool.Prefix, count(addresses), kubernetes.Largest),
			"set node_slice_size, if that many pods are to come")
	}
	p := k.pools[s.pool.Name()]
	conf := s.network.conf
	if gw := conf.Gateway; conf.AllowGateway && gw.IsValid() && s.rng.Why(gw) == "" {
		k.say(isWarning, s.network.name, fmt.Sprintf("the gateway %s may be handed out", gw), "remove allow_gateway")
	}
	for _, gw := range gatewaysOf(s) {
		if p != nil && holderOf(p, gw) != placeholder && p.Used().Has(gw) {
			k.say(isError, s.network.name, fmt.Sprintf("the gateway %s is %s", gw, holderOf(p, gw)), "delete that pod, so that it gets another address")
		}
	}
}

// gatewaysOf gives those in the range's network, whether or not they may be
// handed out.
func gatewaysOf(s *source) []netip.Addr {
	conf := *s.network.conf
	conf.AllowGateway = false
	return slices.DeleteFunc(conf.Gateways(), func(a netip.Addr) bool { return !s.pool.Prefix.Contains(a) })
}

func between(first, last netip.Addr) *big.Int {
	n := new(big.Int).Sub(new(big.Int).SetBytes(last.AsSlice()), new(big.Int).SetBytes(first.AsSlice()))
	return n.Add(n, big.NewInt(1))
}

// pair compares two ranges of one address space.
func (k *checker) pair(a, b *source) {
	if a.pool.Space != b.pool.Space || a.network.name == b.network.name {
		return
	}
	for _, x := range [][2]*source{{a, b}, {b, a}} {
		for _, gw := range gatewaysOf(x[0]) {
			if x[1].rng.Why(gw) == "" {
				k.say(isError, x[1].network.name, fmt.Sprintf("it hands out %s, the gateway of network %s", gw, x[0].network.name), "give it the same gateway, or exclude the address")
			}
		}
	}
	if a.pool.Name() == b.pool.Name() || a.rng.Last().Less(b.rng.First()) || b.rng.Last().Less(a.rng.First()) {
		return
	}
	if !a.network.conf.Overlapping || !b.network.conf.Overlapping {
		k.say(isError, a.network.name, fmt.Sprintf("%s overlaps %s: one address may be given twice", a.pool.Prefix, b),
			"set enable_overlapping_ranges in both, or, if they are different networks, network_name")
	}
}

func (k *checker) print(cmd *cobra.Command, output *format) error {
	slices.SortStableFunc(k.verdicts, func(a, b verdict) int {
		return cmp.Or(cmp.Compare(a.Level, b.Level), cmp.Compare(a.Network, b.Network))
	})
	errors := 0
	rows := [][]string{{"LEVEL", "NETWORK", "WHAT", "CURE"}}
	for _, v := range k.verdicts {
		if v.Level == isError {
			errors++
		}
		rows = append(rows, []string{v.Level, v.Network, v.What, v.Cure})
	}
	if errors > 0 {
		k.errs = append(k.errs, fmt.Errorf("%d errors", errors))
	}
	if len(k.verdicts) == 0 && *output == asTable {
		fmt.Fprintf(cmd.OutOrStdout(), "nothing is wrong with the %d ranges\n", len(k.sources))
		return nil
	}
	return output.print(cmd.OutOrStdout(), k.verdicts, rows)
}
