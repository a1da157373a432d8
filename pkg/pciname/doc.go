// Package pciname returns names of NICs for people: "ConnectX-7" rather than "15b3:1021".
//
// names.txt has the devices of the vendors whose drivers support RDMA. Its source is the
// database of the PCI ID Project (https://pci-ids.ucw.cz). The names are compiled into the
// program, so that they are known in an image without files, too. The only Go library for
// this (github.com/jaypipes/pcidb) needs the database on the host or from the network. The
// test of this package compares names.txt with Debian's package pci.ids. This command
// writes the file anew from that package:
//
//	go generate ./pkg/pciname
package pciname

//go:generate ../../scripts/debian-files.sh pci.ids usr/share/misc/pci.ids:../../bin/tools/pci.ids
//go:generate go test . -run TestNamesAreThoseOfThePackage -update
