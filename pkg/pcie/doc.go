// Package pcie reads the machine's PCI devices from sysfs. It also computes how far two of
// them are apart on the PCI Express tree.
//
// The devices are those of the host, in every network namespace. They are also there while
// a NIC's netdev or RDMA device is in a pod.
//
// To find the GPUs near a NIC:
//
//	tree, err := pcie.Read("/sys")
//	if err != nil {
//		return err
//	}
//	for _, gpu := range tree.GPUs() {
//		fmt.Println(gpu.Address, tree.Distance("0000:3b:00.0", gpu.Address))
//	}
package pcie
