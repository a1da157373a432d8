package inventory

import (
	"fmt"

	"github.com/rail-cni/rail-cni/pkg/cell"
)

// Holder returns the pod of the attachment, or its container if the pod is not known.
func (a *Attachment) Holder() string {
	if a.Pod != "" {
		return a.Pod
	}
	const room = 28
	if len(a.ContainerID) > room {
		return a.ContainerID[:12] + "…"
	}
	return a.ContainerID
}

// Holder returns the pod to which the NIC is lent, or the number of child interfaces on the NIC. If
// no pod uses the NIC, it returns "".
func (n *NIC) Holder() string {
	switch {
	case n.Lent != nil:
		return (&Attachment{Pod: n.Lent.Pod, ContainerID: n.Lent.ContainerID}).Holder()
	case n.Children > 0:
		return fmt.Sprintf("%d child interface(s)", n.Children)
	}
	return ""
}

// LentTo reports whether the NIC is lent to the pod, "namespace/name". It returns false for the pod
// "".
func (n *NIC) LentTo(pod string) bool { return pod != "" && n.Lent != nil && n.Lent.Pod == pod }

// PortNames returns the names of the NIC's RDMA ports, such as "mlx5_0/1".
func (n *NIC) PortNames() string {
	var names []string
	for _, p := range n.Ports {
		name := p.Device
		if p.Port != 0 {
			name = fmt.Sprintf("%s/%d", p.Device, p.Port)
		}
		names = append(names, name)
	}
	return cell.List(names)
}

// PortStates returns the states of the NIC's RDMA ports, in the order of [NIC.PortNames].
func (n *NIC) PortStates() string {
	var states []string
	for _, p := range n.Ports {
		states = append(states, p.State)
	}
	return cell.List(states)
}

// PCIID returns the IDs of vendor and device, such as "15b3:1021", or "" if the NIC has no PCI
// function.
func (n *NIC) PCIID() string {
	if n.Vendor == "" {
		return ""
	}
	return n.Vendor + ":" + n.Device
}
