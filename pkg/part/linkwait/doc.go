// Package linkwait bounds how long an ADD waits for its link. A NIC loses its carrier when it
// moves, and gets the carrier back some seconds after the NIC is set up. Until then its RDMA
// port is down, and collective libraries silently leave out a port that is down.
//
// One part waits for the carrier with [Carrier], and another part waits for the RDMA ports with
// [For]. Both calls share the timeout of the network. A runtime calls the ADDs of a pod one
// after another, and allows about four minutes for all of them. So the waits of all attachments
// of a pod also share a bound ([OfPod]), and no wait is long once the first ADD is old
// ([LastWait]).
//
// When the carrier is there, [Carrier] also announces the addresses.
//
// During a wait only the lock of the attachment itself is held, so a pod that takes its link
// down does not delay other pods.
//
// To wait until the link has something, pass a function that returns what the link lacks, or
// "" if it lacks nothing:
//
//	err := linkwait.For(ctx, tx, conf, missing)
package linkwait
