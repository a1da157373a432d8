package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/part/rdmadev"
	"github.com/rail-cni/rail-cni/pkg/statefile"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// remadeRest is the shortest time between two looks for RDMA devices that were made
// anew: the pods are entered for it.
const remadeRest = time.Second

// follow moves RDMA devices that their drivers make anew into their pods again, until
// ctx ends. It looks when the RDMA core reports a change (Linux 6.12), and every so often.
func (k *keeper) follow(ctx context.Context) {
	told := map[ledger.Key]string{} // what was reported last of the attachments that lack a device
	for ctx.Err() == nil {
		again := slow
		records, _ := k.node.Ledger.List() // the keeper's look reports unreadable ones
		lacking := map[ledger.Key]bool{}
		for _, r := range records {
			if r.RDMA == nil || !r.HostNetns.Equal(k.node.Netns.ID) {
				continue
			}
			missing, err := rdmadev.Missing(k.node, r)
			if err != nil || len(missing) == 0 {
				continue // CHECK and the metrics report what cannot be read
			}
			err = rdmadev.MoveRemade(ctx, k.node, r)
			if errors.Is(err, statefile.ErrBusy) {
				again = retryLocked
				continue
			}
			k.tellRemade(r, missing, err, told)
			lacking[r.Key] = err != nil
		}
		for key := range told {
			if !lacking[key] {
				delete(told, key)
			}
		}
		k.mu.Lock()
		k.lacking = 0
		for _, lacks := range lacking {
			if lacks {
				k.lacking++
			}
		}
		k.mu.Unlock()
		_ = wait.For(ctx, remadeRest)
		timer := time.NewTimer(again)
		select {
		case <-ctx.Done():
		case <-k.rdmaChanged:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// tellRemade reports that an attachment has its devices again, or once why it has not.
func (k *keeper) tellRemade(r *ledger.Record, missing []ledger.RDMADevice, err error, told map[ledger.Key]string) {
	names := make([]string, len(missing))
	for i, d := range missing {
		names[i] = d.Name
	}
	what := fmt.Sprintf("RDMA device %s of %s", strings.Join(names, ", "), r.Holder())
	attrs := []any{"containerID", r.ContainerID, "ifname", r.IfName, "nic", r.NICName()}
	switch {
	case err == nil:
		k.tell(k.log, Notice{
			"RDMADeviceRemade", "RDMA device was made anew by its driver",
			what + " was made anew by its driver, and is in the pod again: restart the pod, its processes have lost the device", true,
		}, attrs...)
	case told[r.Key] != essence(err):
		told[r.Key] = essence(err)
		k.tell(k.log, Notice{"RDMADeviceMissing", "RDMA device is not in its pod", fmt.Sprintf("%s is not in the pod: %v", what, err), true}, attrs...)
	}
}
