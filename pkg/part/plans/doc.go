// Package plans has the plan of each plugin. It also has [ReleaseOrder], the order in which
// the parts of any attachment are released.
//
//   - plans.go: the plans of all plugins.
//   - order.go: the order of release.
//
// Each part is a separate package. If the part's Release is long, it is in the file release.go
// of that package.
//
// To add a part, write a package next to this one and add a field for the part to
// ledger.Record. Then add the part to the plan of its plugin and to ReleaseOrder, with the same
// Name in both. A part that leaves nothing to undo is only in a plan. A part that makes an
// interface must also be added to ledger.Record.HasInterface and to NICName.
// CONTRIBUTING.md has an example.
//
// The main of a plugin:
//
//	func main() { plans.HostDevice().Main(version) }
package plans
