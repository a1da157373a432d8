// Package all has the plan of each plugin, and [ReleaseOrder], the order in which the
// parts of any attachment are released.
//
// To add a part, write a package beside this one, give it a field in ledger.Record,
// and name it in ReleaseOrder and in the plan of its plugin, by the same Name in both. A part
// that makes an interface also counts in ledger.Record.HasInterface and NICName.
//
// The main of a plugin:
//
//	func main() { all.HostDevice().Main(version) }
package all
