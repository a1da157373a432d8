// Package rails has the rails of a node for the parts of an attachment: which NIC has which
// rail by the node file, also while the NIC is lent. It does not change links.
//
// To find the NIC of a rail:
//
//	node, err := rails.Read(n, n.Host())
//	selector, err := node.Selector(3)
package rails
