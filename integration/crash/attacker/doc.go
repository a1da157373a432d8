// Package attacker contains the attacks of a pod's root on the node and its
// other pods: a program that works on all interfaces of its network namespace,
// one random attack after another, until it is killed.
//
// It uses everything that rtnetlink, ethtool, RDMA netlink, verbs, sysfs,
// sysctls and BPF allow a process with every capability in its own network
// namespace: a pod that is root there (plain), or one with a user namespace of
// its own that owns the network namespace. It works only in namespaces that its
// caller made for it.
package attacker
