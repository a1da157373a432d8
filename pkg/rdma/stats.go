package rdma

import (
	"github.com/vishvananda/netlink/nl"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// Counters reads the hardware counters of a port (RDMA_NLDEV_CMD_STAT_GET), by the driver's names.
// A driver without counters answers EINVAL. The error wraps [ErrNotFound] if the device has left
// the namespace.
func (c *Core) Counters(d Device, port uint32) (map[string]uint64, error) {
	var counters map[string]uint64
	err := c.inNetns(func() error {
		a, err := c.ask(nl.RDMA_NLDEV_CMD_STAT_GET, deviceAttr(d.Index), portAttr(port))
		if err == nil {
			counters, err = parseCounters(a)
		}
		return c.ifGone(err, d)
	})
	return counters, failure.Wrap(err, failure.Kernel, "read the counters of port %d of RDMA device %s in netns %s", port, d.Name, c.ns.Path)
}

func parseCounters(a nlattr.Attrs) (map[string]uint64, error) {
	entries, err := a.Nested(nl.RDMA_NLDEV_ATTR_STAT_HWCOUNTERS)
	if err != nil {
		return nil, err
	}
	counters := map[string]uint64{}
	for _, e := range entries {
		if e.Type != nl.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY {
			continue
		}
		one, err := nlattr.Parse(e.Value)
		if err != nil {
			return nil, err
		}
		if name := one.Text(nl.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME); name != "" {
			counters[name] = number(one, nl.RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE)
		}
	}
	return counters, nil
}
