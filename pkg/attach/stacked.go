package attach

import (
	"errors"
	"fmt"
	"time"

	"github.com/rail-cni/rail-cni/pkg/cnierr"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// stackedWait bounds the time for deleting one by one the links that a pod put on
// its NIC. A later DEL continues.
const stackedWait = 5 * time.Second

// deleteStacked deletes the links that the pod put on its NIC in its own netns, for
// example a macvlan. Such a link survives the NIC's move (macvlan_device_event) and
// would receive the traffic of the next pod that gets the NIC. While it has a BPF
// program, those of the NIC cannot be detached. index is the NIC's; away is set if
// the NIC has left the pod netns. Links in a netns that the pod made are not found:
// they end with the pod's processes.
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
