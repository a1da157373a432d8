package deviceplugin

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/deviceplugin/kubeletdir"
)

// deviceInfo is a device information file of a device plugin (Network Plumbing Working Group,
// Device Information Specification 1.1.0, section 5). Multus finds the file by its name, and copies
// it to where the CNI plugin and network-status expect it.
type deviceInfo struct {
	Type    string        `json:"type"`
	Version string        `json:"version"`
	PCI     deviceInfoPCI `json:"pci"`
	// Resource is not part of the specification. It marks a file that this package has written.
	Resource string `json:"rail-cni.io/resource"`
}

type deviceInfoPCI struct {
	Address    string `json:"pci-address"`
	PF         string `json:"pf-pci-address,omitempty"`
	RDMADevice string `json:"rdma-device,omitempty"`
}

// infoSuffix ends the names of the files.
const infoSuffix = "-device.json"

// freshInfo is how long a file is kept although PodResources does not show its device: the kubelet
// shows the device a moment after Allocate.
const freshInfo = time.Minute

func infoName(resource, id string) string {
	return strings.ReplaceAll(resource+"-"+id, "/", "-") + infoSuffix
}

// writeDeviceInfo writes the file of a device.
func (p *Plugin) writeDeviceInfo(resource string, n *NIC) error {
	if p.DevInfoDir == "" {
		return nil
	}
	info := deviceInfo{
		Type: "pci", Version: "1.1.0", Resource: resource,
		PCI: deviceInfoPCI{Address: n.PCI, PF: n.Parent},
	}
	if len(n.RDMA) > 0 {
		info.PCI.RDMADevice = n.RDMA[0]
	}
	p.infoMu.Lock()
	defer p.infoMu.Unlock()
	return writeJSON(filepath.Join(p.DevInfoDir, infoName(resource, n.PCI)), info)
}

// writeJSON replaces a file that everybody may read. It makes the directory of the file. If the
// process is killed, the former file remains, and perhaps a temporary file that [removeTemporary]
// recognizes.
func writeJSON(path string, value any) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, temporary+"*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // no effect once the file is renamed
	_, err = f.Write(append(data, '\n'))
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// temporary begins the names of temporary files.
const temporary = ".rail-cni-"

// removeTemporary removes the temporary files that a killed process left in the directory.
func removeTemporary(dir string) {
	files, _ := filepath.Glob(filepath.Join(dir, temporary+"*")) // the pattern is well-formed
	for _, file := range files {
		if info, err := os.Lstat(file); err == nil && time.Since(info.ModTime()) > freshInfo {
			_ = os.Remove(file)
		}
	}
}

// cleanDeviceInfo removes the files of devices that no container has and that are not lent. While
// the kubelet does not report what containers have, it removes nothing. It never removes files of
// other device plugins.
func (p *Plugin) cleanDeviceInfo(ctx context.Context, inventory *Inventory) {
	if p.DevInfoDir == "" {
		return
	}
	removeTemporary(p.DevInfoDir)
	files := p.deviceInfoFiles()
	if len(files) == 0 {
		return
	}
	containers, err := p.containers.Containers(ctx)
	if err != nil {
		return
	}
	for path, d := range files {
		n := inventory.find(d.id)
		held := slices.ContainsFunc(containers, func(c kubeletdir.Container) bool { return slices.Contains(c.Devices[d.resource], d.id) })
		if held || n != nil && n.Lent != nil {
			continue
		}
		if err := p.removeOldInfo(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.Log.Warn("cannot remove the device information", "file", path, "err", err)
		}
	}
}

// removeOldInfo removes a file, unless Allocate has written it again.
func (p *Plugin) removeOldInfo(path string) error {
	p.infoMu.Lock()
	defer p.infoMu.Unlock()
	if info, err := os.Lstat(path); err != nil || p.Now().Sub(info.ModTime()) < freshInfo {
		return nil
	}
	return os.Remove(path)
}

// deviceInfoFiles returns the files that this package has written, with their devices.
func (p *Plugin) deviceInfoFiles() map[string]device {
	files := map[string]device{}
	entries, _ := os.ReadDir(p.DevInfoDir) // without the directory there are none
	for _, e := range entries {
		if !e.Type().IsRegular() || !strings.HasSuffix(e.Name(), infoSuffix) {
			continue
		}
		path := filepath.Join(p.DevInfoDir, e.Name())
		data, err := os.ReadFile(path)
		var info deviceInfo
		if err != nil || json.Unmarshal(data, &info) != nil {
			continue
		}
		if info.Resource != "" && e.Name() == infoName(info.Resource, info.PCI.Address) {
			files[path] = device{info.Resource, info.PCI.Address}
		}
	}
	return files
}
