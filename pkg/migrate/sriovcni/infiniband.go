package sriovcni

import (
	"context"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link/sriov"
	"github.com/rail-cni/rail-cni/pkg/part/vf"
)

// InfiniBandDir is the directory in which ib-sriov-cni keeps one file for each attachment, named <container
// id>-<ifname> (see its pkg/config and pkg/utils).
const InfiniBandDir = "/var/lib/cni/ib-sriov"

// InfiniBand returns the part that ends attachments of ib-sriov-cni. This part unbinds and binds
// the driver of the virtual function, which returns the interface and the RDMA device from any pod.
// It must come before the part of the NIC. dir is [InfiniBandDir] except in tests.
func InfiniBand(dir string) attachment.Part { return infiniBand{dir: dir} }

type infiniBand struct {
	attachment.Base
	dir string
}

// Name implements [attachment.Part].
func (infiniBand) Name() string { return "ib-sriov-cni" }

// keptInfiniBand is the content of the file that ib-sriov-cni keeps for an attachment.
type keptInfiniBand struct {
	DeviceID     string
	HostIFNames  string
	HostIFGUID   string // "" if the network had no GUID
	LinkState    string `json:"link_state"`
	RdmaNetState struct{ SandboxRdmaDevName string }
}

// TakeOver restores the GUID and the link state of the function, unbinds and binds its driver, and removes the file.
func (p infiniBand) TakeOver(ctx context.Context, u *attachment.Upstream) error {
	k := &keptInfiniBand{}
	if !load(p.dir, u, "ib-sriov-cni", k) {
		return nil
	}
	host := u.Node.Host()
	if _, exists := host.FunctionNumber(host.PhysicalFunction(k.DeviceID), k.DeviceID); !exists || held(u, k.DeviceID) || p.usedByAnother(u, k.DeviceID) {
		return forget(p.dir, u)
	}
	err := vf.Set(ctx, host, k.DeviceID, k.original())
	if err == nil {
		err = vf.Rebind(ctx, u.Node, vf.Names{PCI: k.DeviceID, Interface: k.HostIFNames, RDMA: k.RdmaNetState.SandboxRdmaDevName})
	}
	if err != nil {
		return failure.From(err, failure.NotReturned, "return ib-sriov-cni's virtual function %s", k.DeviceID).Cure("a DEL tries again")
	}
	return forget(p.dir, u)
}

// original returns the settings that ib-sriov-cni has changed, with their earlier values. ib-sriov-cni assumes that the
// link state was "auto", and does not read it.
func (k *keptInfiniBand) original() *sriov.Settings {
	w := &sriov.Settings{}
	if mac, err := net.ParseMAC(k.HostIFGUID); err == nil && len(mac) == 8 {
		guid := binary.BigEndian.Uint64(mac)
		if !sriov.IsGUID(guid) {
			guid = sriov.NoGUID
		}
		w.GUID = &guid
	}
	if k.LinkState != "" {
		w.LinkState = new(uint32)
	}
	return w
}

// usedByAnother reports whether ib-sriov-cni has lent the function to another pod in the meantime.
// In this case a newer file names the function.
func (p infiniBand) usedByAnother(u *attachment.Upstream, device string) bool {
	self, err := os.Stat(filepath.Join(p.dir, file(u)))
	if err != nil {
		return false
	}
	entries, _ := os.ReadDir(p.dir) // [load] has just opened it
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || e.Name() == file(u) || !info.Mode().IsRegular() || !info.ModTime().After(self.ModTime()) {
			continue
		}
		other := &keptInfiniBand{}
		if decode(p.dir, e.Name(), other) == nil && other.DeviceID == device {
			return true
		}
	}
	return false
}
