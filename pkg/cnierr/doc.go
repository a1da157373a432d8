// Package cnierr converts errors of this project to errors of CNI, and codes of CNI to kinds.
// Package failure makes the errors of this project.
//
// The main function of a plugin calls [ToCNI] once. No other function makes a *types.Error, because
// skel looks for one with errors.As and drops all texts that were wrapped around it.
//
// This is the function for a verb of a plugin:
//
//	func add(args *skel.CmdArgs) error { return cnierr.ToCNI(run(args)) }
package cnierr
