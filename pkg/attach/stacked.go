package attach

import (
	"time"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// stackedWait bounds the time for deleting what a pod put on its NIC. A DEL that
// comes again goes on.
const stackedWait = 5 * time.Second

// deleteStacked deletes what the pod put on its NIC in its own netns, for example
// a macvlan. Such a link survives the NIC's move (macvlan_device_event), would hear
// for the next pod that gets the NIC, and a BPF program on it keeps those of the
// NIC from being detached. index is that of the NIC, which is away if it has left
// the pod netns. What lies in a netns below the pod's is not found: it ends with
// the pod's processes.
func (n *Node) deleteStacked(r *ledger.Record, pod *link.Netns, index int, away bool) error {
	links, err := pod.Stacked(index, away)
	if err != nil || len(links) == 0 {
		return err
	}
	n.log(r).Info("deleting links that the pod put on the NIC", "links", len(links), "first", links[0].Name)
	left, err := pod.DeleteAll(links, stackedWait)
	if left == 0 {
		return nil
	}
	return cnierr.Wrap(err, cnierr.NotHome, "a DEL, a sweep or `railctl gc` tries again",
		"%d links that the pod put on %s are still there, the last is %s", left, r.Loan.Snapshot.Name, links[len(links)-1].Name)
}
