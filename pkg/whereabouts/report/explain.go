package report

import (
	"cmp"
	"context"
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
	Error   string       `json:"error,omitempty"` // why there is none
}

// Step is a run of addresses that are skipped for one reason.
type Step struct {
	From netip.Addr `json:"from"`
	To   netip.Addr `json:"to"`
	Why  string     `json:"why"`
}

// Explain returns the next address of each range of the networks. node is needed only
// for networks with node slices.
func Explain(ctx context.Context, client *kube.Client, networks []Network, node string) ([]Explanation, error) {
	list := []Explanation{}
	for i := range networks {
		sources, err := networks[i].sourcesOn(ctx, client, node)
		if err != nil {
			return nil, err
		}
		for _, s := range sources {
			state, err := api.ReadPool(ctx, client, s.Pool.Name())
			if err != nil {
				return nil, err
			}
			if state == nil {
				state = &api.PoolState{Name: s.Pool.Name(), Base: s.Pool.Prefix.Addr(), Prefix: s.Pool.Prefix}
			}
			hidden := map[netip.Addr]string{}
			if networks[i].Conf.Overlapping {
				if hidden, err = api.HiddenFrom(ctx, client, s.Pool); err != nil {
					return nil, err
				}
			}
			list = append(list, s.explain(state, hidden))
		}
	}
	return list, nil
}

// explain walks the range like an ADD, from its first address on.
func (s *source) explain(state *api.PoolState, hidden map[netip.Addr]string) Explanation {
	x := Explanation{
		Network: s.network.Name, Pool: s.Pool.Name(), Range: s.Pool.Prefix,
		First: s.Range.First(), Last: s.Range.Last(), Steps: []Step{},
	}
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

// closed adds a block of addresses that the range leaves out. Each gateway in it is a
// step of its own, apart from excluded addresses.
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
