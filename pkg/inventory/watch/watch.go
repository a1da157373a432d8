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
	settle     = 100 * time.Millisecond // a change comes with others
	rest       = time.Second            // the least time between two calls
	watchAgain = 30 * time.Second       // a directory may not have existed
)

// NICs calls changed at once, after changes of the host's links and RDMA devices and of the ledgers
// in the state directories, and every watchAgain, until ctx ends. Changes that come together cause
// one call. It also calls at intervals because a notice may be lost, and a link in a pod changes
// without one. host must stay open until NICs returns, and dirs, which is the process's.
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
				records.Watch(dir) // the ledger may not exist yet
				records.Watch(filepath.Join(dir, "attachments"))
			}
			changed()
			return time.Now().Add(watchAgain)
		},
	}
	loop.Run(ctx)
}
