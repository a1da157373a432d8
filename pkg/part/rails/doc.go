// Package rails knows the rails of a node, for the parts of an attachment: it finds which NIC has
// which rail by the node file, even while the NIC is lent. It does not change links.
//
// To find the NIC of a rail:
//
//	of, err := rails.Read(node, node.Host())
//	selector, err := of.Selector(3)
package rails
