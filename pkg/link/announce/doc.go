// Package announce informs the neighbors on a link that it has addresses, by ARP and NDP.
package announce
