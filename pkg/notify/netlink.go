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

// again is the time after which Netlink tries again to listen to a group, if it could not listen
// before.
const again = 30 * time.Second

// Netlink calls changed at every message of a netlink group in a namespace, until ctx ends. If it
// cannot listen, it tries again later: the kernel may load the RDMA core later.
func Netlink(ctx context.Context, ns *netns.Netns, family, group int, log *slog.Logger, changed func()) {
	for ctx.Err() == nil {
		err := ns.Listen(ctx, family, group, changed)
		switch {
		case err == nil:
		case errors.Is(err, unix.EPROTONOSUPPORT):
			log.Debug("the kernel's RDMA core is not loaded", "err", err)
		default:
			log.Warn("cannot listen to netlink, so changes are noticed late", "err", err)
		}
		_ = wait.For(ctx, again)
	}
}
