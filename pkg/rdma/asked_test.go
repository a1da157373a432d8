package rdma

import (
	"context"
	"errors"
	"fmt"

	"github.com/rail-cni/rail-cni/pkg/failure"
)

// This file has queries that only tests need.

// awaitDevice waits until the namespace has a device that want accepts, and returns that device.
// The device may return because its namespace has ended, or may be moving. what names the device in
// the error, which wraps [ErrNotFound] if ctx ended first.
func (c *Core) awaitDevice(ctx context.Context, what string, want func(Device) bool) (Device, error) {
	var found Device
	err := await(ctx, func() (bool, error) {
		var err error
		found, err = c.first(what, want)
		if errors.Is(err, ErrNotFound) {
			return false, nil
		}
		return err == nil, err
	})
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return Device{}, failure.From(fmt.Errorf("%w: %w", ErrNotFound, err), failure.TryAgain, "wait for RDMA device %s in netns %s", what, c.ns.Path).
			Cure("something may still hold the network namespace that it is in: a process, or an open file")
	}
	return found, err
}

// umad returns the management device of a port of d (RDMA_NLDEV_CMD_GET_CHARDEV,
// "umad").
func (c *Core) umad(d Device, port uint32) (CharDev, error) {
	return c.charDev(d, "umad", portAttr(port))
}

// uverbsOwners returns, for each uverbs number in use on this machine, the name of its device.
// Unlike everything else here, it covers all namespaces, because class/infiniband_verbs is the same
// in all of them.
func (c *Core) uverbsOwners() (map[int]string, error) {
	owners := map[int]string{}
	err := c.inNetns(func() error {
		names, err := c.list("class/infiniband_verbs")
		if err != nil {
			return err
		}
		for _, name := range names {
			n := CharDev{Name: name}.number()
			if n < 0 {
				continue // the file abi_version
			}
			owner, err := c.uverbsOwner(n)
			if err != nil {
				return err
			}
			if owner != "" {
				owners[n] = owner
			}
		}
		return nil
	})
	return owners, failure.Wrap(err, failure.IO, "list the uverbs devices")
}
