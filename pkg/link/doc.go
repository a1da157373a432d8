// Package link reads and changes network interfaces over rtnetlink and
// /proc/sys: namespaces, the move of a link between them, snapshots and their
// restoration, addresses, routes and macvlans.
//
// All rtnetlink requests of the project go through this package: it repeats a
// dump that the kernel interrupted (the linter forbids the raw calls
// elsewhere), and each request goes through a socket that was opened in its
// namespace, so callers need not care about threads.
//
// It does not know CNI.
//
// To move a NIC to a pod (see the examples for the way back):
//
//	l, err := host.ByName("ens12np0")
//	if err != nil {
//		return err
//	}
//	err = host.Move(l.Index, pod, "net1", l.Name)
package link
