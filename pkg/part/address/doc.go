// Package address has the parts of an attachment that configure its interface:
// [Ask] and [Await] get addresses from the configuration's IPAM plugin, and
// [Interface] puts them on the link and sets it up.
//
// The IPAM plugin runs while the link is being made: [Ask] starts the plugin, and [Await]
// waits for its answer. Ask also frees the addresses, by the record alone. A
// plan has all three parts:
//
//	ask, await := address.IPAM()
//	plan := attachment.Plan{
//		Claim: []attachment.Part{device, ask, address.Interface{}},
//		Apply: []attachment.Part{ask, device, await, address.Interface{}},
//	}
package address
