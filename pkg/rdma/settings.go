package rdma

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// setting is one setting of a device, which is an option of rdma(8) or a file in sysfs. The device
// keeps the setting in every namespace.
type setting struct {
	name string
	read func(c *Core, d Device) (string, error)
	set  func(c *Core, d Device, value string) error
}

// settings returns the settings of the device: everything that RDMA_NLDEV_CMD_SET and STAT_SET can
// set except name and namespace, the writable files, and the settings of the connection manager.
func settings(d Device) []setting {
	all := []setting{
		{"adaptive-moderation", readModeration, setModeration},
		file("node_desc"),
		file("hw_counters/lifespan"),
	}
	for port := uint32(1); port <= min(d.Ports, maxPorts); port++ {
		all = append(all,
			ofPort(port, "auto counters", readAuto, setAuto),
			ofPort(port, "optional counters", readOptional, setOptional),
			file(fmt.Sprintf("ports/%d/hw_counters/lifespan", port)),
			cmSetting(port, CMTypeOfService), cmSetting(port, CMMode))
	}
	return all
}

// Settings returns the settings of the device by their names. It leaves out settings that cannot be
// read.
func (c *Core) Settings(d Device) map[string]string {
	found := map[string]string{}
	_ = c.inNetns(func() error {
		for _, s := range settings(d) {
			if value, err := s.read(c, d); err == nil && utf8.ValidString(value) {
				found[s.name] = value
			}
		}
		return nil
	})
	return found
}

// Restore sets the settings that differ from want, which is the result of an earlier call of
// Settings. It returns the settings that still differ.
//
// When the kernel returns a device from a dead pod, the device is in the host netns some time
// before the connection manager serves it (enable_device_and_get). Until then the error is ENODEV.
// Restore waits until the connection manager serves the device, or ctx ends.
func (c *Core) Restore(ctx context.Context, d Device, want map[string]string) []link.Changed {
	var left []link.Changed
	err := c.inNetns(func() error {
		for _, s := range settings(d) {
			value, ok := want[s.name]
			if !ok {
				continue
			}
			var have string
			var err error
			_ = wait.Until(ctx, 10*time.Millisecond, func() (bool, error) { // err is the error of the last try
				have, err = s.read(c, d)
				return !errors.Is(err, unix.ENODEV), nil
			})
			if err == nil && have != value {
				if err = s.set(c, d, value); err == nil {
					d.Moderation, have, err = c.again(d, s)
				}
			}
			if err != nil || have != value {
				left = append(left, link.Changed{Setting: s.name, Err: err})
			}
		}
		return nil
	})
	if err != nil {
		left = append(left, link.Changed{Setting: "settings", Err: err})
	}
	return left
}

// again reads a setting once more after a change.
func (c *Core) again(d Device, s setting) (moderation, value string, err error) {
	now, err := c.device(d.Index)
	if err != nil {
		return d.Moderation, "", err
	}
	value, err = s.read(c, now)
	return now.Moderation, value, err
}

var (
	onOff     = []string{"off", "on"}
	errUnread = errors.New("the kernel does not report the setting")
)

func readModeration(_ *Core, d Device) (string, error) {
	if d.Moderation == "" {
		return "", errUnread
	}
	return d.Moderation, nil
}

func setModeration(c *Core, d Device, value string) error {
	enabled := byte(max(0, slices.Index(onOff, value)))
	_, err := c.request(nl.RDMA_NLDEV_CMD_SET, 0, deviceAttr(d.Index), nl.NewRtAttr(attrModeration, []byte{enabled}))
	return err
}

func portSetting(port uint32, name string) string { return fmt.Sprintf("port %d: %s", port, name) }

func ofPort(port uint32, name string, read func(*Core, Device, uint32) (string, error), set func(*Core, Device, uint32, string) error) setting {
	return setting{
		name: portSetting(port, name),
		read: func(c *Core, d Device) (string, error) { return read(c, d, port) },
		set:  func(c *Core, d Device, value string) error { return set(c, d, port, value) },
	}
}

