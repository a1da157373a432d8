package deviceplugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	kubelet "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/rail-cni/rail-cni/pkg/deviceplugin/kubeletdir"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// The CDI specification of the node, and its kind.
const (
	cdiFile = "rail-cni.io-nic.json"
	cdiKind = "rail-cni.io/nic"
	// cdiVersion is the first version in which a device's name may begin with a digit.
	cdiVersion = "0.5.0"
)

// errNoCDIDir is the reason why a pool with cdi cannot allocate devices.
var errNoCDIDir = errors.New("rail-agent has no --cdi-dir")

// usesCDI reports whether containers get CDI devices.
func (p *Plugin) usesCDI() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cdi
}

// specification returns the CDI devices of the pools: one for each NIC, and one for each shared
// pool. A CDI device needs an edit, so a NIC without char devices has no CDI device.
func (p *Plugin) specification(pools []resource.Pool) *cdi.Spec {
	spec := &cdi.Spec{Version: cdiVersion, Kind: cdiKind}
	known := map[string]bool{}
	add := func(name string, paths []string, access string) {
		if len(paths) == 0 || known[name] {
			return
		}
		known[name] = true
		d := cdi.Device{Name: name}
		for _, path := range paths {
			d.ContainerEdits.DeviceNodes = append(d.ContainerEdits.DeviceNodes, &cdi.DeviceNode{Path: path, Permissions: access})
		}
		spec.Devices = append(spec.Devices, d)
	}
	for i := range pools {
		var all []string
		for j := range pools[i].NICs {
			n := &pools[i].NICs[j]
			if pools[i].Mode == resource.Shared {
				all = append(all, pools[i].CharDevices(n)...)
			} else {
				add(n.PCI, p.charDevices(leastOf(pools, n)), exclusiveAccess)
			}
		}
		if pools[i].Mode == resource.Shared {
			add(resource.CDIDevice(pools[i].Resource), p.charDevices(all), sharedAccess)
		}
	}
	return spec
}

// leastOf returns the char devices that all exclusive pools with the NIC hand out, because these
// pools share the NIC's CDI device.
func leastOf(pools []resource.Pool, n *resource.NIC) []string {
	least := n.CharDevices
	for i := range pools {
		if p := &pools[i]; p.Mode != resource.Shared && slices.ContainsFunc(p.NICs, func(o resource.NIC) bool { return o.PCI == n.PCI }) {
			all := p.CharDevices(n)
			least = slices.DeleteFunc(slices.Clone(least), func(path string) bool { return !slices.Contains(all, path) })
		}
	}
	return least
}

// writeCDI writes the specification of the pools, if it differs from the file. If the pools no
// longer have the device of a NIC that is lent, the device stays in the file, because a runtime
// needs it when a container starts again. Char devices that are missing while an RDMA device moves
// stay in the file for the same reason.
func (p *Plugin) writeCDI(pools []resource.Pool) error {
	if p.CDIDir == "" {
		return errNoCDIDir
	}
	p.cdiMu.Lock()
	defer p.cdiMu.Unlock()
	removeTemporary(p.CDIDir)
	path := filepath.Join(p.CDIDir, cdiFile)
	want := p.specification(pools)
	have := &cdi.Spec{}
	if data, err := os.ReadFile(path); err != nil || json.Unmarshal(data, have) != nil {
		have = &cdi.Spec{}
	}
	for _, d := range have.Devices {
		if p.lentNow(d.Name) && !slices.ContainsFunc(want.Devices, func(w cdi.Device) bool { return w.Name == d.Name }) {
			// Earlier versions gave every container the devices that manage a fabric.
			d.ContainerEdits.DeviceNodes = slices.DeleteFunc(d.ContainerEdits.DeviceNodes, func(node *cdi.DeviceNode) bool {
				return resource.ManagesFabric(node.Path) && !p.onEthernet(d.Name)
			})
			want.Devices = append(want.Devices, d)
		}
	}
	switch {
	case len(want.Devices) == 0: // a specification must have one
		return removeFile(path)
	case reflect.DeepEqual(have, want):
		return nil
	}
	return writeJSON(path, want)
}

func (p *Plugin) hasCDIFile() bool {
	return p.CDIDir != "" && kubeletdir.InodeOf(filepath.Join(p.CDIDir, cdiFile)) != kubeletdir.Inode{}
}

// lentNow reports whether the NIC with the PCI address was lent at the last scan.
func (p *Plugin) lentNow(pci string) bool {
	return p.scanned(pci, func(n *NIC) bool { return n.Lent != nil })
}

// onEthernet reports whether the NIC with the PCI address was known to be Ethernet at the last scan.
func (p *Plugin) onEthernet(pci string) bool {
	return p.scanned(pci, func(n *NIC) bool { return n.LinkType == resource.Ethernet })
}

// scanned reports whether the last scan found a NIC with the PCI address for which is returns true.
func (p *Plugin) scanned(pci string, is func(n *NIC) bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.inventory == nil {
		return false
	}
	n := p.inventory.find(pci)
	return n != nil && is(n)
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// cdiDevices returns the CDI devices with these names. When it returns, the devices are in the
// file.
func (p *Plugin) cdiDevices(names []string) ([]*kubelet.CDIDevice, error) {
	p.mu.Lock()
	pools := p.pools
	p.mu.Unlock()
	if err := p.writeCDI(pools); err != nil {
		return nil, err
	}
	written := map[string]bool{}
	for _, d := range p.specification(pools).Devices {
		written[d.Name] = true
	}
	var list []*kubelet.CDIDevice
	for _, name := range names {
		if !written[name] {
			return nil, fmt.Errorf("%s has no char device", name)
		}
		list = append(list, &kubelet.CDIDevice{Name: cdiKind + "=" + name})
	}
	return list, nil
}
