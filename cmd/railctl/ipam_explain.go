package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ipam"
	"github.com/rail-cni/rail-cni/pkg/ipam/kubernetes"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// explanation says which address of a range comes next, and why.
type explanation struct {
	Network string       `json:"network"`
	Pool    string       `json:"pool"`
	Range   netip.Prefix `json:"range"`
	First   netip.Addr   `json:"first"`
	Last    netip.Addr   `json:"last"`
	Steps   []step       `json:"steps"` // what is passed over
	Next    netip.Addr   `json:"next,omitzero"`
	Error   string       `json:"error,omitempty"` // why there is none
}

// step is a run of addresses that are passed over for one reason.
type step struct {
	From netip.Addr `json:"from"`
	To   netip.Addr `json:"to"`
	Why  string     `json:"why"`
}

func newIPAMExplain() *cobra.Command {
	var c clusterCommand
	var node string
	cmd := &cobra.Command{
		Use:   "explain NAMESPACE/NAD | FILE",
		Short: "Say which address a network would give next, and why",
		Long: `Say which address the next new pod of a network would get of each of its
ranges, and why not a lower one: excluded, a gateway, held by a pod, or reserved
by another pool of the same address space. The network is a
NetworkAttachmentDefinition, or a file with a CNI configuration (list).

A pod that holds an address of the pool already gets that again. Several ADDs at
a time may each get a later one.`,
		Example: `  railctl ipam explain default/roce-net-1
  railctl ipam explain ./10-rail.conflist --node node1`,
		Args: cobra.ExactArgs(1),
	}
	output := addOutputFlag(cmd)
	c.Add(cmd)
	cmd.Flags().StringVar(&node, "node", "", "the node, for a network with node_slice_size")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, cancel, client, err := c.begin(cmd, 0)
		if err != nil {
			return err
		}
		defer cancel()
		networks, err := findNetwork(ctx, client, args[0])
		if err != nil {
			return err
		}
		list, err := explain(ctx, client, networks, node)
		if err != nil {
			return err
		}
		return printExplanations(cmd, output, list)
	}
	return cmd
}

// findNetwork reads what the argument names: a file, or an object.
func findNetwork(ctx context.Context, client *kube.Client, name string) ([]network, error) {
	var found []network
	text, err := os.ReadFile(name)
	if err == nil {
		found, err = parseNetworks(name, text)
	} else {
		namespace, nad, ok := strings.Cut(name, "/")
		if !ok || strings.Contains(nad, "/") {
			return nil, fmt.Errorf("%w; give a file, or a NetworkAttachmentDefinition as namespace/name", err)
		}
		var object []byte
		if object, err = client.Get(ctx, nads(namespace), nad); err == nil {
			found, err = parseNAD(object)
		}
	}
	if err == nil && len(found) == 0 {
		err = cnierr.New(cnierr.InvalidConfig, "", "network %s takes no addresses from whereabouts", name)
	}
	return found, err
}

func explain(ctx context.Context, client *kube.Client, networks []network, node string) ([]explanation, error) {
	list := []explanation{}
	for i := range networks {
		sources, err := networks[i].sourcesOf(ctx, client, node)
		if err != nil {
			return nil, err
		}
		for _, s := range sources {
			state, err := kubernetes.ReadPool(ctx, client, s.pool.Name())
			if err != nil {
				return nil, err
			}
			if state == nil {
				state = &kubernetes.PoolState{Name: s.pool.Name(), Base: s.pool.Prefix.Addr(), Prefix: s.pool.Prefix}
			}
			hidden := map[netip.Addr]string{}
			if networks[i].conf.Overlapping {
				if hidden, err = kubernetes.HiddenFrom(ctx, client, s.pool); err != nil {
					return nil, err
				}
			}
			list = append(list, s.explain(state, hidden))
		}
	}
	return list, nil
}

// explain goes the way of an ADD from the first address on.
func (s *source) explain(state *kubernetes.PoolState, hidden map[netip.Addr]string) explanation {
	x := explanation{
		Network: s.network.name, Pool: s.pool.Name(), Range: s.pool.Prefix,
		First: s.rng.First(), Last: s.rng.Last(), Steps: []step{},
	}
	used := state.Used()
	for addr := x.First; addr.IsValid() && !x.Last.Less(addr); {
		next, ok := s.rng.Next(addr)
		if !ok {
			x.closed(s.rng, addr, x.Last)
			break
		}
		if next != addr {
			x.closed(s.rng, addr, next.Prev())
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
	x.Error = s.rng.Exhausted().Error()
	return x
}

func holderOf(state *kubernetes.PoolState, addr netip.Addr) string {
	if key, err := state.Key(addr); err == nil {
		if e := state.Entries[key]; e.PodRef != "" {
			return "held by " + e.PodRef
		}
	}
	return placeholder
}

// placeholder is an entry without a pod: somebody set the address aside.
const placeholder = "held by a placeholder"

// closed adds a block that the range leaves out, which gateways may adjoin.
func (x *explanation) closed(r *ipam.Range, from, to netip.Addr) {
	gateways := slices.DeleteFunc(slices.Clone(r.Spec().Avoid), func(a netip.Addr) bool { return a.Less(from) || to.Less(a) })
	slices.SortFunc(gateways, netip.Addr.Compare)
	for _, g := range slices.Compact(gateways) {
		if from.Less(g) {
			x.Steps = append(x.Steps, step{from, g.Prev(), r.Why(from)})
		}
		x.Steps = append(x.Steps, step{g, g, r.Why(g)})
		if from = g.Next(); g == to {
			return
		}
	}
	x.Steps = append(x.Steps, step{from, to, r.Why(from)})
}

// pass adds one address.
func (x *explanation) pass(addr netip.Addr, why string) {
	x.Steps = append(x.Steps, step{addr, addr, why})
}

func printExplanations(cmd *cobra.Command, output *format, list []explanation) error {
	if *output != asTable {
		return output.print(cmd.OutOrStdout(), list, nil)
	}
	var errs []error
	for _, x := range list {
		out := cmd.OutOrStdout()
		fmt.Fprintf(out, "network %s, pool %s: from %s to %s\n", x.Network, x.Pool, x.First, x.Last)
		const most = 20
		for i, s := range x.Steps {
			if i == most && len(x.Steps) > most {
				fmt.Fprintf(out, "  … and %d more; -o json has all\n", len(x.Steps)-most)
				break
			}
			block := s.From.String()
			if s.To != s.From {
				block += " to " + s.To.String()
			}
			fmt.Fprintf(out, "  %s: %s\n", block, s.Why)
		}
		if x.Error != "" {
			errs = append(errs, errors.New(x.Error))
			continue
		}
		fmt.Fprintf(out, "  %s: free, comes next\n", x.Next)
	}
	return report(cmd.ErrOrStderr(), errs)
}
