package notify

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// again is the time after which a group is listened to again that could not be.
const again = 30 * time.Second

// Netlink calls changed at every message of a netlink group in a namespace until ctx
// ends. The kernel may not have the RDMA core now, and load it later.
func Netlink(ctx context.Context, ns *netns.Netns, family, group int, log *slog.Logger, changed func()) {
	for ctx.Err() == nil {
		err := ns.Listen(ctx, family, group, changed)
		switch {
		case err == nil:
		case errors.Is(err, unix.EPROTONOSUPPORT):
			log.Debug("kernel's RDMA core is not loaded", "err", err)
		default:
			log.Warn("cannot listen to netlink, so changes are seen late", "err", err)
		}
		_ = wait.For(ctx, again)
	}
}
