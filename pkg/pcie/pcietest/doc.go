// Package pcietest makes machines with PCI functions, for tests of what reads their sysfs.
//
//	tree, root := pcietest.Machine(t, pcietest.Function{Path: "pci0000:00/0000:00:05.0", Class: pcietest.ClassRoCE})
package pcietest
