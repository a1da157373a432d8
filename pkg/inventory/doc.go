// Package inventory collects a node's attachments and NICs for users:
// attachments with the state of their RDMA devices, attachments whose pod is
// gone, NICs that are lent or not with the GPUs near them, the network
// namespace of a pod, and the device plugin of others that serves the node.
//
// It adds the current state to the records. A part that cannot be read is an
// error beside the rest, which is still returned. Only [EndStale] changes
// anything, under the locks that the plugins take. No function creates a
// missing ledger: the caller checks [ledger.Exists] first.
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
