package counters

import (
	"errors"
	"log/slog"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/device"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

// port describes a port, its interface, and the pod that has the interface.
type port struct {
	device rdma.Device
	name   string // name of the device on the host, because in its pod anybody may rename it again and again
	number uint32
	netdev string         // the interface's current name
	parent string         // the interface's name on the host
	pod    ledger.Pod     // empty on the host
	lent   *ledger.Record // nil on the host
	active bool
}

// Collector reads the counters of a node's RDMA devices.
type Collector struct {
	NodeName  string
	StateDirs []string // state directories with records of lent NICs
	Log       *slog.Logger
}

// Component returns the collector as a component of the agent.
func (c *Collector) Component() component.Component {
	return component.Component{Name: "counters", Collect: c.collect}
}

// collect sends the counters of all ports of the node's RDMA devices, in any namespace. If a device
// is just being moved, its counters are missing this time.
func (c *Collector) collect(out component.Metrics) {
	s := &scrape{node: c.NodeName, out: out, owners: map[owned]*ledger.Record{}, roots: map[ibaddr.GUID]string{}}
	for _, dir := range c.StateDirs {
		l, err := ledger.Open(dir)
		if err != nil {
			continue // another metric reports the error
		}
		// The counters of a macvlan's master count the packets of all pods on it.
		records, _ := l.Held(ledger.Anywhere, func(r *ledger.Record) bool { return r.Phase == ledger.Lent && r.Child == nil })
		l.Close()
		for _, r := range records {
			s.note(r)
		}
	}
	err := s.collect()
	if err != nil {
		c.Log.Debug("cannot read all RDMA counters", "err", err)
	}
	out.Gauge("rail_cni_rdma_incomplete", "Whether some RDMA counters could not be read now.", component.Bool(err != nil))
}

// owned identifies a port of a device. Each port may have its own NIC. Port 0 means any port.
type owned struct {
	guid   ibaddr.GUID
	parent string
	port   uint32
}

// scrape is one reading of the counters.
type scrape struct {
	node   string
	out    component.Metrics
	owners map[owned]*ledger.Record // records of the NICs of the ports
	lent   []*ledger.Record         // records of lent NICs with a netdev
	pods   []*ledger.Record         // one for each netns with lent NICs
	roots  map[ibaddr.GUID]string   // interfaces of functions that are not virtual functions
}

// note records a lent NIC.
func (c *scrape) note(r *ledger.Record) {
	if r.LendsNetdev() {
		c.lent = append(c.lent, r)
	}
	if r.RDMA == nil {
		return
	}
	for _, d := range r.RDMA.Devices {
		c.owners[owned{d.NodeGUID, d.ParentDev, d.Port}] = r
	}
	for _, p := range c.pods {
		if p.Netns.ID.Equal(r.Netns.ID) {
			return
		}
	}
	c.pods = append(c.pods, r)
}

// owner returns the record of the attachment that has the NIC of the port, or nil. If the port's
// interface is on the host, the NIC is not lent, even if a chained attachment has the NIC's RDMA
// device.
func (c *scrape) owner(d rdma.Device, p rdma.Port, ns *netns.Netns) *ledger.Record {
	if ns.Path == hostPath && p.NetdevName != "" {
		return nil
	}
	if r := c.owners[owned{d.NodeGUID, d.ParentDev, p.Number}]; r != nil {
		return r
	}
	if r := c.owners[owned{d.NodeGUID, d.ParentDev, 0}]; r != nil {
		return r
	}
	// In exclusive mode the device moves together with one of the NICs that are its ports.
	for _, r := range c.lent {
		if p.Netdev != 0 && p.Netdev == r.Loan.PodIndex && r.Netns.ID.Equal(ns.ID) {
			return r
		}
	}
	return nil
}

func (c *scrape) collect() error {
	host, err := netns.Current()
	if err != nil {
		return err
	}
	defer host.Close()
	core, err := rdma.Open(host)
	if errors.Is(err, rdma.ErrNoRDMA) {
		return nil
	}
	if err != nil {
		return err
	}
	defer core.Close()
	mode, err := core.Mode()
	if err != nil {
		return err
	}
	errs := []error{c.netns(host, core, func(*ledger.Record) bool { return mode == rdma.Shared })}
	for _, p := range c.pods {
		errs = append(errs, c.pod(p, core, mode))
	}
	return errors.Join(errs...)
}

// pod exports the NICs in the netns of a pod.
func (c *scrape) pod(p *ledger.Record, host *rdma.Core, mode rdma.Mode) error {
	ns, err := netns.Find(p.Netns.ID, p.Netns.Path)
	if err != nil || ns == nil {
		return err
	}
	defer ns.Close()
	inNetns := func(r *ledger.Record) bool { return r != nil && r.Netns.ID.Equal(ns.ID) }
	if mode == rdma.Exclusive {
		core, err := rdma.Open(ns)
		if err != nil {
			return err
		}
		defer core.Close()
		return c.netns(ns, core, inNetns)
	}
	// All devices are visible on the host, where their own counters are exported. Here only the
	// counters of the interfaces are read.
	for who, r := range c.owners {
		if !inNetns(r) {
			continue
		}
		parent := who.parent
		if r.Loan != nil { // the RDMA device may belong to another function
			parent = r.Loan.Identity.ParentDev
		}
		if l, err := link.ByName(ns, r.IfName); err != nil || l.ParentDev != parent {
			continue // the interface is a child of the NIC, or is just disappearing
		}
		device, err := host.ByIdentity(who.guid, who.parent)
		if errors.Is(err, rdma.ErrNotFound) {
			continue // it has just left
		}
		if err != nil {
			return err
		}
		c.driver(ns, c.describe(device, rdma.Port{Number: who.port}, r))
	}
	return nil
}

// netns exports the devices that core sees. On the host it exports all devices that no pod has. In
// a pod it exports the devices for which inNetns returns true.
func (c *scrape) netns(ns *netns.Netns, core *rdma.Core, inNetns func(*ledger.Record) bool) error {
	devices, err := core.Devices()
	if err != nil {
		return err
	}
	var errs []error
	var seen []port
	for _, d := range devices {
		ports, err := core.Ports(d)
		if errors.Is(err, rdma.ErrNotFound) {
			continue // it has just left
		}
		errs = append(errs, err)
		for _, p := range ports {
			r := c.owner(d, p, ns)
			if r == nil && ns.Path != hostPath || r != nil && !inNetns(r) {
				continue
			}
			described := c.describe(d, p, r)
			if described.netdev == "" {
				continue
			}
			if d.NodeGUID == d.SysImageGUID {
				c.roots[d.NodeGUID] = described.parent
			}
			seen = append(seen, described)
		}
	}
	for _, p := range seen {
		counters, err := core.Counters(p.device, p.number)
		if errors.Is(err, rdma.ErrNotFound) {
			continue // it has just left
		}
		c.addState(p)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP) { // these mean that the driver has no counters
			errs = append(errs, err)
		}
		for name, value := range counters {
			c.add(name, float64(value), p)
		}
		if p.lent == nil || ns.ID.Equal(p.lent.Netns.ID) {
			c.driver(ns, p)
		}
	}
	return errors.Join(errs...)
}

