package netdev

import (
	"errors"
	"slices"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nicstate"
	"github.com/rail-cni/rail-cni/pkg/part/macvlan"
)

// fewLinks is the largest number of links that are deleted one by one.
const fewLinks = 4

// stackedWait bounds the time for deleting the links that a pod put on its interface.
const stackedWait = 5 * time.Second

// above returns the ifindexes of the links in the pod netns that are stacked on a NIC of the host.
// The pod did not make these links, so they stay when the NIC returns. The result is never nil.
func above(tx *attachment.Tx, index int) ([]int, error) {
	links, err := link.Stacked(tx.Pod, index, tx.Node.Netns)
	found := []int{}
	for _, l := range links {
		found = append(found, l.Index)
	}
	return found, err
}

// deleteStacked deletes the links that the pod put on its NIC in its own netns, for example a
// macvlan, and reports whether there was a link to delete. It is called when the NIC is in the
// netns ns, where the pod cannot add more links.
//
// Such a link survives the NIC's move (macvlan_device_event) and would receive the traffic of the
// next pod that gets the NIC. As long as the link has a BPF program, the programs of the NIC cannot
// be detached. Links in a netns that the pod made are not found, but they end with the pod's
// processes.
//
// deleteStacked logs a link that cannot be deleted. The NIC is returned anyway.
func deleteStacked(n *attachment.Node, r *ledger.Record, pod, ns *netns.Netns, index int) bool {
	switch {
	case r.Loan.PodIndex == 0:
		return false // the pod never had the NIC, or upstream's plugin lent the NIC
	case r.Netns.Cookie == 0 && pod.Path != r.Netns.Path:
		return false // this is the netns of another pod, with the same inode number
	}
	links, err := link.Stacked(pod, index, ns)
	links = slices.DeleteFunc(links, func(l *link.Link) bool { return slices.Contains(r.Loan.Above, l.Index) })
	if len(links) > 0 {
		others := n.OthersIn(pod, r)
		links = slices.DeleteFunc(links, func(l *link.Link) bool {
			return slices.ContainsFunc(others, func(o *ledger.Record) bool { return macvlan.Is(l, o) || o.Loan != nil && o.Loan.PodIndex == l.Index })
		})
	}
	return deleteLinks(n, r, pod, links, err)
}

// deleteStray deletes stray IPoIB children of the NIC in the netns ns, and reports whether there
// were any. A stray child was in a netns of the pod, and the kernel moved it to ns when that netns
// ended. Such a child would prevent the NIC from being lent again, and would send through the NIC
// as soon as the NIC is up. If a record cannot be read, deleteStray deletes nothing, because that
// record may name children that belong to the host.
func deleteStray(n *attachment.Node, r *ledger.Record, ns *netns.Netns, index int) bool {
	if r.Loan.Snapshot.IPoIB == nil {
		return false
	}
	records, errs := nicsLent(n)
	if len(errs) > 0 {
		return deleteLinks(n, r, ns, nil, errors.Join(errs...))
	}
	var hosts []*nicstate.Snapshot
	for _, other := range records {
		hosts = append(hosts, other.Loan.Snapshot)
	}
	links, err := nicstate.StrayChildren(ns, index, r.Loan.Snapshot, hosts)
	return deleteLinks(n, r, ns, links, err)
}

// deleteLinks deletes links that a pod put on its NIC, and reports whether there were any. err is
// the error that occurred when the links were listed.
func deleteLinks(n *attachment.Node, r *ledger.Record, in *netns.Netns, links []*link.Link, err error) bool {
	found := len(links) > 0
	if found {
		n.LogOf(r).Info("deleting links that the pod put on the NIC", "links", len(links), "first", links[0].Name)
	}
	if len(links) > fewLinks && err == nil {
		links, err = link.DeleteTogether(in, links, stackedWait)
	}
	for deadline := time.Now().Add(stackedWait); len(links) > 0 && err == nil; links = links[1:] {
		if err = link.Delete(in, links[0].Index); time.Now().After(deadline) {
			break
		}
	}
	if len(links) > 0 || err != nil {
		n.LogOf(r).Warn("cannot delete all links that the pod put on the NIC", "links", len(links), "err", err)
	}
	return found
}
