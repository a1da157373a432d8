// Package plans has the plan of each plugin, and [ReleaseOrder], the order in which the
// parts of any attachment are released.
//
//   - plans.go: the plan of each plugin.
//   - order.go: the order of release.
//
// Each part has a package of its own. A long Release is in its release.go.
//
// To add a part, write a package next to this one, give it a field in ledger.Record,
// and name it in the plan of its plugin and in ReleaseOrder, by the same Name in
// both. A part that leaves nothing to undo is in a plan only. A part that makes an
// interface also counts in ledger.Record.HasInterface and NICName.
// CONTRIBUTING.md has an example.
//
// The main of a plugin:
//
//	func main() { plans.HostDevice().Main(version) }
package plans
