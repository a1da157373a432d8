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

// stackedWait bounds the time for deleting what a pod put on its interface.
const stackedWait = 5 * time.Second

// above returns the ifindexes of the links in the pod netns that are stacked on
// a NIC of the host, never nil. The pod did not make them, and they stay.
func above(tx *attachment.Tx, index int) ([]int, error) {
	links, err := link.Stacked(tx.Pod, index, tx.Node.Netns)
	found := []int{}
	for _, l := range links {
		found = append(found, l.Index)
	}
	return found, err
}

// deleteStacked deletes the links that the pod put on its NIC in its own netns, for
// example a macvlan. It is called when the NIC is in the netns at, where the pod can
// add no more. Such a link survives the NIC's move (macvlan_device_event) and would
// receive the traffic of the next pod that gets the NIC. While it has a BPF program,
// those of the NIC cannot be detached. Links in a netns that the pod made are not found: they end
// with the pod's processes.
//
// A link that cannot be deleted is logged. The NIC is returned anyway.
// deleteStacked reports whether there was a link to delete.
func deleteStacked(n *attachment.Node, r *ledger.Record, pod, at *netns.Netns, index int) bool {
	switch {
	case r.Loan.PodIndex == 0:
		return false // the pod never had the NIC, or upstream's plugin lent it
	case r.Netns.Cookie == 0 && pod.Path != r.Netns.Path:
		return false // another pod's: its netns has the inode number of ours
	}
	links, err := link.Stacked(pod, index, at)
	links = slices.DeleteFunc(links, func(l *link.Link) bool { return slices.Contains(r.Loan.Above, l.Index) })
	if len(links) > 0 {
		others := n.OthersIn(pod, r)
		links = slices.DeleteFunc(links, func(l *link.Link) bool {
			return slices.ContainsFunc(others, func(o *ledger.Record) bool { return macvlan.Is(l, o) || o.Loan != nil && o.Loan.PodIndex == l.Index })
		})
	}
	return deleteLinks(n, r, pod, links, err)
}

// deleteStray deletes the IPoIB children of the NIC, which is in the netns at, that the kernel
// brought there from a netns of the pod that has ended. They would keep the NIC from being lent
// again, and send through it as soon as it is up. If a record cannot be read none is deleted: it
// may name children of the host. deleteStray reports whether there was one.
func deleteStray(n *attachment.Node, r *ledger.Record, at *netns.Netns, index int) bool {
	if r.Loan.Snapshot.IPoIB == nil {
		return false
	}
	records, errs := nicsLent(n)
	if len(errs) > 0 {
		return deleteLinks(n, r, at, nil, errors.Join(errs...))
	}
	var hosts []*nicstate.Snapshot
	for _, other := range records {
		hosts = append(hosts, other.Loan.Snapshot)
	}
	links, err := nicstate.StrayChildren(at, index, r.Loan.Snapshot, hosts)
	return deleteLinks(n, r, at, links, err)
}

// deleteLinks deletes links that a pod put on its NIC, and reports whether there was one. err is
// the error of listing them.
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
