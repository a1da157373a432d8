// Package devices reads the facts of a node's NICs, by netlink, ethtool and sysfs, wherever they are:
// on the host, or in the network namespaces of pods. It also reads the interfaces and RDMA devices
// that a pod has.
package devices
