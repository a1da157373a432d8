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

// deviceInfoDirs lists the directories in which Multus keeps device information (the Network
// Plumbing Working Group's Device Information Specification, section 5). A path elsewhere does not
// come from Multus, so no file is written there.
var deviceInfoDirs = []string{"/var/run/k8s.cni.cncf.io/devinfo/", "/run/k8s.cni.cncf.io/devinfo/"}

// deviceInfo is the content of the file for a PCI device, version 1.1.0 of the specification.
type deviceInfo struct {
	Type    string        `json:"type"`
	Version string        `json:"version"`
	PCI     deviceInfoPCI `json:"pci"`
}

type deviceInfoPCI struct {
	Address    string `json:"pci-address"`
	RDMADevice string `json:"rdma-device,omitempty"`
}

// Part is the file that ADD writes for Multus and DEL removes.
type Part struct{ attachment.Base }

// Name implements [attachment.Part].
func (Part) Name() string { return "devinfo" }

// Claim records the path of the file. It records none if the runtime requests no file, or if the
// file already exists: an existing file belongs to the device plugin and stays.
func (Part) Claim(_ context.Context, tx *attachment.Tx) error {
	asked := tx.Conf.RuntimeConfig.CNIDeviceInfoFile
	if asked == "" {
		return nil
	}
	path := filepath.Clean(asked)
	if !below(deviceInfoDirs, path) {
		return failure.New(failure.InvalidConfig, "CNIDeviceInfoFile %q is not in %s", asked, deviceInfoDirs[0]).Cure("remove the key: the runtime sets it")
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
	// O_EXCL makes sure that the file is not written through a link or into a file that another
	// process has just made.
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
