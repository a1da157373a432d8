package publish

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/inventory"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/device"
	"github.com/rail-cni/rail-cni/pkg/nic"
	"github.com/rail-cni/rail-cni/pkg/publish/railinfo"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// IsRail reports whether the attachment is part of a pod's rail information. That is so if the
// attachment has RDMA or a NIC of the host, or if its network needs the rail of the NIC. A plain
// macvlan has none of these.
func IsRail(r *ledger.Record) bool {
	return r.Phase == ledger.Lent && (r.RDMA != nil || r.Loan != nil || r.Rail != nil)
}

// Describe returns the document of the pod that has the records. Each record for which [IsRail] is
// true becomes a rail. The rail has the properties of its NIC in list, and its present state in the
// pod. Describe needs root, and the calling thread must be in the host netns. If something cannot
// be read, Describe returns an error and the document without it.
func Describe(list *inventory.NICList, records []*ledger.Record, pod railinfo.PodRef) (*railinfo.Rails, error) {
	s := &stateReader{}
	defer s.Close()
	return s.describe(list, records, pod)
}

// stateReader reads the present state of rails.
type stateReader struct {
	inventory.Namespaces
	// see, if it is not nil, is called for each port that the pod has.
	see func(core *rdma.Core, d rdma.Device, port uint32, lent bool)
}

func (s *stateReader) describe(list *inventory.NICList, records []*ledger.Record, pod railinfo.PodRef) (*railinfo.Rails, error) {
	r := &railinfo.Rails{Schema: railinfo.Schema, Pod: pod, Rails: []railinfo.Rail{}}
	var errs []error
	for _, record := range records {
		if !IsRail(record) {
			continue
		}
		rails, err := s.rails(list, record)
		r.Rails = append(r.Rails, rails...)
		errs = append(errs, err)
	}
	r.Sort()
	return r, errors.Join(errs...)
}

// rails returns the rails of one attachment.
func (s *stateReader) rails(list *inventory.NICList, r *ledger.Record) ([]railinfo.Rail, error) {
	base, now, err := s.netdev(r)
	if r.RDMA == nil || len(r.RDMA.Devices) == 0 {
		n := nicOf(list, r, nil)
		fill(&base, list, r, n, pciOf(r, nil, n))
		return []railinfo.Rail{base}, err
	}
	errs := []error{err}
	var rails []railinfo.Rail
	for i := range r.RDMA.Devices {
		recorded := &r.RDMA.Devices[i]
		l := base
		l.RDMA, l.Port = recorded.Name, recorded.Port
		n := nicOf(list, r, recorded)
		fill(&l, list, r, n, pciOf(r, recorded, n))
		if err := s.port(&l, r, recorded, now); err != nil {
			errs = append(errs, fmt.Errorf("%s: RDMA device %s: %w", r.Holder(), recorded.Name, err))
		}
		rails = append(rails, l)
	}
	return rails, errors.Join(errs...)
}

// netdev returns what the interface in the pod shows, and the interface, or nil if there is none.
// Without an interface the rail has the values that the record had when ADD ended.
func (s *stateReader) netdev(r *ledger.Record) (railinfo.Rail, *link.Link, error) {
	l := railinfo.Rail{Rail: r.Rail, IfName: r.IfName, MAC: r.MAC, MTU: r.MTU, Addresses: slices.Clone(r.Addresses)}
	if r.Loan != nil && r.Loan.Driver != "" {
		l.IfName = ""
		return l, nil, nil
	}
	in := s.Pod(r)
	if in.Err != nil {
		return l, nil, in.Err
	}
	now := r.InterfaceIn(in.Netns)
	var found []*net.IPNet
	var err error
	if now != nil {
		found, err = link.SomeAddresses(in.Netns, now.Index, maxAddresses)
	}
	if now == nil || errors.Is(err, link.ErrNotFound) {
		l.State = inventory.LinkDown
		return l, nil, fmt.Errorf("%s: the interface is not in the pod", r.Holder())
	}
	l.IfName, l.MAC, l.MTU, l.State = now.Name, now.MAC.String(), now.MTU, inventory.LinkDown
	if now.IsUp() && now.HasCarrier() {
		l.State = inventory.LinkUp
	}
	hardware, _ := device.ReadHardware(in.Netns, now.Name) // many interfaces report none
	l.SpeedMbps = hardware.Mbps
	if err != nil {
		return l, now, err
	}
	l.Addresses = ordered(found, r.Addresses)
	l.Gateway = gatewayOf(l.Addresses, r.Gateways)
	return l, now, nil
}

