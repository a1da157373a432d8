// Package attachment implements ADD, DEL, CHECK, GC and STATUS as transactions over a
// ledger. It knows who holds a NIC ([Node.HolderOf]) and which NICs the kernel is about to
// return ([Node.OnTheirWay]), and nothing else of NICs, RDMA or addresses: an attachment is
// made of parts ([Part]), and a plugin is a plan ([Plan]) of them. The parts are packages below
// pkg/part; pkg/migrate/rdmacni has one that takes over the records of rdma-cni. pkg/part/plans has
// the plans of all plugins and the order in which parts are released ([ReleaseOrder]).
//
// Invariants:
//
//   - A part claims what the pod gets, and writes it to the record. Nothing is
//     changed before the record is written.
//   - Release needs nothing but the record. A failed ADD, DEL, GC, the sweep at the
//     beginning of every ADD, and the agent all release by the same code.
//   - The record is removed last. A process that is killed leaves a record that the
//     next one can finish.
//   - Addresses are freed only when no interface can answer for them, except by an IPAM
//     plugin that works on the interface: it frees them right before the interface is set
//     down ([Releasing.Leaving]).
//
// [Node.Del] ends an attachment for the runtime, [Node.End] for a sweep and the agent.
// Both call release, which releases the parts in their order, frees the addresses and
// removes the record.
//
// A plugin's main is
//
//	func main() { plans.HostDevice().Main(version) }
package attachment
