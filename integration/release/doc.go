// Package release tests what "make release" makes with the tools of others: the bill of
// materials with SPDX' own library, the packages with dpkg, and a push of image and chart to a
// registry that runs in the test.
//
// It is a module of its own, so that these libraries never enter the module that users build.
package release
