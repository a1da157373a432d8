package agent

import (
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/part/loan"
)

// collectLinks adds the state of the links of lent NICs, read in their pods now. Behind
// another plugin the record of the chained plugin rdma stands for the NIC.
func (a *agent) collectLinks(e *exposition) {
	for _, k := range a.keepers {
		records, _ := k.node.Ledger.List() // rail_cni_unreadable_records counts the errors
		for _, r := range records {
			if !r.LendsNetdev() && r.HasInterface() || r.Phase != ledger.Lent {
				continue
			}
			var pod ledger.Pod
			if r.Pod != nil {
				pod = *r.Pod
			}
			if r.Link != nil {
				e.add("rail_cni_link_wait_seconds", gauge, "How long ADD waited for the link of a lent NIC.", r.Link.Waited().Seconds(),
					labels{"nic", r.NICName(), "ifname", r.IfName, "pod_namespace", pod.Namespace, "pod_name", pod.Name})
			}
			if up, known := loan.LinkUp(r); known {
				value := 0.0
				if up {
					value = 1
				}
				e.add("rail_cni_link_up", gauge, "Whether a lent NIC is up in its pod, and has a carrier.", value,
					labels{"nic", r.NICName(), "ifname", r.IfName, "pod_namespace", pod.Namespace, "pod_name", pod.Name})
			}
		}
	}
}
