// Package link finds, moves, creates and deletes network interfaces, and sets their addresses, routes and policy rules, over
// rtnetlink. It returns what the kernel has at the time of the call, and remembers nothing. The package pkg/nicstate records
// what a NIC had before a pod got it.
//
//   - query.go, parse.go, attrs.go, parent.go, view.go, stacked.go, address.go: what a namespace has.
//   - identity.go: recognizing a link that was renamed and moved.
//   - move.go, altnames.go, flags.go: changes of a link.
//   - macvlan.go, ipoib.go: links that are made for a pod.
//   - configure.go, policy.go: addresses, routes, rules.
//   - notfound.go: whether an error means that the link has left.
//
// The packages below this directory use other interfaces of the kernel: announce (ARP and NDP), bpf (programs), device
// (driver and queues), routes (raw routes and nexthops), sockdiag (TCP connections), sriov (virtual functions), sysctl and
// vrrp. Package settings has the table of the settings that are restored for a link. This package imports only routes. The
// other packages, except vrrp, import this package.
//
// Only these packages and pkg/nicstate make rtnetlink requests: they repeat a dump that the kernel interrupted. The linter
// forbids the raw calls elsewhere.
//
// Package link does not know CNI.
//
// To move a NIC to a pod (see pkg/nicstate for the way back):
//
//	l, err := link.ByName(host, "ens12np0")
//	if err != nil {
//		return err
//	}
//	err = link.Move(host, l.Index, pod, "net1", l.Name)
package link
