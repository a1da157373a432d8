package inventory

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/notify"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// Times of Watch.
const (
	settle     = 100 * time.Millisecond // a change comes with others
	rest       = time.Second            // the least time between two calls
	watchAgain = 30 * time.Second       // a directory may not have existed
)

// Watch calls changed at once, and when the NICs of the node may have changed, until ctx
// ends: after changes of the links and RDMA devices of the host, or of the ledgers in the state
// directories. Changes that come together cause one call. A notice may be lost, and a link
// in a pod changes without one: the caller looks every so often as well. host must stay
// open until Watch returns.
func Watch(ctx context.Context, host *link.Netns, stateDirs []string, log *slog.Logger, changed func()) {
	noticed := make(chan struct{}, 1)
	nudge := func() {
		select {
		case noticed <- struct{}{}:
		default: // a call is due already
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	var listening sync.WaitGroup
	defer listening.Wait()
	defer cancel()
	records := notify.NewDirs(log)
	listening.Go(func() { records.Run(ctx, nudge) })
	listening.Go(func() { notify.Netlink(ctx, host, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, log, nudge) })
	listening.Go(func() { notify.Netlink(ctx, host, unix.NETLINK_RDMA, rdma.NotifyGroup, log, nudge) })
	watch := func() {
		for _, dir := range stateDirs {
			records.Watch(dir) // the ledger may not exist yet
			records.Watch(filepath.Join(dir, "attachments"))
		}
	}
	watch()
	changed()
	for ctx.Err() == nil {
		timer := time.NewTimer(watchAgain)
		select {
		case <-ctx.Done():
		case <-timer.C:
			watch()
		case <-noticed:
			_ = wait.For(ctx, settle)
			select {
			case <-noticed: // it came with the others
			default:
			}
			watch()
			changed()
			_ = wait.For(ctx, rest-settle)
		}
		timer.Stop()
	}
}
