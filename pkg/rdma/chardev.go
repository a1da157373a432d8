package rdma

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// CharDev is a char device through which a process uses an RDMA device.
type CharDev struct {
	Name  string // "uverbs3": the node in /dev/infiniband
	Major uint32
	Minor uint32
	ABI   uint64
}

// Path returns the path that udev gives the device.
func (d CharDev) Path() string { return filepath.Join("/dev/infiniband", d.Name) }

// number returns the N of uverbsN or umadN, or -1 if the name has no number.
func (d CharDev) number() int {
	n, err := strconv.Atoi(strings.TrimLeft(d.Name, "abcdefghijklmnopqrstuvwxyz_"))
	if err != nil {
		return -1
	}
	return n
}

// ErrNoCharDev is wrapped if a device does not have the char device now: the RDMA device is being
// moved, or the module that makes the char device (ib_uverbs, ib_umad) is not loaded.
var ErrNoCharDev = errors.New("no such char device")

// Uverbs returns the uverbs device of d (RDMA_NLDEV_CMD_GET_CHARDEV, "uverbs").
func (c *Core) Uverbs(d Device) (CharDev, error) { return c.charDev(d, "uverbs") }

func (c *Core) charDev(d Device, kind string, more ...*nl.RtAttr) (CharDev, error) {
	var dev CharDev
	err := c.inNetns(func() (err error) { dev, err = c.chardev(d, kind, more...); return err })
	return dev, err
}

func (c *Core) chardev(d Device, kind string, more ...*nl.RtAttr) (CharDev, error) {
	a, err := c.ask(cmdGetCharDev, append([]*nl.RtAttr{deviceAttr(d.Index), textAttr(attrCharType, kind)}, more...)...)
	var dev CharDev
	if err == nil {
		dev, err = parseCharDev(a)
	}
	switch {
	case err == nil:
		return dev, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENODEV):
		return CharDev{}, hasLeft(d.Name, c.ns.Path, err)
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOENT):
		err = fmt.Errorf("%w: %w", ErrNoCharDev, err)
	}
	return CharDev{}, failure.From(err, failure.Kernel, "find the %s device of %s in netns %s", kind, d.Name, c.ns.Path).
		Cure("load the module ib_%s", kind)
}

// hasVerbs reports whether ib_uverbs is loaded: if it is, the class directory has a file of the
// class itself.
func (c *Core) hasVerbs() (bool, error) {
	var names []string
	err := c.inNetns(func() (err error) { names, err = c.list("class/infiniband_verbs"); return err })
	return len(names) > 0, err
}

func parseCharDev(a nlattr.Attrs) (CharDev, error) {
	device := number(a, attrCharDev)
	dev := CharDev{
		Name:  a.Text(attrCharName),
		Major: unix.Major(device),
		Minor: unix.Minor(device),
		ABI:   number(a, attrCharABI),
	}
	if v, _ := a.Get(attrCharDev); dev.Name == "" || len(v) != 8 {
		return CharDev{}, nlattr.ErrMalformed
	}
	return dev, nil
}

// ownerOfUverbs returns the name of the RDMA device, in any namespace, that has uverbs<number> now.
// It returns "" if no device has it. In kernels in which each namespace has its own names, the
// result is the name in the namespace of the device. The name tells a person which device it is,
// and must not be used to look up the device.
func (c *Core) ownerOfUverbs(number int) (string, error) {
	var owner string
	err := c.inNetns(func() (err error) { owner, err = c.uverbsOwner(number); return err })
	return owner, failure.Wrap(err, failure.IO, "find the device of uverbs%d", number)
}

func (c *Core) uverbsOwner(number int) (string, error) {
	owner, err := c.readSys(filepath.Join("class/infiniband_verbs", "uverbs"+strconv.Itoa(number), "ibdev"))
	// ENODEV means that the device is being destroyed.
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return "", nil
	}
	return owner, err
}
