// Package linkwait bounds how long an ADD waits for its link. A NIC loses its carrier
// when it moves, and gets it back seconds after it is set up. Meanwhile its RDMA port is
// down, and collective libraries silently leave such a port out.
//
// Several parts wait: one for the carrier, one for the RDMA ports. [For] gives them one
// bound together. A runtime calls the ADDs of a pod one after another and gives all of
// them about four minutes, so the waits of all attachments of a pod have one bound, too
// ([OfPod]).
//
// Only the attachment's own lock is held meanwhile: a pod that takes its link down
// delays no other pod.
package linkwait
