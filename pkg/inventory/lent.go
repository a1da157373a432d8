package inventory

import (
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/nic"
)

// held has the attachments of the ledgers, and the namespaces that were opened for them.
type held struct {
	live
	attachments []Attachment
}

// held reads the attachments of this host from all state directories that have a ledger.
func (m *machine) held(list *NICList) (*held, error) {
	h := &held{live: live{Namespaces: Namespaces{HostNetns: m.host.Netns}, brief: true}}
	for _, dir := range m.stateDirs {
		if !ledger.Exists(dir) {
			continue
		}
		records, err := ledger.Open(dir)
		if err != nil {
			h.Close()
			return nil, err
		}
		attachments, _, errs := collect(records, &h.live, false)
		if m.host.NodeIP == nil {
			if ip, err := records.NodeIP(); err == nil {
				m.host.NodeIP = constant(ip)
			}
		}
		records.Close()
		h.attachments = append(h.attachments, attachments...)
		list.Errors = append(list.Errors, errs...)
	}
	return h, nil
}

// hold adds the attachment to the NIC that the attachment has, or on which the attachment's child
// interface lies. If a lent NIC is not on the host, hold adds the NIC to the list. If the NIC has
// returned and only addresses are still to be freed, the NIC does not count as lent.
func (list *NICList) hold(a *Attachment) {
	r := a.record
	switch {
	case r.Phase == ledger.Freeing:
	case r.Child != nil:
		if n := list.find(a.NIC, ""); n != nil {
			n.Children++
		}
	case r.Loan != nil:
		var devices []RDMADevice
		if a.RDMA != nil {
			devices = a.RDMA.Devices
		}
		list.lend(a, list.ofLoan(a), lentNIC(a), devices)
	case a.RDMA != nil: // another plugin has the netdev
		for _, d := range a.RDMA.Devices {
			if d.Lent && list.Tree.ByAddress(d.Parent) != nil {
				list.lend(a, list.find("", d.Parent), NIC{PCI: d.Parent, Link: a.Link, AdminDown: a.adminDown}, []RDMADevice{d})
			}
		}
	}
}

// lentNIC returns the NIC of the attachment's loan as it was on the host, with the state that it
// has in the pod now.
func lentNIC(a *Attachment) NIC {
	r := a.record
	id := r.Loan.Identity
	n := NIC{
		Name: r.Loan.Name, PCI: r.Loan.PCI, MAC: a.MAC, PermanentMAC: id.PermMAC, MTU: a.MTU,
		Link: a.Link, AdminDown: a.adminDown,
		parentDev: id.ParentDev, hardware: id.Hardware(),
	}
	if id.ParentBus == "auxiliary" {
		n.Auxiliary = id.ParentDev
	}
	if s := r.Loan.Snapshot; s != nil {
		n.AltNames, n.MAC, n.MTU, n.LinkType = s.AltNames, s.MAC, s.MTU, nic.LinkType(s.MAC)
		if s.IPoIB != nil {
			n.PKey = s.IPoIB.PKey
		}
	}
	if h := r.Loan.Hardware; h != nil {
		n.Mbps, n.Firmware = h.Mbps, h.Firmware
	}
	if a.hardware.Mbps != 0 {
		n.Mbps = a.hardware.Mbps
	}
	if a.hardware.Firmware != "" {
		n.Firmware = a.hardware.Firmware
	}
	return n
}

// ofLoan returns the NIC of the attachment's loan if that NIC is on the host, otherwise nil. A lent
// NIC can be on the host because it is not in the pod yet, or because it has left the pod. The
// kernel may have given it another name on the host.
func (list *NICList) ofLoan(a *Attachment) *NIC {
	id := a.record.Loan.Identity
	if n := list.first(func(n *NIC) bool {
		return n.parentDev != "" && n.parentDev == id.ParentDev && n.hardware == id.Hardware()
	}); n != nil {
		return n
	}
	return list.find(a.record.Loan.Name, a.record.Loan.PCI)
}

// lend marks a NIC as lent to the attachment. If the NIC is already listed, it is n. Its facts are
// then taken from the record, unless the attachment is of an earlier boot.
func (list *NICList) lend(a *Attachment, n *NIC, lent NIC, devices []RDMADevice) {
	switch {
	case n == nil:
		lent.addDevice(list.Tree)
		list.NICs = append(list.NICs, lent)
		n = &list.NICs[len(list.NICs)-1]
	case lent.parentDev != "" && !a.ofEarlierBoot:
		n.Name, n.AltNames, n.MAC, n.MTU = lent.Name, lent.AltNames, lent.MAC, lent.MTU
	}
	n.Lent = &Lent{Pod: a.Pod, ContainerID: a.ContainerID, IfName: a.IfName, Phase: a.Phase, State: a.State}
	for _, d := range devices {
		n.Ports = append(n.Ports, Port{Device: d.Name, Port: d.Port, State: d.State})
		if d.Uverbs != "" { // sysfs lacks the char device while the RDMA device moves
			n.CharDevices = append(n.CharDevices, nic.CharDevice(d.Uverbs))
		}
	}
}
