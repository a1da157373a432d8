package ledger

import "github.com/rail-cni/rail-cni/pkg/link"

// OpenPod opens the pod netns of the attachment. It returns nil if the path does not lead
// there any more, and opens no socket in a netns that is about to end.
func (r *Record) OpenPod() *link.Netns {
	if !link.NetnsAlive(r.Netns.NetnsID, r.Netns.Path) {
		return nil
	}
	pod, err := link.OpenNetns(r.Netns.Path)
	if err != nil {
		return nil
	}
	if !pod.ID.Equal(r.Netns.NetnsID) {
		pod.Close()
		return nil
	}
	return pod
}

// InterfaceIn returns the interface of the attachment in the pod netns, or nil. A pod
// cannot change its index.
func (r *Record) InterfaceIn(pod *link.Netns) *link.Link {
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
	l, err := pod.ByIndex(index)
	if err != nil || r.Loan != nil && l.ParentDev != r.Loan.Identity.ParentDev {
		return nil
	}
	return l
}

// LinkUp reports whether the interface of the attachment is up and has a carrier. It is
// not known while the interface is moved, or if the pod is gone.
func (r *Record) LinkUp() (up, known bool) {
	pod := r.OpenPod()
	if pod == nil {
		return false, false
	}
	defer pod.Close()
	l := r.InterfaceIn(pod)
	return l != nil && l.HasCarrier(), l != nil
}
