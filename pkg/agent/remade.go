package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/part/rdmadev"
	"github.com/rail-cni/rail-cni/pkg/statefile"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// remadeRest is the time from a change of RDMA devices to the look for those that were made
// anew. A pod's end changes many, and the return of its NICs comes first.
const remadeRest = time.Second

// follow moves RDMA devices that their drivers make anew into their pods again, until
// ctx ends. It looks when the RDMA core reports a change (Linux 6.12), and every so often.
func (k *keeper) follow(ctx context.Context) {
	told := map[ledger.Key]string{} // what was reported last of the attachments that lack a device
	for full := true; ctx.Err() == nil; {
		again := k.lookForRemade(ctx, full, told)
		k.mu.Lock()
		k.lacking = len(told)
		k.mu.Unlock()
		timer := time.NewTimer(again)
		select {
		case <-ctx.Done():
		case <-k.rdmaChanged:
			full = false
			_ = wait.For(ctx, remadeRest)
		case <-timer.C:
			full = true
		}
		timer.Stop()
	}
}

// lookForRemade looks at the pods whose device is on the host or, in a full look, at all
// that have one. It returns the time to the next look.
func (k *keeper) lookForRemade(ctx context.Context, full bool, told map[ledger.Key]string) (again time.Duration) {
	again = slow
	records, _ := k.node.Ledger.List() // the keeper's look reports unreadable ones
	onHost, err := rdmadev.OnHost(k.node)
	if err != nil {
		return again // no RDMA core is loaded
	}
	found := map[ledger.Key]bool{}
	for _, r := range records {
		found[r.Key] = true
		if !r.HostNetns.Equal(k.node.Netns.ID) || !full && !onHost(r) {
			continue
		}
		missing, err := rdmadev.Missing(k.node, r)
		if err != nil {
			continue // CHECK and the metrics report what cannot be read
		}
		if len(missing) == 0 {
			delete(told, r.Key)
			continue
		}
		err = rdmadev.MoveRemade(ctx, k.node, r)
		if errors.Is(err, statefile.ErrBusy) {
			again = retryLocked
			continue
		}
		k.tellRemade(r, missing, err, told)
	}
	maps.DeleteFunc(told, func(key ledger.Key, _ string) bool { return !found[key] })
	return again
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
		delete(told, r.Key)
		k.tell(k.log, Notice{
			"RDMADeviceRemade", "RDMA device was made anew by its driver",
			what + " was made anew by its driver, and is in the pod again: restart the pod, its processes have lost the device", true,
		}, attrs...)
	case told[r.Key] != essence(err):
		told[r.Key] = essence(err)
		k.tell(k.log, Notice{"RDMADeviceMissing", "RDMA device is not in its pod", fmt.Sprintf("%s is not in the pod: %v", what, err), true}, attrs...)
	}
}
