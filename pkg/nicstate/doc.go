// Package nicstate records the state of a NIC before a pod gets it, and restores that state on the return. [Take] returns a
// [Snapshot], which is kept in a record. [Restore] sets what differs from the snapshot. Later [Compare] and
// [CompareSettings] report what is missing or changed.
//
// What is restored, and where a new setting is added:
//
//   - names, altnames, alias, MTU, MAC, queue length, group, flags, master, up or down: a field of [Snapshot], [Take]
//     (snapshot.go), and restoreAttributes or a function beside it (restore.go).
//   - further numbers of the link (gso_max_size, proto_down, …): a row of numbers (pkg/link/settings). The
//     link-layer broadcast address, the IPv6 token and the mode of InfiniBand interfaces are also in that package.
//   - sysctls: all sysctls of the interface (pkg/link/sysctl). A sysctl that is also in the link's description
//     gets a name in confs there.
//   - settings of the driver and of queues (ethtool, DCB, sysfs, NAPI): a row of a table of pkg/link/device.
//   - addresses: restore.go. The addresses of VRRP daemons are left to the daemons: vrrp.go.
//   - nexthop objects and routes: objects.go, replayroutes.go. Multipath routes that several NICs share: hops.go. Routes that
//     the kernel or a routing daemon adds itself are not restored: prefix.go, daemon.go.
//   - policy rules of the addresses: rules.go.
//   - permanent neighbors: snapshot.go, restore.go.
//   - settings of virtual functions, if the NIC is lent with them: pkg/link/sriov, which the part of the NIC calls.
//
// Some state is not restored but compared: the fields of [Snapshot] that are "only compared", and the counts of receivers
// (pkg/link/settings). carry.go decides which of the NIC's addresses and routes a pod gets.
//
// Addresses, routes, rules and neighbors are kept as the kernel's own messages ([Replay]). So attributes that are unknown to
// this package survive as well.
package nicstate
