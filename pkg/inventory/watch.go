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
	settle    = 100 * time.Millisecond // a change comes with others
	rest      = time.Second            // the least time between two looks
	restRatio = 20                     // the least time, as a multiple of how long a look took
	lentPause = 10 * time.Second       // a link in a pod changes without a notice
	idlePause = 30 * time.Second       // a notice may be lost
)

// Watch calls look at once, and when the NICs of the node may have changed, until ctx
// ends: after changes of the links and RDMA devices of the host, or of the ledgers in the
// state directories, and every 10 s while something is lent, else every 30 s. look, which
// usually calls [NICs], reports whether something is lent. Watch does not call it
// concurrently; changes that come together, or during a call, make it call look once.
// host must stay open until Watch returns.
func Watch(ctx context.Context, host *link.Netns, stateDirs []string, log *slog.Logger, look func() (lent bool)) {
	changed := make(chan struct{}, 1)
	nudge := func() {
		select {
		case changed <- struct{}{}:
		default: // a look is due already
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	var listening sync.WaitGroup
	defer listening.Wait()
	defer cancel()
	records := notify.NewDirs(log)
	watch := func() {
		for _, dir := range stateDirs {
			records.Watch(dir) // the ledger may not exist yet
			records.Watch(filepath.Join(dir, "attachments"))
		}
	}
	watch()
	listening.Go(func() { records.Run(ctx, nudge) })
	listening.Go(func() { notify.Netlink(ctx, host, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, log, nudge) })
	listening.Go(func() { notify.Netlink(ctx, host, unix.NETLINK_RDMA, rdma.NotifyGroup, log, nudge) })
	for ctx.Err() == nil {
		began, pause := time.Now(), idlePause
		if look() {
			pause = lentPause
		}
		took := time.Since(began)
		watch()
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-changed:
			_ = wait.For(ctx, max(settle, rest-time.Since(began), restRatio*took-time.Since(began)))
			select {
			case <-changed: // it came with the others
			default:
			}
		}
		timer.Stop()
	}
}
