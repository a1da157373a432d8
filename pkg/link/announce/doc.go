// Package announce informs the neighbors on a link, by ARP and NDP, that the link has certain
// addresses.
package announce
