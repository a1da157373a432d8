// Package vrrp finds out whether a VRRP daemon listens on a link: some of the link's addresses are the daemon's then.
package vrrp
