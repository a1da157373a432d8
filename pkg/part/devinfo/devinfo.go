package devinfo

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
)

// deviceInfoDirs are Multus' directories of device information (the Network
// Plumbing Working Group's Device Information Specification, section 5). A path
// elsewhere is not Multus' own, and is not written to.
var deviceInfoDirs = []string{"/var/run/k8s.cni.cncf.io/devinfo/", "/run/k8s.cni.cncf.io/devinfo/"}

// deviceInfo is the specification's file for a PCI device, version 1.1.0.
type deviceInfo struct {
	Type    string        `json:"type"`
	Version string        `json:"version"`
	PCI     deviceInfoPCI `json:"pci"`
}

type deviceInfoPCI struct {
	Address    string `json:"pci-address"`
	RDMADevice string `json:"rdma-device,omitempty"`
}

// Part is the file that ADD writes for Multus, and DEL removes.
type Part struct{ attachment.Base }

// Name implements [attachment.Part].
func (Part) Name() string { return "devinfo" }

// Claim records the path of the file, unless the runtime requests none or the
// file exists: an existing file is the device plugin's, and stays.
func (Part) Claim(_ context.Context, tx *attachment.Tx) error {
	asked := tx.Conf.RuntimeConfig.CNIDeviceInfoFile
	if asked == "" {
		return nil
	}
	path := filepath.Clean(asked)
	if !below(deviceInfoDirs, path) {
		return failure.New(failure.InvalidConfig, "CNIDeviceInfoFile %q is not in %s", asked, deviceInfoDirs[0]).Cure("remove it: the runtime sets it")
	}
	if _, err := os.Lstat(path); err != nil {
		tx.Record.DeviceInfo = path
	}
	return nil
}

// Recorded implements [attachment.Part].
func (Part) Recorded(r *ledger.Record) bool { return r.DeviceInfo != "" }

// Apply writes the file.
func (Part) Apply(_ context.Context, tx *attachment.Tx) error {
	r := tx.Record
	if r.DeviceInfo == "" || r.Loan == nil || r.Loan.PCI == "" {
		return nil
	}
	info := deviceInfo{Type: "pci", Version: "1.1.0", PCI: deviceInfoPCI{Address: r.Loan.PCI}}
	if r.RDMA != nil {
		info.PCI.RDMADevice = r.RDMA.Devices[0].Name
	}
	data, err := json.Marshal(info)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(r.DeviceInfo), 0o755); err != nil {
		return failure.Wrap(err, failure.IO, "device information")
	}
	// O_EXCL: not through a link, and not into a new file of another.
	f, err := os.OpenFile(r.DeviceInfo, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		r.DeviceInfo = "" // an existing file must not be removed
		return failure.Wrap(err, failure.IO, "device information")
	}
	_, err = f.Write(data)
	return failure.Wrap(errors.Join(err, f.Close()), failure.IO, "device information")
}

// Release removes the file that ADD wrote.
func (Part) Release(_ context.Context, releasing *attachment.Releasing) error {
	r := releasing.Record
	if r.DeviceInfo == "" || !below(deviceInfoDirs, filepath.Clean(r.DeviceInfo)) {
		return nil
	}
	if err := os.Remove(r.DeviceInfo); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failure.Wrap(err, failure.IO, "device information")
	}
	return nil
}

func below(dirs []string, path string) bool {
	for _, d := range dirs {
		if strings.HasPrefix(path, d) {
			return true
		}
	}
	return false
}