const (
	autoMode   = 1       // RDMA_COUNTER_MODE_AUTO
	resourceQP = attrQPs // a counter's resource is named by its attribute
)

// readAuto reads the mode by which a port's counters are bound to new QPs: the mask of `rdma
// statistic qp set … auto`, or 0 if counters are not bound automatically. Counters that were bound
// manually end with their QPs, so they end with each move.
func readAuto(c *Core, d Device, port uint32) (string, error) {
	a, err := c.ask(nl.RDMA_NLDEV_CMD_STAT_GET, deviceAttr(d.Index), portAttr(port), uint32Attr(attrStatMode, 0), uint32Attr(attrStatResource, resourceQP))
	if err != nil {
		return "", err
	}
	return strconv.FormatUint(number(a, attrStatAutoMask), 10), nil
}

func setAuto(c *Core, d Device, port uint32, value string) error {
	mask, err := strconv.ParseUint(value, 10, 32)
	if err != nil {
		return err
	}
	_, err = c.request(cmdStatSet, 0, deviceAttr(d.Index), portAttr(port), uint32Attr(attrStatMode, autoMode),
		uint32Attr(attrStatResource, resourceQP), uint32Attr(attrStatAutoMask, uint32(mask)))
	return err
}

type optionalCounter struct {
	name    string
	index   uint32
	enabled bool
}

func optionalCounters(c *Core, d Device, port uint32) ([]optionalCounter, error) {
	a, err := c.ask(cmdStatStatus, deviceAttr(d.Index), portAttr(port))
	if err != nil {
		return nil, err
	}
	entries, err := a.Nested(nl.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS)
	if err != nil {
		return nil, err
	}
	var found []optionalCounter
	for _, e := range entries {
		one, err := nlattr.Parse(e.Value)
		if err != nil {
			return nil, err
		}
		if _, ok := one.Get(attrCounterDynamic); !ok {
			continue // this counter is always on
		}
		found = append(found, optionalCounter{
			name:  one.Text(nl.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME),
			index: uint32(number(one, attrCounterIndex)), enabled: number(one, attrCounterDynamic) != 0,
		})
	}
	return found, nil
}

// readOptional reads the optional counters that are on.
func readOptional(c *Core, d Device, port uint32) (string, error) {
	all, err := optionalCounters(c, d, port)
	var names []string
	for _, one := range all {
		if one.enabled {
			names = append(names, one.name)
		}
	}
	return strings.Join(names, ","), err
}

func setOptional(c *Core, d Device, port uint32, value string) error {
	all, err := optionalCounters(c, d, port)
	if err != nil {
		return err
	}
	list, want := nl.NewRtAttr(nl.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS|unix.NLA_F_NESTED, nil), strings.Split(value, ",")
	for _, one := range all {
		if slices.Contains(want, one.name) {
			list.AddRtAttr(attrCounterIndex, nl.Uint32Attr(one.index))
		}
	}
	_, err = c.request(cmdStatSet, 0, deviceAttr(d.Index), portAttr(port), list)
	return err
}

// file returns a setting in sysfs. name is the path of the file below the device's directory.
func file(name string) setting {
	path := func(d Device) (string, error) {
		if !isElement(d.Name) {
			return "", fmt.Errorf("RDMA device name %q: %w", d.Name, nlattr.ErrMalformed)
		}
		return filepath.Join("class/infiniband", d.Name, name), nil
	}
	read := func(c *Core, d Device) (string, error) {
		rel, err := path(d)
		if err != nil {
			return "", err
		}
		return c.readSys(rel)
	}
	return setting{name: name, read: read, set: func(c *Core, d Device, value string) error {
		rel, err := path(d)
		if err != nil {
			return err
		}
		return c.writeSys(rel, value)
	}}
}

// writeSys writes a file. path is relative to the root of sysfs.
func (c *Core) writeSys(path, value string) error {
	root, err := c.sys()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(root, path), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
