package main

import (
	"context"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rail-cni/rail-cni/pkg/ipam/kubernetes"
	"github.com/rail-cni/rail-cni/pkg/kube"
)

// poolView is a pool as "railctl ipam show" has it.
type poolView struct {
	Name         string       `json:"name"`
	Namespace    string       `json:"namespace"`
	Range        netip.Prefix `json:"range"`
	Used         int          `json:"used"` // entries, placeholders too
	Placeholders int          `json:"placeholders"`
	Free         *big.Int     `json:"free"` // of the network; a range may leave some out
	Size         *big.Int     `json:"size"` // without the network's first and last address
	Bytes        int          `json:"bytes"`
	Networks     []string     `json:"networks"` // NetworkAttachmentDefinitions that name it
	Problems     []string     `json:"problems"`
	Holders      []holderView `json:"holders"`
}

type holderView struct {
	Address     netip.Addr `json:"address"`
	PodRef      string     `json:"podref"`
	IfName      string     `json:"ifname,omitempty"`
	ContainerID string     `json:"containerID"`
	Reservation string     `json:"reservation,omitempty"`
	Problem     string     `json:"problem,omitempty"`
}

func newIPAMShow() *cobra.Command {
	var c clusterCommand
	cmd := &cobra.Command{
		Use:   "show [POOL]",
		Short: "List the address pools of the cluster, or who holds the addresses of one",
		Long: `List the IPPools of the cluster: how much of them is used, which networks
(NetworkAttachmentDefinitions) name them, and what is wrong with them: an entry
without its reservation (or with another's in its place), a gateway that somebody
holds, keys that name no address. With a pool's name or range, list its holders.

FREE and SIZE are of the whole network without its first and last address; what
a configuration leaves out "railctl ipam explain" knows.

The exit code is 1 if something cannot be read; the rest is shown.`,
		Example: `  railctl ipam show
  railctl ipam show 172.31.1.0/24
  railctl ipam show -o json | jq -r '.[] | .name + " " + .problems[]'`,
		Args: cobra.MaximumNArgs(1),
	}
	output := addOutputFlag(cmd)
	c.Add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, cancel, client, err := c.begin(cmd, 0)
		if err != nil {
			return err
		}
		defer cancel()
		views, errs, err := viewPools(ctx, client)
		if err != nil {
			return err
		}
		if len(args) == 0 {
			err = printPools(cmd, output, views)
		} else {
			err = printHolders(cmd, output, views, args[0])
		}
		if err != nil {
			return err
		}
		return report(cmd.ErrOrStderr(), errs)
	}
	return cmd
}

// viewPools gives all pools, and errors about what is not in them.
func viewPools(ctx context.Context, client *kube.Client) ([]*poolView, []error, error) {
	survey, err := kubernetes.Inspect(ctx, client)
	if err != nil {
		return nil, nil, err
	}
	networks, errs := readNetworks(ctx, client)
	errs = append(survey.Errors, errs...)
	slicePools, err := kubernetes.InspectSlices(ctx, client)
	if err != nil {
		errs = append(errs, err)
	}
	if n := len(survey.Loose); n > 0 {
		errs = append(errs, fmt.Errorf("%d reservations belong to no entry, the first is %s; see railctl ipam gc --dry-run", n, survey.Loose[0].Metadata.Name))
	}
	views := []*poolView{}
	byName := map[string]*poolView{}
	for _, p := range survey.Pools {
		v := viewPool(p)
		views = append(views, v)
		byName[v.Name] = v
	}
	for i := range survey.Holdings {
		h := &survey.Holdings[i]
		byName[h.Pool.Name].hold(h)
	}
	for i := range networks {
		for _, s := range allSources(&networks[i], slicePools) {
			if v := byName[s.pool.Name()]; v != nil {
				v.claim(&s)
			}
		}
	}
	return views, errs, nil
}

// allSources gives a network's ranges, or with node slices those of all nodes.
// What is wrong with them "railctl ipam check" says.
func allSources(n *network, slicePools map[string]*kubernetes.NodeSlices) []source {
	name, sliced := n.sliced()
	if !sliced {
		all, _ := n.sources("", netip.Prefix{})
		return all
	}
	var all []source
	if pool := slicePools[name]; pool != nil {
		for node, slice := range pool.Of {
			some, _ := n.sources(node, slice)
			all = append(all, some...)
		}
	}
	return all
}

func viewPool(p *kubernetes.PoolState) *poolView {
	v := &poolView{
		Name: p.Name, Namespace: p.Namespace, Range: p.Prefix, Used: len(p.Entries), Bytes: p.Bytes,
		Networks: []string{}, Problems: []string{}, Holders: []holderView{},
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
	if len(p.Entries) > kubernetes.Largest*9/10 {
		v.Problems = append(v.Problems, fmt.Sprintf("one object holds about %d addresses at the most: see node_slice_size", kubernetes.Largest))
	}
	return v
}

// hold adds a holder.
func (v *poolView) hold(h *kubernetes.Holding) {
	holder := holderView{Address: h.Addr, PodRef: h.PodRef, IfName: h.IfName, ContainerID: h.ContainerID}
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

// claim adds a network that takes addresses of the pool.
func (v *poolView) claim(s *source) {
	if !slices.Contains(v.Networks, s.network.name) {
		v.Networks = append(v.Networks, s.network.name)
	}
	for i := range v.Holders {
		h := &v.Holders[i]
		if slices.Contains(s.network.conf.Gateways(), h.Address) {
			h.Problem = "it is the gateway of network " + s.network.name
			v.Problems = append(v.Problems, fmt.Sprintf("%s holds %s, the gateway of network %s", h.PodRef, h.Address, s.network.name))
		}
	}
}

func printPools(cmd *cobra.Command, output *format, views []*poolView) error {
	if len(views) == 0 && *output == asTable {
		fmt.Fprintln(cmd.OutOrStdout(), "no pools: nobody has got an address of this cluster yet")
		return nil
	}
	rows := [][]string{{"POOL", "RANGE", "USED", "FREE", "SIZE", "NETWORKS", "PROBLEMS"}}
	for _, v := range views {
		problems := ""
		switch n := len(v.Problems); {
		case n == 1:
			problems = v.Problems[0]
		case n > 1:
			problems = fmt.Sprintf("%s (and %d more)", v.Problems[0], n-1)
		}
		rows = append(rows, []string{v.Name, v.Range.String(), strconv.Itoa(v.Used), count(v.Free), count(v.Size), strings.Join(v.Networks, ","), problems})
	}
	return output.print(cmd.OutOrStdout(), views, rows)
}

// count writes a number as a table has room for.
func count(n *big.Int) string {
	const most = 40 // bits
	if n.BitLen() > most {
		return fmt.Sprintf("2^%d", n.BitLen())
	}
	return n.String()
}

func printHolders(cmd *cobra.Command, output *format, views []*poolView, name string) error {
	wanted := []*poolView{}
	rows := [][]string{{"ADDRESS", "POD", "IFNAME", "CONTAINER", "RESERVATION", "PROBLEM"}}
	for _, v := range views {
		if v.Name != name && v.Range.String() != name {
			continue
		}
		wanted = append(wanted, v)
		for _, h := range v.Holders {
			rows = append(rows, []string{h.Address.String(), h.PodRef, h.IfName, h.ContainerID[:min(len(h.ContainerID), 12)], h.Reservation, h.Problem})
		}
	}
	if len(wanted) == 0 {
		return fmt.Errorf("there is no pool %q; railctl ipam show lists them", name)
	}
	return output.print(cmd.OutOrStdout(), wanted, rows)
}
