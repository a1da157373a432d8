// Package vrrp finds out whether a VRRP daemon listens on a link. If one does, some of the link's addresses belong to
// the daemon.
package vrrp
