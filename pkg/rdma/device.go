package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

// NodeType is the kind of a device's node (enum rdma_node_type).
type NodeType uint8

// Node types of devices that an Ethernet or InfiniBand NIC can be.
const (
	NodeCA   NodeType = 1 // InfiniBand and RoCE
	NodeRNIC NodeType = 4 // iWARP
)

func (t NodeType) String() string {
	names := []string{"", "CA", "switch", "router", "RNIC", "usNIC", "usNIC UDP", "unspecified"}
	if int(t) < len(names) && t > 0 {
		return names[t]
	}
	return fmt.Sprintf("node type %d", uint8(t))
}

// Device is an RDMA device at the time of the read. ParentDev and NodeGUID together identify the
// device permanently. Index survives moves, and identifies the device until its driver is reloaded.
// A process in the device's namespace can change Name.
type Device struct {
	Index        uint32
	Name         string
	NodeGUID     ibaddr.GUID
	SysImageGUID ibaddr.GUID
	NodeType     NodeType
	Protocol     string // "roce", "ib", "iw", "opa"; empty if the kernel does not report it
	FWVersion    string
	Ports        uint32 // number of ports, which are numbered from 1
	ParentDev    string // name of the parent device: a PCI address, "mlx5_core.sf.4"; empty if there is none
	ParentBus    string // the parent's bus: "pci", "auxiliary"
	Moderation   string // adaptive moderation of completions: "on" or "off"; empty if the kernel does not report it
}

// Is reports whether d and other are the same device of this machine, even if namespace and name
// differ.
func (d Device) Is(other Device) bool {
	return d.Index == other.Index && d.NodeGUID == other.NodeGUID
}

// IsInfiniBand reports whether the ports of the device belong to an InfiniBand or Omni-Path fabric.
func (d Device) IsInfiniBand() bool { return d.Protocol == "ib" || d.Protocol == "opa" }

// parseDevice reads the answer to RDMA_NLDEV_CMD_GET (fill_dev_info).
func parseDevice(a nlattr.Attrs) (Device, error) {
	d := Device{
		Index:        uint32(number(a, nl.RDMA_NLDEV_ATTR_DEV_INDEX)),
		Name:         a.Text(nl.RDMA_NLDEV_ATTR_DEV_NAME),
		NodeGUID:     ibaddr.GUID(number(a, nl.RDMA_NLDEV_ATTR_NODE_GUID)),
		SysImageGUID: ibaddr.GUID(number(a, nl.RDMA_NLDEV_ATTR_SYS_IMAGE_GUID)),
		NodeType:     NodeType(number(a, nl.RDMA_NLDEV_ATTR_DEV_NODE_TYPE)),
		Protocol:     a.Text(attrProtocol),
		FWVersion:    a.Text(nl.RDMA_NLDEV_ATTR_FW_VERSION),
		Ports:        uint32(number(a, nl.RDMA_NLDEV_ATTR_PORT_INDEX)),
	}
	if v, _ := a.Get(attrModeration); len(v) == 1 {
		d.Moderation = onOff[min(v[0], 1)]
	}
	if !has(a, nl.RDMA_NLDEV_ATTR_DEV_INDEX) || d.Name == "" {
		return Device{}, nlattr.ErrMalformed
	}
	return d, nil
}

// device reads one device, without the properties that only sysfs has.
func (c *Core) device(index uint32) (Device, error) {
	a, err := c.ask(nl.RDMA_NLDEV_CMD_GET, deviceAttr(index))
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV) {
		return Device{}, hasLeft(fmt.Sprintf("with index %d", index), c.ns.Path, err)
	}
	var d Device
	if err == nil {
		d, err = parseDevice(a)
	}
	return d, failure.Wrap(err, failure.Kernel, "read RDMA device %d in netns %s", index, c.ns.Path)
}

// parentTries bounds how often a device is read again if netlink has the device and sysfs does not:
// the device was moved or renamed between the two reads.
const parentTries = 5

