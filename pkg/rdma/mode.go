package rdma

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// Mode is the relation between RDMA devices and network namespaces. It applies to the whole
// machine.
type Mode string

const (
	// Shared means that every namespace sees and can open every device, and no device can be moved.
	// It is the kernel's default.
	Shared Mode = "shared"
	// Exclusive means that a device is in one namespace, and can be used only there.
	Exclusive Mode = "exclusive"
)

// ErrOtherNetns is wrapped by [Core.SetMode] if the mode cannot change because
// there are other network namespaces.
var ErrOtherNetns = errors.New("the kernel changes the RDMA mode only while no other network namespace exists")

// AtBoot returns the instruction for setting a mode at boot, which is a cure for an error.
func AtBoot(m Mode) string {
	return fmt.Sprintf("set %s mode at boot, by 'options ib_core netns_mode=%d' in a file in /etc/modprobe.d (also in the initramfs) or by the kernel argument %s, and reboot", m, m.Parameter(), Argument(m))
}

// Mode reads the mode (RDMA_NLDEV_CMD_SYS_GET).
func (c *Core) Mode() (Mode, error) {
	var m Mode
	err := c.inNetns(func() (err error) { m, err = c.mode(); return err })
	return m, err
}

func (c *Core) mode() (Mode, error) {
	a, err := c.ask(nl.RDMA_NLDEV_CMD_SYS_GET)
	if err == nil {
		var m Mode
		if m, err = parseMode(a); err == nil {
			return m, nil
		}
	}
	return "", failure.Wrap(err, failure.Kernel, "read the RDMA mode")
}

func parseMode(a nlattr.Attrs) (Mode, error) {
	v, _ := a.Get(nl.RDMA_NLDEV_SYS_ATTR_NETNS_MODE)
	switch {
	case len(v) != 1:
		return "", nlattr.ErrMalformed
	case v[0] == 0:
		return Exclusive, nil
	case v[0] == 1:
		return Shared, nil
	}
	return "", fmt.Errorf("unknown mode %d from the kernel", v[0])
}

// SetMode changes the mode of the running kernel (RDMA_NLDEV_CMD_SYS_SET). The error wraps
// [ErrOtherNetns] while any other network namespace exists, with or without RDMA devices
// (rdma_compatdev_set). A deleted namespace counts until the kernel has destroyed it, some hundred
// milliseconds later. Setting the current mode is not an error.
func (c *Core) SetMode(m Mode) error {
	var value byte
	switch m {
	case Exclusive:
	case Shared:
		value = 1
	default:
		return failure.New(failure.InvalidConfig, "unknown RDMA mode %q", m).Cure(`use "shared" or "exclusive"`)
	}
	err := c.inNetns(func() error {
		_, err := c.request(nl.RDMA_NLDEV_CMD_SYS_SET, 0, nl.NewRtAttr(nl.RDMA_NLDEV_SYS_ATTR_NETNS_MODE, []byte{value}))
		return err
	})
	return setModeError(err, m)
}

func setModeError(err error, m Mode) error {
	cure := ""
	switch {
	case errors.Is(err, unix.EBUSY):
		err, cure = fmt.Errorf("%w: %w", ErrOtherNetns, err), AtBoot(m)
	case errors.Is(err, unix.EPERM):
		cure = needsAdmin
	}
	return failure.From(err, failure.Kernel, "set the RDMA mode to %s", m).Cure("%s", cure)
}

const needsAdmin = "run the program with CAP_NET_ADMIN over the host's network namespace and over the target's"

// Parameter returns the value of ib_core's netns_mode for m.
func (m Mode) Parameter() int {
	if m == Shared {
		return 1
	}
	return 0
}

// Argument returns the kernel argument that sets the mode at boot, as the file of package bootmode
// does. The argument takes precedence, because modprobe(8) reads the command line after its files.
func Argument(m Mode) string { return fmt.Sprintf("ib_core.netns_mode=%d", m.Parameter()) }
