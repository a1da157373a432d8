// Package inventory collects what a node has lent, for people: attachments with the
// state of their RDMA devices, those whose pod is gone, and the namespace of a pod.
//
// It adds what is true now to what the records say. What cannot be read is an error
// beside the rest and keeps nothing else from being shown. Only [EndStale] changes
// something, under the locks that the plugins take. Where there is no ledger, none is
// made: the caller asks [ledger.Exists] first.
//
// To list the attachments of this node:
//
//	list, err := inventory.Collect("/run/rail-cni", false)
//	if err != nil {
//		return err
//	}
//	for _, a := range list.Attachments {
//		fmt.Println(a.Pod, a.NIC, a.State)
//	}
package inventory
