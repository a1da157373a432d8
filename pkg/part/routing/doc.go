// Package routing has the part of an attachment that keeps the packets of an interface on
// that interface. A pod with several NICs in one network needs this part: the main table has
// only one best route to each destination, whatever the source address of a packet is.
//
// In mode source the interface has its own routing table ([Part]). Rules lead packets to that
// table, and no other table is used for packets from the addresses of the interface:
//
//	20000: from 10.0.3.17 lookup 1003        what a program sends from the address
//	20000: from all oif net3 lookup 1003     what a program sends by the interface
//	20001: from 10.0.3.17 unreachable        otherwise the main table would be used next
//
// The table has the subnets of the addresses, the gateway, and the routes of the network. Only
// the subnets stay in the main table, for programs that choose no source address. The metric of
// these routes is the number of the interface's table. So if several interfaces have the same
// subnet in the main table, the interface with the lowest table number is used, and IPv6 does
// not alternate between the interfaces.
//
// The rules are recorded before they are made, because they do not end with the interface: they
// stay as long as the pod netns exists. Routes end with the interface.
//
// In a plan the part is applied when the addresses are known, and before [address.Interface],
// which makes the routes once the interface is up:
//
//	routes := routing.Part{Conf: &conf.Routing}
package routing
