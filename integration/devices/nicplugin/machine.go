package nicplugin

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Function is a PCI function.
type Function struct {
	Address string
	Above   []string // the host bridge, then the bridges from there
	NUMA    int
}

// NICs has the NICs of the fixture, two behind a switch, with two of the GPUs:
//
//	NUMA 0   pci0000:00   switch A: NICs and GPUs 0, 1
//	                      switch B: NICs 2, 3, and behind a second switch GPUs 2, 3
//	NUMA 1   pci0000:80   switch C: NICs and GPUs 4, 5
//	         pci0000:c0   switch D: NICs and GPUs 6, 7
//
// So the distances between a NIC and a GPU are PIX, PXB, PHB, NODE and SYS.
var NICs, GPUs = functions() //nolint:revive // one drawing is about both

func functions() (nics, gpus []Function) {
	for i, side := range []struct {
		bridge, port string // the host bridge's first bus; the root port
		numa         int
	}{{"00", "01.0", 0}, {"00", "02.0", 0}, {"80", "01.0", 1}, {"c0", "01.0", 1}} {
		bus := 0x10*(i+1) + 1 // of the switch
		address := func(bus, device int) string { return fmt.Sprintf("0000:%02x:%02x.0", bus, device) }
		upstream := []string{"pci0000:" + side.bridge, "0000:" + side.bridge + ":" + side.port, address(bus, 0)}
		below := func(more ...string) []string { return slices.Concat(upstream, more) }
		for k := range 2 {
			gpu := below(address(bus+1, 2+k))
			if i == 1 {
				gpu = below(address(bus+1, 4), address(bus+6, 0), address(bus+7, k))
			}
			nics = append(nics, Function{address(bus+2+k, 0), below(address(bus+1, k)), side.numa})
			gpus = append(gpus, Function{address(bus+8+k, 0), gpu, side.numa})
		}
	}
	return nics, gpus
}

// Addresses returns the functions' PCI addresses.
func Addresses(fns []Function) []string {
	list := make([]string, 0, len(fns))
	for _, f := range fns {
		list = append(list, f.Address)
	}
	return list
}

// NICName returns the name of a NIC's netdev: ens11np0 to ens18np0.
func NICName(i int) string { return fmt.Sprintf("ens%dnp0", 11+i) }

// WriteSysfs writes the PCI functions into a directory, as below /sys.
func WriteSysfs(sys string) error {
	devices := filepath.Join(sys, "bus", "pci", "devices")
	if err := os.MkdirAll(devices, 0o755); err != nil {
		return err
	}
	put := func(f Function, class, vendor, device string) error {
		below := filepath.Join(slices.Concat([]string{"devices"}, f.Above, []string{f.Address})...)
		dir := filepath.Join(sys, below)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		for name, text := range map[string]string{"class": class, "vendor": vendor, "device": device, "numa_node": fmt.Sprint(f.NUMA)} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text+"\n"), 0o644); err != nil {
				return err
			}
		}
		return os.Symlink(filepath.Join("..", "..", "..", below), filepath.Join(devices, f.Address))
	}
	for _, bridge := range bridges() {
		if err := put(bridge, "0x060400", "0x104c", "0x8232"); err != nil {
			return err
		}
	}
	for _, f := range NICs {
		if err := put(f, "0x020000", "0x15b3", "0x1021"); err != nil {
			return err
		}
	}
	for _, f := range GPUs {
		if err := put(f, "0x030200", "0x10de", "0x2330"); err != nil {
			return err
		}
	}
	return nil
}

// bridges returns the PCI bridges above the NICs and GPUs.
func bridges() (list []Function) {
	known := map[string]bool{}
	for _, f := range slices.Concat(NICs, GPUs) {
		for i, bridge := range f.Above {
			if i > 0 && !known[bridge] { // the first is the host bridge
				known[bridge] = true
				list = append(list, Function{bridge, f.Above[:i], f.NUMA})
			}
		}
	}
	return list
}