// maxAddresses bounds how many addresses of an interface are published. The kernel has no limit:
// root in a pod can add a million addresses, which must not cost the agent memory.
const maxAddresses = 64

// ordered returns the addresses in CIDR form. The addresses of the record come first, in the order
// of the record.
func ordered[T fmt.Stringer](found []T, recorded []string) []string {
	var list []string
	for _, a := range found {
		list = append(list, a.String())
	}
	rank := func(a string) int {
		if i := slices.Index(recorded, a); i >= 0 {
			return i
		}
		return len(recorded)
	}
	slices.SortStableFunc(list, func(a, b string) int { return rank(a) - rank(b) })
	return list
}

// gatewayOf returns the gateway of the first address: a gateway in the prefix of that address, or
// else a gateway of the same family.
func gatewayOf(addresses, gateways []string) string {
	if len(addresses) == 0 {
		return ""
	}
	prefix, err := netip.ParsePrefix(addresses[0])
	if err != nil {
		return ""
	}
	other := ""
	for _, text := range gateways {
		gateway, err := netip.ParseAddr(text)
		switch {
		case err != nil:
		case prefix.Contains(gateway):
			return text
		case other == "" && gateway.Is4() == prefix.Addr().Is4():
			other = text
		}
	}
	return other
}

// nicOf returns the NIC of an attachment or of one of its RDMA devices, or nil if the list does not
// have the NIC.
func nicOf(list *inventory.NICList, r *ledger.Record, d *ledger.RDMADevice) *inventory.NIC {
	is := func(n *inventory.NIC) bool { return false }
	switch {
	case d != nil && d.ParentDev != "" && (d.Netdev != "" || r.Loan == nil):
		is = func(n *inventory.NIC) bool {
			return n.Auxiliary == d.ParentDev || n.Auxiliary == "" && n.PCI == d.ParentDev
		}
	case r.Loan != nil && r.Loan.Identity.ParentBus == "auxiliary":
		is = func(n *inventory.NIC) bool { return n.Auxiliary == r.Loan.Identity.ParentDev }
	case r.Loan != nil:
		is = func(n *inventory.NIC) bool {
			return n.Auxiliary == "" && n.PCI == r.Loan.PCI && (n.Name == r.Loan.Name || r.Loan.PCI != "")
		}
	case r.Child != nil && !r.Child.InPod:
		is = func(n *inventory.NIC) bool { return n.Name == r.Child.Master }
	}
	i := slices.IndexFunc(list.NICs, func(n inventory.NIC) bool { return !n.Representor && is(&n) })
	if i < 0 {
		return nil
	}
	return &list.NICs[i]
}

// pciOf returns the PCI address of the NIC.
func pciOf(r *ledger.Record, d *ledger.RDMADevice, n *inventory.NIC) string {
	switch {
	case n != nil:
		return n.PCI
	case d != nil && strings.Count(d.ParentDev, ":") == 2:
		return d.ParentDev
	case r.Loan != nil:
		return r.Loan.PCI
	}
	return ""
}

// fill adds what is known about the NIC at the PCI address. n may be nil.
func fill(l *railinfo.Rail, list *inventory.NICList, r *ledger.Record, n *inventory.NIC, pci string) {
	l.PCI = pci
	if n != nil {
		if l.Rail == nil {
			l.Rail = n.Rail
		}
		if l.SpeedMbps == 0 {
			l.SpeedMbps = n.Mbps
		}
	}
	if l.Rail == nil {
		if rail, ok := list.Rails[pci]; ok {
			l.Rail = &rail
		}
	}
	if l.SpeedMbps == 0 && r.Loan != nil && r.Loan.Hardware != nil {
		l.SpeedMbps = r.Loan.Hardware.Mbps
	}
	uuids := map[string]string{}
	for i := range list.NICs {
		for _, g := range list.NICs[i].GPUs {
			uuids[g.PCI] = g.UUID
		}
	}
	l.SetPlace(list.Tree, list.GPUs, uuids)
}

