// Package contain turns a panic into an error, so that a defect in one part of a program does not
// end the program.
//
//	err := contain.Panics(func() error { return rule.Check(facts) })
package contain
