// Package crash tests by force that nothing is lost: it kills the released
// plugins at each system call that changes something, makes each of these calls
// fail instead, kills the plugins at random moments under load, and checks that
// every NIC and every address was returned.
//
// The harness runs a plugin under ptrace(2) and counts the system calls that
// can change the host, the pod, the state directory or the address pool, in the
// plugin and in the IPAM plugin that it calls. Calls that only read are not
// counted: a kill there leaves the same state as a kill after the change
// before. A kill at the end of a change equals one at the entry of the next;
// the last point is the process's own exit.
//
// The device plugin of rail-agent is swept as well, from its start to its end,
// with a kubelet that the test plays.
//
//	make crash             every point
//	go test ./integration/crash   some of them, chosen at random (the seed is printed)
//
// NICs with RDMA devices are swept in the rig (build tag rig): host-device and,
// in a chain, rdma, in exclusive and in shared mode. There each point has one
// of the recoveries, which the seed chooses; elsewhere it has all of them.
//
// RAIL_CNI_CRASH=full sweeps every point, RAIL_CNI_SEED repeats a sample.
//
// [TestNodeDoesAsTheModelSays] runs a model of a node for RAIL_CNI_MODEL_STEPS
// steps. In each step up to four operations run concurrently, and then the node
// is compared with the model. A sequence that fails is printed, and shortened
// for some minutes as long as it still fails. RAIL_CNI_MODEL_WORLDS nodes run
// side by side, by default four for each processor, each in a process with
// namespaces of its own.
//
// In [TestHostilePodsHarmNobody] pods attack a node for RAIL_CNI_HOSTILE_TIME
// in each of its variants; package attacker contains the attacks. Meanwhile
// other pods come and go, and must not notice. A failure prints the last
// attacks and calls, and the changes of the host's links; RAIL_CNI_HOSTILE_ONLY
// selects attacks, to find the cause. Three attacks are left out, because no
// CNI plugin can prevent them: taking addresses of others on a shared wire;
// removing a veth that stands for a NIC of hardware, or hiding it and giving
// its name and MAC to another, because a veth has no device to identify it; and
// making or removing virtual links of the host by its namespace's number, which
// the kernel allows pods with CAP_NET_ADMIN and without a user namespace
// (rtnl_link_get_net_capable).
//
// The node's rail-agent has its doctor, its device plugin and NRI on. It is killed again and
// again, and until then it must be ready and must not grow. Its doctor runs without a pause. The
// test plays the kubelet, which allocates NICs, and the container runtime, which makes
// containers in the pods of both kinds. An innocent pod that lives as long as the attack must
// stay as it is in the facts and in the doctor's verdicts. Veths have no PCI functions, so only
// in the rig the device plugin has NICs to offer.
//
// Outside of the rig the NICs are veths. The kernel destroys these with their
// pod's netns, but returns a NIC of hardware to the host. In the rig,
// [TestHostilePodsHarmNobodyOnNICsWithRDMA], the NICs have drivers and RDMA
// devices: there pods move them to namespaces within their own, exchange names
// of RDMA devices, hold contexts, and change settings that only a driver has
// (package mutate). The test does not require that uverbs numbers stay: a pod
// that may move RDMA devices can make the kernel exchange the numbers of two.
package crash
