package devices

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/doctor/collect/files"
	"github.com/rail-cni/rail-cni/pkg/doctor/fact"
	"github.com/rail-cni/rail-cni/pkg/inventory"
)

// onPCI sets the facts about the NIC's PCI function and about the bridges above the function.
func (c *Reader) onPCI(to *fact.NIC, list *inventory.NICList, n *inventory.NIC) {
	const none = "sysfs: it has no PCI function"
	if n.PCI == "" {
		to.PCIe, to.IOMMU, to.VFs = fact.Known(fact.PCIe{}, none), fact.Known("", none), fact.Known(fact.VFs{}, none)
		to.Redirecting = fact.Known([]string{}, none)
		return
	}
	address := n.PCI
	if n.Parent != "" {
		address = n.Parent // a virtual function uses the link of its physical function
	}
	link, err := c.pcieLink(address, above(n.Path))
	to.PCIe = fact.From(link, c.pci(address, "current_link_speed"), err)
	group, err := c.iommu(n.PCI)
	to.IOMMU = fact.From(group, c.pci(n.PCI, "iommu_group/type"), err)
	bridges, err := c.redirecting(n.Path)
	to.Redirecting = fact.From(bridges, "PCI configuration space", err)
	functions, err := c.functions(list, n)
	to.VFs = fact.From(functions, c.pci(n.PCI, "sriov_numvfs"), err)
}

// pci returns the path of a file of a PCI function.
func (c *Reader) pci(address, file string) string {
	return filepath.Join(c.Sys, "bus/pci/devices", address, file)
}

// above returns the bridge directly above a device. It returns "" if there is none.
func above(path []string) string {
	if len(path) == 0 || strings.HasPrefix(path[len(path)-1], "pci") {
		return ""
	}
	return path[len(path)-1]
}

// pcieLink returns the PCIe link of a function. The maximum speed and width of the link are the
// lower ones of the maximums of its two ends. For a function that is not on PCI Express, the kernel
// has no files about a link.
func (c *Reader) pcieLink(address, bridge string) (l fact.PCIe, err error) {
	exists, err := files.Exists(c.pci(address, "current_link_speed"))
	if err != nil || !exists {
		return l, err
	}
	if none, err := c.withoutLink(address); err != nil || none {
		return l, err
	}
	if l.GTs, l.Width, err = c.linkEnd(address, "current"); err != nil {
		return l, err
	}
	if l.MaxGTs, l.MaxWidth, err = c.linkEnd(address, "max"); err != nil || bridge == "" {
		return l, err
	}
	if exists, err := files.Exists(c.pci(bridge, "max_link_speed")); err != nil || !exists {
		return l, err
	}
	speed, width, err := c.linkEnd(bridge, "max")
	l.MaxGTs, l.MaxWidth = min(l.MaxGTs, speed), min(l.MaxWidth, width)
	return l, err
}

// withoutLink reports whether a function has no link. This is so for a function that is built into
// the root complex. It is also so for a virtual function in a virtual machine, because the machine
// does not see the physical function. The link of any other NIC that answers has a width.
func (c *Reader) withoutLink(address string) (bool, error) {
	maxWidth, err := files.ReadText(c.pci(address, "max_link_width"))
	if err != nil || maxWidth == "0" {
		return err == nil, err
	}
	width, err := files.ReadText(c.pci(address, "current_link_width"))
	return width == "0", err
}

// linkEnd returns the speed and the width of a link, as one end of the link reports them. The
// kernel writes a speed as "16.0 GT/s PCIe".
func (c *Reader) linkEnd(address, which string) (gts float64, width int, err error) {
	speedText, err := files.ReadText(c.pci(address, which+"_link_speed"))
	if err != nil {
		return 0, 0, err
	}
	widthText, err := files.ReadText(c.pci(address, which+"_link_width"))
	if err != nil {
		return 0, 0, err
	}
	number, _, _ := strings.Cut(speedText, " ")
	gts, err = strconv.ParseFloat(number, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("the %s link speed is %q", which, speedText)
	}
	if width, err = strconv.Atoi(widthText); err != nil || width < 1 || width > 32 {
		return 0, 0, fmt.Errorf("the %s link width is %q", which, widthText)
	}
	return gts, width, nil
}

// iommu returns the type of the function's IOMMU group. It returns "" if the function is in no
// group.
func (c *Reader) iommu(address string) (string, error) {
	exists, err := files.Exists(c.pci(address, "iommu_group"))
	if err != nil || !exists {
		return "", err
	}
	return files.ReadText(c.pci(address, "iommu_group/type"))
}

