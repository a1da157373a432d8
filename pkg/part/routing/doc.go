// Package routing has the part of an attachment that keeps the packets of an interface on
// that interface. A pod with several NICs in one network needs this: the main table has one
// best route to each destination, whichever address a packet is from.
//
// With mode source the interface has a routing table of its own ([Part]). Rules lead to it,
// and packets from its addresses go nowhere else:
//
//	20000: from 10.0.3.17 lookup 1003        what a program sends from the address
//	20000: from all oif net3 lookup 1003     what it sends by the interface
//	20001: from 10.0.3.17 unreachable        else the main table would have another way
//
// The table has the subnets of the addresses, the gateway, and the routes of the network. In
// the main table only the subnets stay, for programs that choose no address. Their metric is
// the number of the table. So where several interfaces have one subnet there, the lowest
// table comes first, and IPv6 does not alternate.
//
// The rules are in the record before they are made, because they stay in a pod netns that
// lives on. Routes end with the interface.
//
// In a plan the part is applied when the addresses are known, and before [address.Interface],
// which makes the routes when the interface is up:
//
//	routes := routing.Part{Conf: &conf.Routing}
package routing
