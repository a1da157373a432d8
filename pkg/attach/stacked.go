package attach

import (
	"errors"
	"fmt"
	"time"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// stackedWait bounds the time for deleting one by one what a pod put on its NIC. A
// DEL that comes again goes on.
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
	if len(links) > fewLinks {
		if links, err = pod.DeleteTogether(links); err != nil {
			return err
		}
	}
	var errs []error
	for deadline := time.Now().Add(stackedWait); len(links) > 0; links = links[1:] {
		if time.Now().After(deadline) {
			errs = append(errs, fmt.Errorf("%d more were not tried within %v", len(links), stackedWait))
			break
		}
		if err := pod.Delete(links[0].Index); err != nil {
			errs = append(errs, fmt.Errorf("delete %s: %w", links[0].Name, err))
		}
	}
	return cnierr.Wrap(errors.Join(errs...), cnierr.NotHome, "a DEL, a sweep or `railctl gc` tries again",
		"links that the pod put on %s are still there", r.Loan.Snapshot.Name)
}
