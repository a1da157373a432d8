package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// PCI makes a PCI function for each of the node's rails in /sys/bus/pci/devices, so that a
// device plugin can allocate rails by their addresses. There it hides the machine's own
// functions. PCI returns the addresses, in the order of [Options].Rails.
//
// A plugin finds the NIC by the address, and not the address by the NIC: rtnetlink reports
// no parent of a veth. Kernels before 5.14 report none for any NIC.
func (n *Node) PCI(ctx context.Context) (addresses []string, err error) {
	for i, name := range n.cluster.options.Rails {
		address := fmt.Sprintf("0000:%02x:00.0", 0x41+i)
		if err := n.function(filepath.Join("pci0000:40", fmt.Sprintf("0000:40:%02x.0", i+1), address), name); err != nil {
			return nil, err
		}
		addresses = append(addresses, address)
	}
	_, err = n.Exec(ctx, "mount", "--bind", pciBus, "/sys/bus/pci/devices")
	return addresses, err
}

// The directories of [Node.PCI] on the node.
const (
	pciDevices = "/run/pci/devices"
	pciDriver  = "/run/pci/drivers/mlx5_core"
	pciBus     = "/run/pci/bus" // links to the devices, by address
)

// function makes the PCI function of a NIC. path has the host bridge, the bridges and the
// address.
func (n *Node) function(path, netdev string) error {
	dir := filepath.Join(pciDevices, path)
	var errs []error
	for _, made := range []string{filepath.Join(dir, "net", netdev), pciDriver, pciBus} {
		errs = append(errs, os.MkdirAll(n.Path(made), 0o755))
	}
	for file, text := range map[string]string{"class": "0x020000", "vendor": "0x15b3", "device": "0x1021", "numa_node": "0"} {
		errs = append(errs, os.WriteFile(n.Path(filepath.Join(dir, file)), []byte(text+"\n"), 0o644))
	}
	return errors.Join(append(errs,
		os.Symlink(pciDriver, n.Path(filepath.Join(dir, "driver"))),
		os.Symlink(dir, n.Path(filepath.Join(pciBus, filepath.Base(path)))))...)
}
