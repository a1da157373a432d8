// Package componenttest has helpers for tests of components.
//
//	lines := componenttest.Collect(k.collect)
package componenttest
