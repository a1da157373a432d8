// Package crash proves by force that nothing is lost: it kills the plugins as
// they ship at each system call that changes something, lets each of these fail
// instead, ends them at random moments under load, and looks whether every NIC
// and every address came home.
//
// The harness runs a plugin under ptrace(2) and counts the system calls that
// can change the host, the pod, the state directory or the address pool, in the
// plugin and in the IPAM plugin that it calls. What asks the kernel for
// something is not counted: who is killed there leaves what the change before
// left. A kill at the end of a change is one at the entry of the next; the last
// point is the process's own exit.
//
//	make crash             every point
//	go test ./integration/crash   some of them, chosen at random (the seed is printed)
//
// What has RDMA devices is swept in the rig (build tag rig): host-device and, in
// a chain, rdma, in exclusive and in shared mode.
//
// RAIL_CNI_CRASH=full sweeps every point, RAIL_CNI_CRASH_SEED repeats a sample.
//
// Beside it a model of a node, [TestNodeDoesAsTheModelSays], is run for
// RAIL_CNI_MODEL_STEPS steps, in each of which up to four operations go on at
// once, before all is compared; a sequence that fails is printed, and made shorter
// for some minutes, as far as it fails again.
// RAIL_CNI_MODEL_WORLDS nodes run side by side, four for each processor unless
// told, each in a process with namespaces of its own.
//
// And pods attack a node, [TestHostilePodsHarmNobody]: package attacker has what
// they do, for RAIL_CNI_HOSTILE_TIME in each of its variants. Meanwhile other pods
// come and go, and must see nothing of it. A failure prints the last attacks and
// calls, and what became of the host's links; RAIL_CNI_HOSTILE_ONLY chooses
// attacks, to find the one that did it. Three things are not among them, because
// no CNI plugin can keep a pod from them: taking addresses of others on a wire
// that it shares; removing a veth that stands for a NIC of hardware, or hiding it
// and posing as it with another, for a veth is known by no device; and making or
// removing virtual links of the host by its namespace's number, which the kernel
// lets pods do that have CAP_NET_ADMIN without a user namespace
// (rtnl_link_get_net_capable).
//
// Outside of the rig the NICs are veths, which the kernel destroys with their
// pod's netns where it sends a NIC of hardware home. In the rig,
// [TestHostilePodsHarmNobodyOnNICsWithRDMA], they have drivers and RDMA devices:
// there pods take them to namespaces within their own, exchange names of RDMA
// devices, hold contexts, and change what only a driver has (package mutate).
// What the test does not ask for is that uverbs numbers stay: who may move RDMA
// devices can have the kernel exchange those of two.
package crash