// whole is like device, but adds the properties from sysfs.
func (c *Core) whole(index uint32) (Device, error) {
	var last error
	for range parentTries {
		d, err := c.device(index)
		if err != nil {
			return Device{}, err
		}
		d.ParentDev, d.ParentBus, err = c.parentOf(d)
		if err == nil {
			return d, nil
		}
		last = err
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return Device{}, failure.Wrap(last, failure.IO, "find the parent of RDMA device %d in netns %s", index, c.ns.Path)
}

func (c *Core) dump() ([]Device, error) {
	messages, err := c.request(nl.RDMA_NLDEV_CMD_GET, unix.NLM_F_DUMP)
	if err != nil {
		return nil, failure.Wrap(err, failure.Kernel, "list RDMA devices in netns %s", c.ns.Path)
	}
	var found []Device
	for _, m := range messages {
		a, err := nlattr.Parse(m)
		if err != nil {
			return nil, err
		}
		d, err := parseDevice(a)
		if err != nil {
			return nil, err
		}
		found = append(found, d)
	}
	return found, nil
}

// Devices lists the devices of the namespace, by index. It finds every device that stays in the
// namespace, even if others are being moved. A device that is itself being moved may be missing.
func (c *Core) Devices() ([]Device, error) {
	var all []Device
	err := c.inNetns(func() (err error) { all, err = c.devices(); return err })
	return all, err
}

// listed repeats the dump (RDMA_NLDEV_CMD_GET) until it has seen every device that is in sysfs. It
// leaves out the properties that only sysfs has. One dump is not enough: the kernel sends one
// device per message, and continues by position (ib_enum_all_devs). So if a device leaves the
// namespace during the dump, the kernel skips a later device without an error.
func (c *Core) listed() (map[uint32]Device, error) {
	seen := map[uint32]Device{}
	for range dumpTries {
		found, err := c.dump()
		if err != nil {
			return nil, err
		}
		for _, d := range found {
			seen[d.Index] = d
		}
		names, err := c.names()
		if errors.Is(err, unix.EIO) {
			break // the kernel cannot list a directory if a name in it has a slash (verify_dirent_name)
		}
		if err != nil {
			return nil, err
		}
		for _, d := range seen {
			delete(names, d.Name)
		}
		if len(names) == 0 {
			break
		}
	}
	return seen, nil
}

func (c *Core) devices() ([]Device, error) {
	seen, err := c.listed()
	if err != nil {
		return nil, err
	}
	var all []Device
	for _, index := range slices.Sorted(maps.Keys(seen)) {
		d := seen[index]
		var err error
		d.ParentDev, d.ParentBus, err = c.parentOf(d)
		if errors.Is(err, fs.ErrNotExist) {
			d, err = c.whole(index)
		}
		if errors.Is(err, ErrNotFound) {
			continue // the device has left since the dump
		}
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// ByIndex returns the device with this index (RDMA_NLDEV_CMD_GET). The error wraps [ErrNotFound] if
// the device is not in the namespace.
func (c *Core) ByIndex(index uint32) (Device, error) {
	var d Device
	err := c.inNetns(func() (err error) { d, err = c.whole(index); return err })
	return d, err
}

// ByName returns the device with this name. The error wraps [ErrNotFound] if there is none. The
// kernel cannot look up a device by name, so ByName lists all devices.
func (c *Core) ByName(name string) (Device, error) {
	return c.first(fmt.Sprintf("%q", name), func(d Device) bool { return d.Name == name })
}

// ByParent returns the devices of the host device named parent (a PCI address or an auxiliary
// device), by index. Most parents have one device. If there is none, that is not an error. ByParent
// returns only devices in this namespace: the host's sysfs below the parent is also filtered by
// namespace. So an empty list does not mean that the parent has no device.
func (c *Core) ByParent(parent string) ([]Device, error) {
	var found []Device
	known := false
	err := c.inNetns(func() (err error) { found, known, err = c.below(parent); return err })
	if known || err != nil {
		return found, err
	}
	all, err := c.Devices()
	if err != nil || parent == "" {
		return nil, err
	}
	return slices.DeleteFunc(all, func(d Device) bool { return d.ParentDev != parent }), nil
}

// below is like ByParent, but does not read the parents of all other devices. A node with virtual
// functions may have hundreds of them. known is false if sysfs has no such parent, or has other
// devices there than netlink.
func (c *Core) below(parent string) (found []Device, known bool, err error) {
	bus, names, err := c.children(parent)
	if errors.Is(err, unix.EIO) {
		return nil, false, nil // a name with a slash, see devices
	}
	if bus == "" || err != nil {
		return nil, false, err
	}
	if len(names) == 0 {
		return nil, true, nil
	}
	all, err := c.dump()
	if err != nil {
		return nil, false, err
	}
	for _, d := range all {
		if slices.Contains(names, d.Name) {
			d.ParentDev, d.ParentBus = parent, bus
			found = append(found, d)
		}
	}
	slices.SortFunc(found, func(a, b Device) int { return cmp.Compare(a.Index, b.Index) })
	return found, len(found) == len(names), nil
}

// ByIdentity returns the device with this GUID below this parent, whatever its name and index are.
// The error wraps [ErrNotFound] if there is none. ByIdentity does not read the parents of other
// devices from sysfs. Only if a list lacks the device, it lists again like [Core.Devices].
func (c *Core) ByIdentity(guid ibaddr.GUID, parent string) (Device, error) {
	is := func(d Device) bool { return d.NodeGUID == guid && d.ParentDev == parent }
	var found *Device
	err := c.inNetns(func() error {
		seen, err := c.dump()
		for _, d := range seen {
			if err != nil || d.NodeGUID != guid {
				continue
			}
			if d.ParentDev, d.ParentBus, err = c.parentOf(d); err == nil && is(d) {
				found = &d
			}
		}
		return err
	})
	if err == nil && found != nil {
		return *found, nil
	}
	return c.first(parent, is)
}

func (c *Core) first(what string, want func(Device) bool) (Device, error) {
	all, err := c.Devices()
	if err != nil {
		return Device{}, err
	}
	if i := slices.IndexFunc(all, want); i >= 0 {
		return all[i], nil
	}
	return Device{}, fmt.Errorf("%w %s in netns %s", ErrNotFound, what, c.ns.Path)
}

// Rename renames a device (RDMA_NLDEV_CMD_SET with DEV_NAME, ib_device_rename). The error wraps
// EEXIST if another device has the name. That device may be in any namespace. In kernels in which
// each namespace has its own names, it is in this namespace.
func (c *Core) Rename(d Device, name string) error {
	err := c.inNetns(func() error {
		_, err := c.request(nl.RDMA_NLDEV_CMD_SET, 0, deviceAttr(d.Index), textAttr(nl.RDMA_NLDEV_ATTR_DEV_NAME, name))
		return c.ifGone(err, d)
	})
	return failure.From(err, kindOf(err), "rename RDMA device %s to %q in netns %s", d.Name, name, c.ns.Path).Cure("%s", cureOf(err))
}

func kindOf(err error) failure.Kind {
	if errors.Is(err, unix.EEXIST) {
		return failure.NameTaken
	}
	return failure.Kernel
}

func cureOf(err error) string {
	switch {
	case errors.Is(err, unix.EEXIST):
		return "find and rename the device that has this name, perhaps in a pod"
	case errors.Is(err, unix.EPERM):
		return needsAdmin
	}
	return ""
}
