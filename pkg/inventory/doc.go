// Package inventory collects the state of a node, for users and for the device
// plugin. It finds:
//
//   - attachments, with the state of their RDMA devices
//   - attachments whose pod is gone
//   - NICs, lent or not, with the GPUs near them
//   - the network namespace of a pod
//   - another project's device plugin that serves the node
//
// A NIC has the same facts on the host and while it is lent. [NICs] takes these
// facts from sysfs, which shows a device in each namespace, and from the record of
// the loan. Only the state of the NIC's link and ports is read in the namespace
// that has the NIC. [NICList.Resource] returns the facts by which pools and rails
// select NICs. The package watch below this one notices changes, and the package
// counters has the metrics of RDMA devices.
//
// The package adds the current state to the records. If a part cannot be read, an
// error is returned together with the rest. Only [EndStale] changes anything,
// under the same locks that the plugins take. No function creates a missing ledger,
// so the caller must check [ledger.Exists] first.
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
