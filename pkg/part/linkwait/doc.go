// Package linkwait bounds how long an ADD waits for its link. A NIC loses its carrier
// when it moves, and gets it back seconds after it is set up. Meanwhile its RDMA port is
// down, and collective libraries silently leave such a port out.
//
// One part waits for the carrier, another for the RDMA ports: their calls of [Carrier] and
// [For] share the network's timeout. A runtime calls the ADDs of a pod one after another,
// within about four minutes for all of them. So the waits of all attachments of a pod also
// share a bound ([OfPod]), and none is long once the first ADD is old ([LastWait]).
//
// [Carrier] also announces the addresses, when the carrier is there.
//
// During a wait only the attachment's own lock is held: a pod that takes its link down
// delays no other pod.
//
// To wait for something that the link lacks; missing returns what that is, or "":
//
//	err := linkwait.For(ctx, tx, conf, missing)
package linkwait
