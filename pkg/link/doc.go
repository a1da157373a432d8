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
package link
