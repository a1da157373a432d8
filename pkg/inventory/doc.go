// Package inventory collects what a node has lent, to show it to a person: attachments
// with the state of their RDMA devices, attachments whose pod is gone, and the network
// namespace of a pod.
//
// It adds the present state to what the records have. What cannot be read is an error
// beside the rest, which is still returned. Only [EndStale] changes
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
