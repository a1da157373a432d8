// Package cnierr turns errors of this project into those of CNI, and CNI's codes into
// kinds. Package failure makes the errors.
//
// A plugin's main calls [ToCNI] once. Nothing below it makes a *types.Error: skel finds
// that with errors.As, and drops every text that was wrapped around it.
//
// A plugin's verb:
//
//	func add(args *skel.CmdArgs) error { return cnierr.ToCNI(run(args)) }
package cnierr
