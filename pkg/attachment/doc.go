// Package attachment implements ADD, DEL, CHECK, GC and STATUS as transactions over a
// ledger. The package knows who holds a NIC ([Node.HolderOf]) and which NICs the kernel is
// about to return ([Node.OnTheirWay]). It knows nothing else about NICs, RDMA or addresses:
// an attachment is made of parts ([Part]), and each plugin is a plan ([Plan]), which lists the
// parts that the plugin uses. The parts are packages below pkg/part; pkg/migrate/rdmacni has
// another part, which takes over the records of rdma-cni. pkg/part/plans has the plans of all
// plugins and the order in which parts are released ([ReleaseOrder]).
//
// Invariants:
//
//   - A part claims what the pod gets, and writes it to the record. Nothing is
//     changed before the record is written.
//   - Release needs nothing but the record. A failed ADD, a DEL, a GC, the sweep at the
//     beginning of every ADD, and the agent all use the same code to release.
//   - The record is removed last. If a process is killed, its record is still there, and the
//     next process can finish the work by that record.
//   - Addresses are freed only when no interface can answer for them. There is one exception:
//     an IPAM plugin that works on the interface frees the addresses right before the
//     interface is set down ([Releasing.Leaving]).
//
// [Node.Del] ends an attachment for the runtime. [Node.End] ends one for a sweep and for the
// agent. Both methods call release, which releases the parts in their order, frees the
// addresses and removes the record.
//
// A plugin's main is
//
//	func main() { plans.HostDevice().Main(version) }
package attachment