// functions returns the facts about the virtual functions of a physical function.
func (c *Reader) functions(list *inventory.NICList, n *inventory.NIC) (v fact.VFs, err error) {
	text, err := files.ReadText(c.pci(n.PCI, "sriov_numvfs"))
	if errors.Is(err, fs.ErrNotExist) {
		return v, nil
	}
	if err != nil {
		return v, err
	}
	if v.Count, err = strconv.Atoi(text); err != nil || v.Count == 0 {
		return v, err
	}
	v.Mode = "legacy"
	if slices.ContainsFunc(list.NICs, func(other inventory.NIC) bool { return other.Representor && other.PCI == n.PCI }) {
		v.Mode = "switchdev"
	}
	return v, nil
}

// These are constants of the configuration space (PCI Express Base Specification 6.0, section 7).
const (
	headerSize      = 64 // the number of bytes that ordinary users may read
	capabilityList  = 0x34
	capabilityPCIe  = 0x10
	firstExtended   = 0x100
	extendedACS     = 0x0d
	redirectRequest = 1 << 2 // a bit of the ACS control register
	redirectReply   = 1 << 3
	switchUpstream  = 5 // a port type in the PCI Express capabilities register
	switchDown      = 6
	maxListed       = 256 // the maximum number of entries of a list, which may contain a loop
)

// redirecting returns the ports of PCIe switches on the path that send requests or completions
// between devices up to the root complex. Root ports do not count, because everything that passes a
// root port goes to the root complex anyway.
func (c *Reader) redirecting(path []string) ([]string, error) {
	found := []string{}
	for _, bridge := range path {
		if strings.HasPrefix(bridge, "pci") {
			continue // the host bridge
		}
		config, err := files.ReadText(c.pci(bridge, "config"))
		switch {
		case err != nil:
			return nil, err
		case len(config) <= headerSize:
			return nil, fmt.Errorf("bridge %s: the configuration space ends after %d bytes: %w", bridge, len(config), files.ErrRoot)
		}
		if redirects([]byte(config)) {
			found = append(found, bridge)
		}
	}
	return found, nil
}

// redirects reports whether a configuration space belongs to a port of a switch that redirects
// requests or completions.
func redirects(config []byte) bool {
	kind := portType(config)
	if kind != switchUpstream && kind != switchDown {
		return false
	}
	off := firstExtended
	for range maxListed {
		if off < firstExtended || off+8 > len(config) {
			return false
		}
		header := binary.LittleEndian.Uint32(config[off:])
		if header&0xffff == extendedACS {
			return binary.LittleEndian.Uint16(config[off+6:])&(redirectRequest|redirectReply) != 0
		}
		off = int(header >> 20)
	}
	return false
}

// portType returns the type of the port. It returns -1 if the function does not have the PCI
// Express capability.
func portType(config []byte) int {
	off := int(config[capabilityList])
	for range maxListed {
		if off < headerSize || off+4 > len(config) {
			return -1
		}
		if config[off] == capabilityPCIe {
			return int(binary.LittleEndian.Uint16(config[off+2:])>>4) & 0xf
		}
		off = int(config[off+1])
	}
	return -1
}

// managedBy returns the network manager that configures the host's interface with this index. It
// returns "" if none does. The index 0 stands for a NIC without an interface on the host.
func (c *Reader) managedBy(index int) fact.Fact[string] {
	const source = "the state files of NetworkManager and systemd-networkd"
	if index == 0 {
		return fact.Known("", source)
	}
	for _, m := range []struct{ name, process, file, key string }{
		{"NetworkManager", "NetworkManager", "run/NetworkManager/devices", "managed"},
		{"systemd-networkd", "systemd-network", "run/systemd/netif/links", "ADMIN_STATE"},
	} {
		path := filepath.Join(c.HostPath(m.file), strconv.Itoa(index))
		text, err := files.ReadText(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fact.Failed[string](path, err)
		}
		if !manages(text, m.key) {
			continue
		}
		// The state files of a network manager remain after the manager has ended.
		processes, err := c.Processes()
		if err != nil {
			return fact.Failed[string](path, err)
		}
		if runs, err := processes.Runs(m.process); runs || err != nil { // if there is an error, the manager may run in another PID namespace
			return fact.Known(m.name, path)
		}
	}
	return fact.Known("", source)
}

// manages reports whether the text of a state file shows that the interface is managed. State files
// are key files: NetworkManager writes "managed=true", and networkd writes
// "ADMIN_STATE=configured".
func manages(text, key string) bool {
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && name == key {
			return slices.Contains([]string{"true", "configuring", "configured", "failed"}, value)
		}
	}
	return false
}
