package ledger

import (
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
)

// OpenPod opens the pod netns of the attachment. It returns nil if the path no longer leads to that
// netns. So it never opens a socket in a netns that is about to end.
func (r *Record) OpenPod() *netns.Netns {
	if !netns.Alive(r.Netns.ID, r.Netns.Path) {
		return nil
	}
	pod, err := netns.Open(r.Netns.Path)
	if err != nil {
		return nil
	}
	if !pod.ID.Equal(r.Netns.ID) {
		pod.Close()
		return nil
	}
	return pod
}

// InterfaceIn returns the interface of the attachment in the pod netns, or nil. It finds the
// interface by its index, which a pod cannot change.
func (r *Record) InterfaceIn(pod *netns.Netns) *link.Link {
	index := 0
	switch {
	case r.LendsNetdev():
		index = r.Loan.PodIndex
	case r.Child != nil:
		index = r.Child.PodIndex
	case !r.HasInterface() && r.RDMA != nil:
		index = r.RDMA.PodIndex
	}
	if index == 0 {
		return nil
	}
	l, err := link.ByIndex(pod, index)
	if err != nil || r.Loan != nil && l.ParentDev != r.Loan.Identity.ParentDev {
		return nil
	}
	return l
}

// LinkUp reports whether the interface of the attachment is up and has a carrier. known is false
// while the interface is being moved, and if the pod is gone.
func (r *Record) LinkUp() (up, known bool) {
	pod := r.OpenPod()
	if pod == nil {
		return false, false
	}
	defer pod.Close()
	l := r.InterfaceIn(pod)
	return l != nil && l.HasCarrier(), l != nil
}
