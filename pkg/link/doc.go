// Package link changes and reads network interfaces over rtnetlink and
// /proc/sys: namespaces, the move of a link between them, snapshots and their
// restoration, addresses, routes and macvlan children.
//
// Everything that the project says to rtnetlink goes through this package: a
// dump that the kernel interrupted is repeated here (the linter forbids the
// raw calls elsewhere), and a request always goes through a socket that was
// opened in the namespace it is meant for, so no caller has to think about
// threads.
//
// It knows nothing of CNI, and imports of the project only cnierr.
package link
