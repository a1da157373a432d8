// Package pciname names NICs for people: "ConnectX-7" rather than "15b3:1021".
//
// names.txt has the devices of the vendors whose drivers have RDMA, from the
// database of the PCI ID Project (https://pci-ids.ucw.cz), so that the names are
// there in an image without files. Go's only library (github.com/jaypipes/pcidb)
// wants the database on the host or from the network. The test of this package
// writes the file from Debian's package pci.ids, and compares them:
//
//	go generate ./pkg/pciname
package pciname

//go:generate ../../scripts/debian-files.sh pci.ids usr/share/misc/pci.ids:../../bin/tools/pci.ids
//go:generate go test . -run TestNamesAreThoseOfThePackage -update
