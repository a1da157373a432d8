// Bench measures what a pod waits for: CNI ADD and DEL of our plugins, beside
// the plugins of the CNI project and beside the floor, which is the bare move
// of a link by one "ip link set … netns … name …".
//
//	make bench           RIG=no leaves out the part in the rig,
//	                     CLUSTER=no that on an API server,
//	                     PODS=no that with pods of a cluster
//
// It runs the plugins' binaries as a runtime does (CNI_* in the environment,
// the configuration on stdin) and takes the wall time of the process. All
// contenders take turns in one run, and each round in another order, so that
// whatever else the machine does hits all of them alike; what counts is the
// ratio of the medians. CPU time is shown beside the wall time: where the
// wall time grows and the CPU time does not, the machine was busy, or the kernel
// let the process wait.
//
// Each process is measured after a pause, for what the kernel still does about
// the one before it: upstream's plugins make and drop a network namespace of
// their own, which the kernel takes apart later, under the lock that every
// change of a link needs. Measured on two busy CPUs, twelve rounds, and judged
// by the fastest fifth: our ADD took 9 ms more when it came at once after
// upstream's DEL than when it came after our own, 1 to 3 ms more after 20 to 60
// ms, and no more after 80 ms, which therefore is the pause. In the rig, where
// all is slower, it is 300 ms; that was not measured. The processes of one verb
// follow each other without a pause, as they do in a runtime: what one leaves
// for the next to wait for is the chain's own.
//
// Last, strace(1) counts the requests of each verb to the kernel. "netlink" counts
// messages on netlink sockets, including those of IPAM plugins. "waits" counts the
// messages that took the kernel longer than 2 ms: mostly a grace period under the lock
// that every change of a link needs. The run with the fewest of five counts, because a
// busy machine makes others slow. Without strace there are no counts.
//
// Nothing of the machine changes. The programme starts itself once more in a
// new network and mount namespace: this is "the node", with a tmpfs of its own
// on /run and a sysfs of its own on /sys. Pods, and the far ends of the NICs
// (veth pairs), are further network namespaces of its own. All of them are
// gone with the process.
//
// With -rig PROGRAM the programme does the same in the virtual machine of
// integration/rig, whose NICs have RDMA devices, first in shared mode and then
// in exclusive mode; and last it measures what RDMA writes carry from pod to
// pod and from host to host (Soft-RoCE). PROGRAM runs this very binary once more
// inside, which is therefore to be static; what it measured comes out of its
// stdout. There the machine itself is the node. It is emulated: no time that it
// shows is one of a real machine, and ratios are stated as "in emulation".
//
// With -cluster it measures addresses of a cluster: macvlan pods by cnitool,
// with host-local, real whereabouts and ours in turn, on a real API server and
// etcd in the node; one after another, many at once, and spread over ten nodes,
// which here are ten state directories of ours. It counts the requests by the
// server's audit log, and draws what becomes of the times with more pods at
// once and with more addresses handed out.
//
// With -pods it measures what a user of Kubernetes waits for, on a cluster of
// integration/cluster: from the first request until all pods are Ready, and from
// the request to delete them until all are gone, as a watch tells it. Our plugins
// and upstream's are in each node's CNI directory side by side, ours by the
// prefixed names that rail-agent can install, and both have the same account; they
// take turns with the floor, which is the same pods without a rail. How long each
// sandbox took is from containerd's log, and so is how many calls failed: on a
// machine that is very busy Multus gives up waiting for the API server, whosever
// pod it is, and the kubelet tries again some seconds later. The times of a run
// with such failures say nothing. Last it makes the CNI calls of a pod with eight
// rails itself, by Multus and without: the difference is Multus' own. Beside the
// wall times stands CPU time, which says more on a machine that is busy: of the
// whole cluster for pods, of the plugins' processes for calls.
//
// The package imports nothing of the project but the rig, the control plane and
// the cluster: it knows its programmes as a runtime does, as binaries.
package main
