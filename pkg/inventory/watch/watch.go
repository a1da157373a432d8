package watch

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/notify"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// The times of [NICs].
const (
	settle     = 100 * time.Millisecond // from a change to the call, because several changes come together
	rest       = time.Second            // the shortest time between two calls
	watchAgain = 30 * time.Second       // until missing directories are tried again
)

// NICs calls changed immediately, and then after each change of the host's links, of its RDMA
// devices, and of the ledgers in the state directories. Changes that come together cause only one
// call. NICs also calls changed every watchAgain, because a notice may be lost and a link in a pod
// changes without a notice. NICs returns when ctx ends. host and dirs must stay open until then;
// the whole process shares dirs.
func NICs(
	ctx context.Context, host *netns.Netns, dirs *notify.Dirs, stateDirs []string, reporter *component.Reporter, log *slog.Logger, changed func(),
) {
	ctx, cancel := context.WithCancel(ctx)
	var listening sync.WaitGroup
	defer listening.Wait()
	defer cancel()
	noticed := component.NewTrigger()
	records := dirs.Subscribe(noticed.Fire)
	defer records.Close()
	listening.Go(func() { notify.Netlink(ctx, host, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, log, noticed.Fire) })
	listening.Go(func() { notify.Netlink(ctx, host, unix.NETLINK_RDMA, rdma.NotifyGroup, log, noticed.Fire) })
	loop := component.Loop{
		Reporter: reporter, Trigger: noticed, Settle: settle, MinRest: rest,
		Do: func(context.Context) time.Time {
			for _, dir := range stateDirs {
				records.Watch(dir) // in case the ledger does not exist yet
				records.Watch(filepath.Join(dir, "attachments"))
			}
			changed()
			return time.Now().Add(watchAgain)
		},
	}
	loop.Run(ctx)
}