// port adds what the RDMA core reports about the device now.
func (s *stateReader) port(l *railinfo.Rail, r *ledger.Record, recorded *ledger.RDMADevice, now *link.Link) error {
	in, d, err := s.DeviceOf(r, recorded, s.Pod)
	if errors.Is(err, rdma.ErrNotFound) {
		l.State = ""
	}
	if err != nil {
		return err
	}
	l.RDMA, l.SysImageGUID = d.Name, d.SysImageGUID.String()
	var all []string
	if d.ParentBus != "" {
		all = (&nic.Host{Sys: "/sys"}).CharDevices(d.ParentBus, d.ParentDev)
	}
	if len(all) == 0 {
		if u, err := in.Core.Uverbs(d); err == nil {
			all = []string{nic.CharDevice(u.Name)}
		}
	}
	// With umad or issm a pod could manage a port of the host, or an InfiniBand fabric. The pod
	// gets neither until the link layer is known.
	l.CharDevices = slices.DeleteFunc(slices.Clone(all), resource.ManagesFabric)
	if l.Port == 0 && d.Ports == 1 {
		l.Port = 1
	}
	if l.Port == 0 {
		return errors.New("it is unknown which of the device's ports belongs to the interface")
	}
	p, err := in.Core.Port(d, l.Port)
	if err != nil {
		return err
	}
	l.LinkLayer, l.State = p.LinkLayer, p.State.String()
	if recorded.Lent && l.LinkLayer == railinfo.Ethernet {
		l.CharDevices = all
	}
	l.ActiveMTU = ActiveMTU(l.LinkLayer, l.MTU)
	if s.see != nil {
		s.see(in.Core, d, l.Port, recorded.Lent)
	}
	table, err := in.Core.GIDs(d, l.Port)
	if err != nil {
		return err
	}
	setGIDs(l, table, recorded.Lent, now)
	if l.LinkLayer != railinfo.InfiniBand {
		return nil
	}
	keys, err := in.Core.PKeys(d, l.Port)
	if err != nil {
		return err
	}
	setInfiniBand(l, p.LID, table, keys, now)
	return nil
}

// setInfiniBand sets the fields of an InfiniBand port and of its interface. now is nil if the port
// has no interface. In that case the partition is the one at index 0, which programs use by
// default.
func setInfiniBand(l *railinfo.Rail, lid uint32, table ibaddr.GIDTable, keys []ibaddr.PKey, now *link.Link) {
	l.LID = lid
	if len(table.Entries) > 0 {
		l.GUID = table.Entries[0].GID.Interface().String()
	}
	var key uint16
	switch {
	case now != nil && now.IPoIB != nil:
		key, l.Mode = now.IPoIB.PKey, "datagram"
		if now.IPoIB.Connected() {
			l.Mode = "connected"
		}
	case now == nil && len(keys) > 0 && keys[0].Index == 0:
		key = keys[0].Key
	default:
		return
	}
	if found, ok := ibaddr.FindPKey(keys, key); ok {
		key, l.PKeyIndex = found.Key, &found.Index
	}
	l.PKey = fmt.Sprintf("%#04x", key)
}

// setGIDs adds the GIDs of the port. If only the pod has the port, setGIDs adds all of them. If the
// port is shared, setGIDs adds only the GIDs of the interface's addresses, because the table also
// has the GIDs of other pods.
func setGIDs(l *railinfo.Rail, table ibaddr.GIDTable, lent bool, now *link.Link) {
	l.SharedPort = !lent && l.LinkLayer != railinfo.InfiniBand && now != nil && now.LowerInOtherNetns
	for _, e := range table.Entries {
		g := railinfo.GID{Index: e.Index, Type: e.Type, GID: e.GID.String()}
		if l.LinkLayer != railinfo.InfiniBand {
			g.IP = e.GID.Addr().String()
			if !lent && (now == nil || e.Netdev != now.Name || !l.HasAddress(g.IP)) {
				continue
			}
		}
		l.GIDs = append(l.GIDs, g)
	}
	for _, address := range l.Addresses {
		ip, _, _ := strings.Cut(address, "/")
		for _, g := range l.GIDs {
			if l.GIDIndexV2 == nil && g.Type == ibaddr.RoCEv2 && g.IP == ip {
				l.GIDIndexV2 = &g.Index
			}
		}
	}
}

// mtus are the path MTUs of RDMA (enum ib_mtu).
var mtus = []int{4096, 2048, 1024, 512, 256}

// roceHeaders is the number of bytes that iboe_get_mtu in the kernel leaves for the headers of
// RoCE.
const roceHeaders = 96

// ipoibHeader is the size in bytes of the header of IPoIB in datagram mode (RFC 4391).
const ipoibHeader = 4

// ActiveMTU returns the MTU of RDMA packets of a port, which it derives from the MTU of the port's
// interface. It returns 0 if it cannot derive the MTU, for example for IPoIB in connected mode.
// Netlink and sysfs do not report the MTU.
func ActiveMTU(linkLayer string, mtu int) int {
	if linkLayer == railinfo.InfiniBand {
		if slices.Contains(mtus, mtu+ipoibHeader) {
			return mtu + ipoibHeader
		}
		return 0
	}
	for _, m := range mtus {
		if mtu-roceHeaders >= m {
			return m
		}
	}
	return 0
}
