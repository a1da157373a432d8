// Package iprange parses blocks of IP addresses, and compares ranges of them.
//
//	all := iprange.OfPrefix(netip.MustParsePrefix("10.0.0.0/22")) // 10.0.0.0-10.0.3.255
package iprange
