// Package iprange reads ranges and blocks of IP addresses, and compares them.
//
//	all := iprange.OfPrefix(netip.MustParsePrefix("10.0.0.0/22")) // 10.0.0.0-10.0.3.255
package iprange
