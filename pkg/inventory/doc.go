// Package inventory collects a node's attachments and NICs, for users and for
// the device plugin: attachments with the state of their RDMA devices,
// attachments whose pod is gone, NICs that are lent or not with the GPUs near
// them, the network namespace of a pod, and the device plugin of others that
// serves the node.
//
// A NIC has the same facts on the host and while it is lent: [NICs] takes them
// from sysfs, which shows a device in each namespace, and from the record of
// the loan. Only the state of its link and ports is read where it is.
// [NICList.Resource] has the facts by which pools and rails select NICs. Of the
// packages below it, watch notices changes, and counters has the metrics of RDMA
// devices.
//
// It adds the current state to the records. A part that cannot be read is an
// error, and the rest is still returned. Only [EndStale] changes
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
