// Package attacker is what a pod's root does to harm the node and its other
// pods: a program that works on all interfaces of its network namespace, one
// random attack after another, until it is killed.
//
// It does what rtnetlink, ethtool, RDMA netlink, verbs, sysfs, sysctls and BPF let
// a process do that has every capability in its own network namespace: a pod
// that is root there (plain), or one with a user namespace of its own that owns
// the network namespace. It works in namespaces only that its caller made for it.
package attacker
