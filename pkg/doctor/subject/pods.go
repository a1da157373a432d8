package subject

import (
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/doctor/rule"
)

// EachAttachment calls do for each attachment of the node.
func EachAttachment(f *fact.Facts, r *rule.Report, do func(*fact.Attachment)) {
	if f.Ledger == nil {
		return
	}
	list, _ := rule.Read(r, "attachments", f.Ledger.Attachments)
	for i := range list {
		r.Within(list[i].IfName, func() { do(&list[i]) })
	}
}

// AnyPod reports whether the node has pods that hold a NIC. If there are none, and the attachments
// could not be read, AnyPod notes that in r.
func AnyPod(f *fact.Facts, r *rule.Report) bool {
	if f.Ledger != nil && len(f.Pods) == 0 && !f.Ledger.Attachments.OK() {
		rule.Read(r, "attachments", f.Ledger.Attachments)
	}
	return len(f.Pods) > 0
}

// EachPod calls do for each pod that holds a NIC.
func EachPod(f *fact.Facts, r *rule.Report, do func(*fact.Pod)) {
	AnyPod(f, r)
	for i := range f.Pods {
		do(&f.Pods[i])
	}
}

// EachRailOf calls do for each interface of the pod that is a NIC of the host or lies on a NIC of the
// host. It reports whether the pod's interfaces are known.
func EachRailOf(p *fact.Pod, r *rule.Report, do func(*fact.Interface)) bool {
	list, ok := rule.Read(r, p.Object()+" interfaces", p.Interfaces)
	for i := range list {
		if list[i].NIC != "" {
			r.Within(list[i].Name, func() { do(&list[i]) })
		}
	}
	return ok
}
