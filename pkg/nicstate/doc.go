// Package nicstate takes the state of a NIC before a pod gets it, and restores it on the return. [Take] returns a
// [Snapshot], which a record keeps; [Restore] sets what differs from it; [Compare] and [CompareSettings] report later what
// is missing or changed.
//
// What is restored, and where a new setting is added:
//
//   - names, altnames, alias, MTU, MAC, queue length, group, flags, master, up or down: a field of [Snapshot], [Take]
//     (snapshot.go), and restoreAttributes or a function beside it (restore.go).
//   - further numbers of the link (gso_max_size, proto_down, …): a row of settings (settings.go). The
//     link-layer broadcast address and the IPv6 token are in that file, too.
//   - the mode of InfiniBand interfaces: ipoib.go.
//   - sysctls: all of the interface (pkg/link/sysctl); one that its description has too gets a name in confs there.
//   - settings of the driver and of queues (ethtool, DCB, sysfs, NAPI): a row of a table of pkg/link/device.
//   - addresses: restore.go. Those of VRRP daemons are left to the daemons: vrrp.go.
//   - nexthop objects and routes: objects.go, replayroutes.go; multipath routes that several NICs share: hops.go. Those that
//     the kernel or a routing daemon adds itself are not: prefix.go, daemon.go.
//   - policy rules of the addresses: rules.go.
//   - permanent neighbors: snapshot.go, restore.go.
//   - settings of virtual functions, if the NIC is lent with them: pkg/link/sriov, which the part of the NIC calls.
//
// Not restored, but compared: what [Snapshot] calls "only compared", and the counts of receivers (receivers.go). What a pod
// gets of the NIC's addresses and routes is in carry.go.
//
// Addresses, routes, rules and neighbors are kept as the kernel's own messages ([Replay]), so that attributes which
// are unknown here survive, too.
package nicstate
