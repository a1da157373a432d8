package deviceplugin

import (
	"fmt"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/deviceplugin/kubeletdir"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

const (
	// settleTime is how long a NIC must be lent to a pod that did not get it from the kubelet
	// before the NIC is unhealthy: when a pod ends, the kubelet may free its devices before its NIC
	// is returned.
	settleTime = 5 * time.Second
	// kubeletSettles is how long after a registration with the kubelet a pod may be missing from
	// PodResources: a kubelet that starts knows no pods.
	kubeletSettles = time.Minute
)

// health remembers the past health of the NICs. Its methods must not be called concurrently.
type health struct {
	nics    map[string]*nicHealth // by PCI address
	outside map[device]*outside
}

// nicHealth is the state of a NIC's link, ports and PCI function.
type nicHealth struct {
	ill     bool
	why     string
	differs time.Time // since when the state has differed from ill, zero if it does not differ
}

// device is an ID of a resource.
type device struct{ resource, id string }

// outside is a NIC that is lent to a pod that did not get it from the kubelet.
type outside struct {
	container string // the container's ID
	since     time.Time
}

// judge updates what is known about a NIC. why is the reason why the NIC is unhealthy, or "" if it
// is healthy. next is when that may change without a notice, or zero if it will not. A NIC that is
// unhealthy when it is first seen counts as unhealthy at once.
func (h *health) judge(n *NIC, limits resource.Health, now time.Time) (why string, next time.Time) {
	defect := defectOf(n)
	s := h.nics[n.PCI]
	if s == nil {
		s = &nicHealth{ill: defect != "", why: defect}
		h.nics[n.PCI] = s
	}
	limit := limits.Down
	if s.ill {
		limit = limits.Up
	}
	switch {
	case (defect != "") == s.ill:
		s.differs = time.Time{}
		if s.ill {
			s.why = defect
		}
	case s.differs.IsZero() && limit > 0:
		s.differs = now
		next = now.Add(limit)
	case now.Sub(s.differs) < limit:
		next = s.differs.Add(limit)
	default:
		s.ill, s.why, s.differs = !s.ill, defect, time.Time{}
	}
	if s.ill {
		return s.why, next
	}
	return "", next
}

// defectOf returns what is wrong with a NIC now, or "" if nothing is wrong. A link that somebody
// set down is not a defect: host-device sets the link of a NIC up when the NIC is lent, and a pod
// may set its own link down.
func defectOf(n *NIC) string {
	switch {
	case n.Gone:
		return "its PCI function is gone"
	case n.Children > 0:
		return fmt.Sprintf("it carries %d child interface(s) of pods, so it cannot be lent", n.Children)
	case awaitsGUID(n):
		return ""
	}
	// The state of an Ethernet port follows the state of its link.
	ports := n.LinkType == "infiniband" || !n.AdminDown
	if !n.AdminDown && n.Link == LinkDown {
		return "its link has no carrier"
	}
	for _, state := range n.Ports {
		if ports && state != "" && state != portActive {
			return fmt.Sprintf("its RDMA port is %s", state)
		}
	}
	return ""
}

// awaitsGUID reports whether the NIC is an InfiniBand virtual function without a GUID. No subnet manager makes the port
// of such a function active before the plugin ib-sriov has given it the GUID of its pod.
func awaitsGUID(n *NIC) bool {
	none := func(b string) bool { return strings.HasSuffix(n.MAC, strings.Repeat(":"+b, 8)) }
	return n.Lent == nil && n.Parent != "" && n.LinkType == "infiniband" && (none("00") || none("ff"))
}

// portActive is the state of an RDMA port that works, in the form of package rdma.
const portActive = "ACTIVE"

// judgeLoan reports whether the NIC is lent to a pod that did not get this device from the kubelet.
// next is when that may change without a notice. containers is nil if the containers are not known.
// registered is when the kubelet last began to watch.
func (h *health) judgeLoan(d device, n *NIC, containers []kubeletdir.Container, registered, now time.Time) (outsider bool, next time.Time) {
	if n.Lent == nil {
		delete(h.outside, d)
		return false, time.Time{}
	}
	before := h.outside[d]
	if containers == nil {
		return before != nil && before.container == n.Lent.ContainerID && now.Sub(before.since) >= settleTime, time.Time{}
	}
	listed, holds := holder(containers, n.Lent, d)
	if holds || !listed && n.Lent.Pod != "" && now.Sub(registered) < kubeletSettles {
		delete(h.outside, d)
		if !holds {
			next = registered.Add(kubeletSettles)
		}
		return false, next
	}
	if before == nil || before.container != n.Lent.ContainerID {
		before = &outside{container: n.Lent.ContainerID, since: now}
		h.outside[d] = before
	}
	if now.Sub(before.since) < settleTime {
		return false, before.since.Add(settleTime)
	}
	return true, time.Time{}
}

// holder reports whether the pod is in containers, and whether a container of the pod has the
// device.
func holder(containers []kubeletdir.Container, pod *Lent, d device) (listed, holds bool) {
	for i := range containers {
		c := &containers[i]
		if c.Namespace != pod.Namespace || c.Pod != pod.Pod {
			continue
		}
		listed = true
		for _, id := range c.Devices[d.resource] {
			holds = holds || id == d.id
		}
	}
	return listed, holds
}

// forget drops what is known about the NICs for which nic returns false and about the devices for
// which keep returns false.
func (h *health) forget(nic func(pci string) bool, keep func(d device) bool) {
	for pci := range h.nics {
		if !nic(pci) {
			delete(h.nics, pci)
		}
	}
	for d := range h.outside {
		if !keep(d) {
			delete(h.outside, d)
		}
	}
}
