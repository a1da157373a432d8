package bootmode

import (
	"errors"

	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// Change is the outcome of [Boot.Change].
type Change struct {
	AtBoot    bool  // the node boots with the mode
	Written   bool  // [File] sets the mode; otherwise the kernel's command line sets it
	AtBootErr error // why the node does not boot with the mode

	Now       bool  // the running kernel has the mode
	NotLoaded bool  // the RDMA core is not loaded and gets the mode when it is loaded
	NowErr    error // why the running kernel does not have the mode
}

// Change sets the mode at boot if atBoot is true, and the mode of the running kernel if now is
// true. If one of the two fails, the other is still done. Change needs root, and the calling thread
// must be in the host netns.
func (b Boot) Change(mode rdma.Mode, atBoot, now bool) Change {
	var c Change
	if atBoot {
		c.Written, c.AtBootErr = b.set(mode)
		c.AtBoot = c.AtBootErr == nil
	}
	if now {
		err := onHost(func(core *rdma.Core) error { return core.SetMode(mode) })
		c.Now = err == nil
		c.NotLoaded = c.AtBoot && errors.Is(err, rdma.ErrNoRDMA)
		if !c.NotLoaded {
			c.NowErr = err
		}
	}
	return c
}

// RunningMode returns the mode of the running kernel. The calling thread must be in the
// host netns.
func RunningMode() (mode rdma.Mode, err error) {
	err = onHost(func(core *rdma.Core) error {
		mode, err = core.Mode()
		return err
	})
	return mode, err
}

// onHost calls f with the RDMA core of the calling thread's namespace.
func onHost(f func(*rdma.Core) error) error {
	host, err := netns.Current()
	if err != nil {
		return err
	}
	defer host.Close()
	core, err := rdma.Open(host)
	if err != nil {
		return err
	}
	defer core.Close()
	return f(core)
}
