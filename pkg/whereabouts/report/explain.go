package report

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/kube"
	"github.com/rail-cni/rail-cni/pkg/whereabouts/api"
)

// Explanation lists the addresses that an ADD skips in one range, up to the
// next free one.
type Explanation struct {
	Network string       `json:"network"`
	Pool    string       `json:"pool"`
	Range   netip.Prefix `json:"range"`
	First   netip.Addr   `json:"first"`
	Last    netip.Addr   `json:"last"`
	Steps   []Step       `json:"steps"` // the skipped addresses
	Next    netip.Addr   `json:"next,omitzero"`
	Error   string       `json:"error,omitempty"` // why there is no next address
	// The following fields are set only for a network with block_size. Claims is set if no
	// address is free in the node's blocks, so that the next ADD claims one more block.
	Node      string  `json:"node,omitempty"`
	BlockSize int     `json:"blockSize,omitempty"`
	Blocks    []Block `json:"blocks,omitempty"` // the blocks that the node holds, as published
	Claims    bool    `json:"claims,omitempty"`
}

// Step is a run of addresses that are skipped for one reason.
type Step struct {
	From netip.Addr `json:"from"`
	To   netip.Addr `json:"to"`
	Why  string     `json:"why"`
}

// Explain returns the next address of each range of the networks. node is needed only for
// networks with node slices or blocks. Explain knows which addresses of a block are free
// only as far as the node's rail-agent has published it.
func Explain(ctx context.Context, client *kube.Client, networks []Network, node string) ([]Explanation, error) {
	list := []Explanation{}
	if slices.ContainsFunc(networks, func(n Network) bool { return n.Rail != nil }) {
		survey, err := api.Inspect(ctx, client)
		if err != nil {
			return nil, err
		}
		networks = used(slices.Clone(networks), survey)
	}
	for i := range networks {
		sources, err := networks[i].sourcesOn(ctx, client, node)
		if err != nil {
			return nil, err
		}
		var survey *api.Survey // of the blocks
		if networks[i].Conf.BlockSize != 0 {
			if survey, err = api.Inspect(ctx, client); err != nil {
				return nil, err
			}
		}
		for _, s := range sources {
			if s.SameHost != nil {
				x := s.explanation()
				x.Error = "with sameHost an ADD chooses a host part that is free on all rails, and only the node knows its rails"
				list = append(list, x)
				continue
			}
			if survey != nil {
				list = append(list, s.explainBlocks(survey, node))
				continue
			}
			x, err := s.explainEntries(ctx, client)
			if err != nil {
				return nil, err
			}
			list = append(list, x)
		}
	}
	return list, nil
}

// explainEntries explains the next address of a pool that is used entry by entry.
func (s *source) explainEntries(ctx context.Context, client *kube.Client) (Explanation, error) {
	state, err := api.ReadPool(ctx, client, s.Pool.Name())
	if err != nil {
		return Explanation{}, err
	}
	if x := s.explanation(); x.refuse(s.mismatch(state)) {
		return x, nil
	}
	if state == nil {
		state = &api.PoolState{Name: s.Pool.Name(), Base: s.Pool.Prefix.Addr(), Prefix: s.Pool.Prefix}
	}
	hidden := map[netip.Addr]string{}
	if s.network.Conf.Overlapping {
		if hidden, err = api.HiddenFrom(ctx, client, s.Pool); err != nil {
			return Explanation{}, err
		}
	}
	return s.explain(state, hidden), nil
}

// explanation returns an Explanation without steps and without a next address.
func (s *source) explanation() Explanation {
	return Explanation{
		Network: s.network.Name, Pool: s.Pool.Name(), Range: s.Pool.Prefix,
		First: s.Range.First(), Last: s.Range.Last(), Steps: []Step{},
	}
}

// explain walks through the range from its first address on, as an ADD does.
func (s *source) explain(state *api.PoolState, hidden map[netip.Addr]string) Explanation {
	x := s.explanation()
	used := state.Used()
	for addr := x.First; addr.IsValid() && !x.Last.Less(addr); {
		next, ok := s.Range.Next(addr)
		if !ok {
			x.closed(s.Range, addr, x.Last)
			break
		}
		if next != addr {
			x.closed(s.Range, addr, next.Prev())
		}
		holder, reserved := hidden[next]
		switch {
		case used.Has(next):
			x.pass(next, holderOf(state, next))
		case reserved:
			x.pass(next, "another pool has reserved it for "+cmp.Or(holder, "nobody"))
		default:
			x.Next = next
			return x
		}
		addr = next.Next()
	}
	x.Error = s.Range.Exhausted().Error()
	return x
}

// explainBlocks explains which address an ADD on node assigns from the blocks of that node.
func (s *source) explainBlocks(survey *api.Survey, node string) Explanation {
	x := s.explanation()
	for _, p := range slices.Concat(survey.Pools, survey.Divided) {
		if p.Name == x.Pool && x.refuse(s.mismatch(p)) {
			return x
		}
	}
	x.Node, x.BlockSize = node, s.network.Conf.BlockSize
	held := map[netip.Prefix]bool{}
	for _, p := range blocksOf(s.Pool, survey.Blocks) {
		if p.Block.Claim == "" {
			continue
		}
		held[p.Prefix] = true
		if p.Block.Node != node {
			continue
		}
		x.Blocks = append(x.Blocks, newBlock(p))
		if part, ok := s.Range.Within([]netip.Prefix{p.Prefix}); ok && !x.Next.IsValid() {
			inside := source{Claim: ipam.Claim{Pool: s.Pool, Range: part}, network: s.network}
			y := inside.explain(p, nil)
			x.Steps, x.Next = append(x.Steps, y.Steps...), y.Next
		}
	}
	if x.Next.IsValid() {
		return x
	}
	for block := range s.blocks() {
		if !held[block] {
			x.Claims = true
			return x
		}
	}
	x.Error = fmt.Sprintf("%s: no block of %d addresses is free; widen the range, make block_size smaller, or end attachments that are not needed", s.Range.Exhausted(), x.BlockSize)
	return x
}

// refuse sets the error if what is not "". It reports whether it has set the error.
func (x *Explanation) refuse(what, cure string) bool {
	if what == "" {
		return false
	}
	x.Error = what + "; " + cure
	return true
}

func holderOf(state *api.PoolState, addr netip.Addr) string {
	if key, err := state.Key(addr); err == nil {
		if e := state.Entries[key]; e.PodRef != "" {
			return "held by " + e.PodRef
		}
	}
	return placeholder
}

// placeholder describes an entry without a pod: a person reserved the address.
const placeholder = "held by a placeholder"

// closed adds steps for a run of addresses that the range leaves out. The run begins with
// from and ends with to. Each gateway in it is a separate step, so that it is shown apart
// from excluded addresses.
func (x *Explanation) closed(r *ipam.Range, from, to netip.Addr) {
	gateways := slices.DeleteFunc(slices.Clone(r.Spec().Avoid), func(a netip.Addr) bool { return a.Less(from) || to.Less(a) })
	slices.SortFunc(gateways, netip.Addr.Compare)
	for _, g := range slices.Compact(gateways) {
		if from.Less(g) {
			x.Steps = append(x.Steps, Step{from, g.Prev(), r.Why(from)})
		}
		x.Steps = append(x.Steps, Step{g, g, r.Why(g)})
		if from = g.Next(); g == to {
			return
		}
	}
	x.Steps = append(x.Steps, Step{from, to, r.Why(from)})
}

// pass adds a step for one address.
func (x *Explanation) pass(addr netip.Addr, why string) {
	x.Steps = append(x.Steps, Step{addr, addr, why})
}
