// Package versions has the state that released versions of rail-cni wrote, and lets the tests of
// the packages that read it do so: a later version must read it and end what it names
// (docs/reference/versions.md).
//
// A package that keeps a file tests it by [Kept]. To add the files of a new version, run the tests
// that use it with -freeze (CONTRIBUTING.md, "How a release is made").
//
// Only tests import the package.
package versions
