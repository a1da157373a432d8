// Package link finds, moves, creates and deletes network interfaces, with their addresses, routes and policy rules, over
// rtnetlink. It returns what the kernel has at the time of the call, and remembers nothing: what a NIC had before
// a pod got it is in pkg/nicstate.
//
//   - query.go, parse.go, attrs.go, parent.go, view.go, stacked.go, address.go: what a namespace has.
//   - identity.go: the same link again, renamed and moved.
//   - move.go, altnames.go, flags.go: changes of a link.
//   - macvlan.go, ipoib.go: links that are made for a pod.
//   - configure.go, policy.go: addresses, routes, rules.
//   - notfound.go: whether an error means that the link has left.
//
// What needs another interface of the kernel has a package below: announce (ARP and NDP), bpf (programs), device (driver and
// queues), routes (raw routes and nexthops), sockdiag (TCP connections), sriov (virtual functions), sysctl and
// vrrp. Of these only routes is imported here; the others, except vrrp, import this package.
//
// All rtnetlink requests of the project are made by these packages and pkg/nicstate: a dump that the kernel interrupted is
// repeated (the linter forbids the raw calls elsewhere).
//
// It does not know CNI.
//
// To move a NIC to a pod (see pkg/nicstate for the way back):
//
//	l, err := link.ByName(host, "ens12np0")
//	if err != nil {
//		return err
//	}
//	err = link.Move(host, l.Index, pod, "net1", l.Name)
package link