// hostPath is the Path of the namespace that netns.Current returns.
const hostPath = "/proc/thread-self/ns/net"

// describe returns a port with the labels of its counters.
func (c *scrape) describe(d rdma.Device, p rdma.Port, r *ledger.Record) port {
	described := port{device: d, name: d.Name, number: p.Number, netdev: p.NetdevName, parent: p.NetdevName, lent: r, active: p.State == rdma.PortActive}
	if r == nil {
		return described
	}
	if r.Pod != nil {
		described.pod = *r.Pod
	}
	described.netdev, described.parent = r.IfName, r.NICName()
	if r.RDMA != nil {
		for _, o := range r.RDMA.Devices {
			if o.NodeGUID == d.NodeGUID && o.ParentDev == d.ParentDev {
				described.name = o.Name
			}
		}
	}
	return described
}

var (
	metricName = regexp.MustCompile(`^[a-z0-9_]+$`)
	ofPriority = regexp.MustCompile(`^([rt]x)_prio([0-7])_(pause|discards)$`)
)

// driver exports the driver's counters of a port's interface.
func (c *scrape) driver(ns *netns.Netns, p port) {
	d, err := device.ReadDriver(ns, p.netdev)
	if err != nil {
		return // the interface has just been renamed or removed
	}
	for name, value := range d.Stats {
		if m := ofPriority.FindStringSubmatch(name); m != nil {
			c.add(m[1]+"_"+m[3], float64(value), p, "priority", m[2])
		} else if strings.Contains(name, "vport") {
			c.add(name, float64(value), p)
		}
	}
	if d.Mbps > 0 {
		c.add("vport_speed_mbps", float64(d.Mbps), p)
	}
}

// addState exports whether the port of a lent NIC is active.
func (c *scrape) addState(p port) {
	if p.lent == nil {
		return
	}
	c.out.Gauge("rail_cni_port_active", "Whether the RDMA port of a lent NIC is active.", component.Bool(p.active),
		"nic", p.parent, "ifname", p.netdev, "rdma_device", p.name, "port", strconv.FormatUint(uint64(p.number), 10),
		"pod_namespace", p.pod.Namespace, "pod_name", p.pod.Name)
}

func (c *scrape) add(name string, value float64, p port, more ...string) {
	if name = strings.ToLower(name); !metricName.MatchString(name) {
		return
	}
	root, parent := "false", c.roots[p.device.SysImageGUID]
	if p.device.NodeGUID == p.device.SysImageGUID {
		root, parent = "true", p.parent
	}
	labels := []string{
		"node_name", c.node, "ifname", p.name, "net_dev_name", p.netdev,
		"node_guid", p.device.NodeGUID.String(), "sys_image_guid", p.device.SysImageGUID.String(),
		"is_root", root, "rdma_parent_name", parent,
		"pod_namespace", p.pod.Namespace, "pod_name", p.pod.Name,
	}
	// A gauge has the suffix too, because the dashboards use that name.
	c.out.Counter("rdma_"+name+"_total", "A counter of an RDMA device's port, from its driver.", value, append(labels, more...)...)
}
