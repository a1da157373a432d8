// Package componenttest has what tests of components need.
//
//	lines := componenttest.Collect(k.collect)
package componenttest
