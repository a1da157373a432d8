// Package loan has the common helpers of the parts about lent NICs: the
// attachment that has a NIC, and the report of a NIC that was not returned as
// it was. It does not change links.
//
// To find the attachment that has a NIC:
//
//	holder, err := loan.HolderOf(node, selector)
package loan
