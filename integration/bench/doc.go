// Bench measures what a pod waits for: CNI ADD and DEL of our plugins, beside
// the plugins of the CNI project and beside the floor, which is the bare move
// of a link by one "ip link set … netns … name …".
//
//	make bench           RIG=no leaves out the part in the rig,
//	                     CLUSTER=no that on an API server,
//	                     PODS=no that with pods of a cluster,
//	                     SCALE=yes adds that of many nodes on one API server
//
// It runs the plugins' binaries as a runtime does (CNI_* in the environment,
// the configuration on stdin) and takes the wall time of the process. All
// contenders take turns in one run, and each round in another order, so that
// whatever else the machine does hits all of them alike; what counts is the
// ratio of the medians. CPU time is shown beside the wall time: where the
// wall time grows and the CPU time does not, the machine was busy, or the kernel
// let the process wait.
//
// Each process is measured after a pause, because the kernel still works on the
// process before it: upstream's plugins make and drop a network namespace of
// their own. The kernel dismantles it later, under the lock that every change
// of a link needs. Measured on two busy CPUs, twelve rounds, judged by the
// fastest fifth: our ADD took 9 ms more when it came immediately after
// upstream's DEL than when it came after our own, 1 to 3 ms more after 20 to 60
// ms, and no more after 80 ms, which is therefore the pause. In the rig, where
// everything is slower, it is 300 ms; that value was not measured. The
// processes of one verb follow each other without a pause, as they do in a
// runtime: the work that one leaves for the next is part of the chain's cost.
//
// Last, strace(1) counts the requests of each verb to the kernel. "netlink" counts
// messages on netlink sockets, including those of IPAM plugins; several may go by one
// system call. "waits" counts the system calls that took the kernel longer than 2 ms: mostly a grace period under the lock
// that every change of a link needs. The run with the fewest of five counts, because a
// busy machine makes others slow. Without strace there are no counts.
//
// The machine is not changed. The program starts itself again in a new network
// and mount namespace: this is "the node", with its own tmpfs on /run and its
// own sysfs on /sys. Pods, and the far ends of the NICs (veth pairs), are
// further network namespaces. All of them end with the process.
//
// With -rig PROGRAM the program measures in the virtual machine of
// integration/rig, whose NICs have RDMA devices, first in shared mode and then
// in exclusive mode. Last it measures the bandwidth of RDMA writes from pod to
// pod and from host to host (Soft-RoCE). PROGRAM runs this binary again in the
// machine, so it must be static; the results come out of its stdout. In the rig
// the machine itself is the node. It is emulated: its times are not those of a
// real machine, and ratios are stated as "in emulation".
//
// With -cluster it measures addresses of a cluster: macvlan pods by cnitool,
// with host-local, real whereabouts and ours in turn, on a real API server and
// etcd in the node; one after another, many at once, and spread over ten nodes,
// which are ten state directories of ours, each with a node name of its own. Ours
// takes part entry by entry, with blocks, and with the local store, which like
// host-local knows one node. With blocks, a node's first ADD claims one; it has a
// row of its own. It counts the requests by the server's audit log, and draws the
// times over the number of pods that start at once and over the number of addresses
// in use.
//
// With -scale it simulates nodes that start a pod with eight rails each, all at once: each
// node is a state directory, and its plugins are goroutines that use pkg/whereabouts/store
// or pkg/whereabouts/block against a real API server and etcd. A pod asks for one address
// after the other, as with Multus. If an ADD fails, or the kubelet's four minutes for a
// sandbox are over, its DELs follow, and a new sandbox. There are a pool for each rail, or
// one for all. Entry by entry, the chart's priority level has each number of -shares in
// turn. With blocks, the nodes first have none; then all pods end, and others start on the
// same nodes. The pools exist before. -nodes and -lines choose the cases.
//
// The counts are from the server's audit log and the metrics of both servers. What differs
// from a cluster: the nodes take CPU time from the servers (a column shows how much), each
// connects once and keeps its connection, and nothing is done between the addresses. Of
// nodes that have blocks, the times are thus only what this machine needs to be all of
// them. rail-agent does not run: what it publishes of the blocks later is not counted. No
// kube-controller-manager runs. The program renews its lease instead, and reports how long
// that takes. A model with two costs is fitted to the runs of a line; from at least three
// runs it predicts those of more nodes than the machine can simulate. Runs of several calls
// with one -label are in one report; a new one of a case replaces the old one.
//
// With -pods it measures what a user of Kubernetes waits for, on a cluster of
// integration/cluster: from the first request until all pods are Ready, and
// from the request to delete them until all are gone, as a watch reports it.
// Our plugins and upstream's are in each node's CNI directory side by side,
// ours by the prefixed names that rail-agent can install, and both have the
// same account. They take turns with the floor, which is the same pods without
// a rail. A turn in which a kubelet removed sandboxes of deleted pods is made again,
// because that takes seconds of both CPUs. In one scene the kubelet allocates the NICs, and a
// pod with one network for all rails is measured beside pods with eight networks; -scenes
// selects scenes. containerd's log tells how long each sandbox took and how many calls
// failed: on a very busy machine Multus gives up waiting for the API server,
// and the kubelet tries again some seconds later. The times of a run with such
// failures are worthless. Last it makes the CNI calls of a pod with eight rails
// itself, by Multus and without: the difference is the cost of Multus. CPU time
// is shown beside the wall times, as it is more reliable on a busy machine: of
// the whole cluster for pods, of the plugins' processes for calls.
package main
