// Package tests holds the tests that need the rig: real NICs on PCI functions,
// which the kernel moves to init_net when their pod dies and which can be
// unplugged, and kinds of link that not every kernel has. They are built with
// the tag "rig" only:
//
//	make test-rig
//
// The host netns of these tests is the virtual machine's own. Each test begins
// with NICs that the kernel has just found.
package tests
