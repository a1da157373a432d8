package netdev

import (
	"slices"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/bpf"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// detachPrograms detaches all BPF programs from a returned NIC except the programs of the host. A
// program survives the NIC's move, so it would drop or watch the packets of the next pod. missing
// has the programs of the host that are gone.
func detachPrograms(n *attachment.Node, r *ledger.Record, home *netns.Netns, l *link.Link) (missing []bpf.Program, err error) {
	current, err := bpf.Programs(home, l)
	if err != nil {
		return nil, err
	}
	was := r.Loan.Snapshot.Programs
	foreign := slices.DeleteFunc(slices.Clone(current), func(p bpf.Program) bool { return slices.ContainsFunc(was, p.Same) })
	for _, p := range foreign {
		n.LogOf(r).Info("detaching a BPF program that the pod attached", "program", p.String())
	}
	missing = slices.DeleteFunc(slices.Clone(was), func(p bpf.Program) bool { return slices.ContainsFunc(current, p.Same) })
	return missing, bpf.Detach(home, l.Index, foreign)
}
