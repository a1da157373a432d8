package rdmadev

import (
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// check compares the attachment's RDMA with the record: the mode, whether the device is in its
// namespace, its port, its GIDs, and whether a process of the pod can open the device.
//
// A port without a cable may already have been without a cable at ADD, and it recovers by itself.
// So an inactive port is a mismatch only if RDMA is required or if the interface has a carrier. On
// a bond it is enough if one member is in order, because the kernel may use only that member.
func check(c *attachment.Checking, conf netconf.RDMA) error {
	r := c.Record
	if r == nil || r.RDMA == nil {
		return nil
	}
	core, err := rdma.Open(netnsOf(r.RDMA, c.Node, c.Pod))
	if err != nil {
		return failure.From(err, failure.Mismatch, "interface %s", r.IfName).Cure("load the driver again and recreate the pod")
	}
	defer core.Close()
	mode, err := core.Mode()
	if err != nil {
		return err
	}
	if string(mode) != r.RDMA.Mode {
		return attachment.Mismatch("RDMA was in %s mode when %s was attached, and is in %s mode now", r.RDMA.Mode, r.IfName, mode)
	}
	active := conf.RDMA == netconf.RDMARequired || c.Link != nil && c.Link.HasCarrier()
	together := legs(r.RDMA)
	var failed []error // one error for each member of a bond that cannot be used
	for _, d := range r.RDMA.Devices {
		err := checkDevice(core, r, d, c.Pod, active)
		switch {
		case err == nil:
		case together != nil:
			failed = append(failed, err)
		default:
			return err
		}
	}
	if len(failed) > 0 && len(failed) == len(r.RDMA.Devices) {
		return failed[0]
	}
	return nil
}

func checkDevice(core *rdma.Core, r *ledger.Record, d ledger.RDMADevice, pod *netns.Netns, active bool) error {
	device, err := findDevice(core, d)
	if err != nil {
		return err
	}
	if device == nil {
		return attachment.Mismatch("the RDMA device %s of %s is not in its netns", d.Name, r.IfName)
	}
	if d.Port != 0 && active {
		port, err := core.Port(*device, d.Port)
		if err != nil {
			return err
		}
		if port.State != rdma.PortActive {
			return failure.New(failure.Mismatch, "port %d of %s is %s (%s)", d.Port, d.Name, port.State, port.Phys).
				Cure("check the NIC's cable and the switch port")
		}
	}
	for _, g := range r.RDMA.GIDs {
		address, err := netip.ParseAddr(g.Address)
		if err != nil || g.Device != d.Name {
			continue
		}
		if _, err := core.FindGID(*device, g.Port, address, r.IfName); err != nil {
			return failure.From(err, failure.Mismatch, "RDMA device %s", d.Name).Cure("recreate the pod")
		}
	}
	uverbs, err := core.Uverbs(*device)
	if errors.Is(err, rdma.ErrNoCharDev) {
		return nil // ib_uverbs is not loaded, so verbs are not usable
	}
	if err != nil {
		return err
	}
	return pod.Do(func() error { return openable(uverbs.Path()) })
}

// openable returns an error if a process in the calling thread's namespace cannot open the char
// device. If the device file does not exist, openable returns nil, because udev makes the file, on
// the host.
func openable(path string) error {
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return attachment.Mismatch("the pod cannot open %s: %v", path, err)
	}
	return unix.Close(fd)
}
