// Package macvlan has the part of an attachment that makes a macvlan on a NIC, which
// many pods share. The configuration calls that NIC the master, as upstream's
// plugin does; here it is the parent.
//
// A DEL deletes in delete.go what an ADD made in macvlan.go; upstream's macvlans, which
// have no record, by TakeOver in macvlan.go.
package macvlan
