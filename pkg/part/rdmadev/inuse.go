package rdmadev

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// guardInUse waits up to useWait, because a program that only lists the devices (ibv_devinfo, a
// health check) opens all of them for a moment.
const (
	useWait  = time.Second
	usePause = 50 * time.Millisecond
)

// guardInUse returns an error if the device d, which is to move with the NIC, is in use on the host
// for longer than useWait. It returns nil if allow overrides that guardrail. A user for which isOwn
// returns true belongs to the NIC, so it does not count.
func guardInUse(ctx context.Context, n *attachment.Node, host *rdma.Core, d rdma.Device, nicName string, isOwn func(rdma.User) bool, allow []string) error {
	if slices.Contains(allow, netconf.AllowInUse) {
		return nil
	}
	var users []rdma.User
	var failed error
	waiting, cancel := context.WithTimeout(ctx, useWait)
	defer cancel()
	err := wait.Until(waiting, usePause, func() (done bool, err error) {
		users, failed = host.Users(d)
		users = slices.DeleteFunc(users, isOwn)
		return len(users) == 0, nil
	})
	if err != nil && ctx.Err() != nil {
		return err
	}
	if errors.Is(failed, rdma.ErrNotFound) {
		return failure.From(failed, failure.TryAgain, "the RDMA device %s disappeared while its users were listed", d.Name).
			Cure("try again, because another program moves or removes the device")
	}
	if failed != nil {
		n.Log.Warn("cannot list all users of the RDMA device", "device", d.Name, "err", failed)
	}
	names := make([]string, len(users))
	for i, u := range users {
		names[i] = u.String()
	}
	return nic.GuardInUse(d.Name, nicName, names, allow)
}
