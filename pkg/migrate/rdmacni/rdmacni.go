package rdmacni

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/part/rdmadev"
	"github.com/rail-cni/rail-cni/pkg/rdma"
	"github.com/rail-cni/rail-cni/pkg/wait"
)

// returnWait is how long to wait for a device that the kernel is returning from a dead pod.
const returnWait = 5 * time.Second

// Records is the directory in which rdma-cni keeps its records. There is one file for each
// attachment, named <network>-<container id>-<ifname>.
const Records = "/var/lib/cni/rdma"

// record is the content of a record's file.
type record struct {
	DeviceID string `json:"deviceID"` // PCI address or auxiliary device
	Name     string `json:"sandboxRdmaDevName"`
	PodName  string `json:"containerRdmaDevName"`
}

// Part ends the attachments that rdma-cni began.
type Part struct {
	attachment.Base
	// Dir is the directory of the records. It is [Records] except in tests.
	Dir string
	// Off is true if the configuration turns RDMA off.
	Off bool
}

// Name implements [attachment.Part].
func (Part) Name() string { return "rdma-cni" }

// TakeOver returns the RDMA device in rdma-cni's record to the host under its earlier name, and
// removes the record. If the pod netns is gone, rdma-cni itself does neither, or it fails forever.
//
// If neither rdma-cni nor rail-cni has a record, TakeOver returns the RDMA
// devices in the pod netns that belong to the NIC of its interface.
func (p Part) TakeOver(ctx context.Context, u *attachment.Upstream) error {
	r, forget := p.read(u)
	if r != nil {
		if err := end(ctx, u, r); err != nil {
			return err
		}
	} else if !u.Recorded && u.Pod != nil && !p.Off {
		if err := endUnrecorded(ctx, u); err != nil {
			return err
		}
	}
	return forget()
}

// read returns rdma-cni's record of the attachment. It returns nil if there is no record, or if the
// record cannot be read. The function forget removes the record's file.
func (p Part) read(u *attachment.Upstream) (r *record, forget func() error) {
	nothing := func() error { return nil }
	root, err := os.OpenRoot(p.Dir)
	if err != nil {
		return nil, nothing // rdma-cni was never used here
	}
	defer root.Close()
	name := strings.Join([]string{u.Conf.Name, u.ContainerID, u.IfName}, "-")
	data, err := root.ReadFile(name)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			u.Node.Log.Warn("cannot read a record of rdma-cni", "file", name, "err", err)
		}
		return nil, nothing
	}
	forget = func() error {
		root, err := os.OpenRoot(p.Dir)
		if err != nil {
			return err
		}
		defer root.Close()
		if err := root.Remove(name); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	r = &record{}
	if err := json.Unmarshal(data, r); err != nil || r.DeviceID == "" {
		u.Node.Log.Warn("removing an unusable record of rdma-cni", "file", name, "content", string(data))
		return nil, forget
	}
	return r, forget
}

// end returns the RDMA device in rdma-cni's record to the host. The device is in the pod netns,
// which is nil if it is gone, or in the namespace to which the kernel moves the device when the pod
// netns ends. It is not an error if the device does not exist or has another holder.
func end(ctx context.Context, u *attachment.Upstream, r *record) error {
	n := u.Node
	if rdmadev.HeldByAnother(n, r.DeviceID, u.Key) {
		return nil
	}
	places := []*netns.Netns{n.Netns}
	if u.Pod != nil {
		places = []*netns.Netns{u.Pod, n.Netns}
	}
	if first, err := netns.Open(netns.InitPath); err == nil {
		defer first.Close()
		if !first.ID.Equal(n.Netns.ID) {
			places = append(places, first)
		}
	}
	host := n.Host()
	waiting, cancel := context.WithTimeout(ctx, returnWait)
	defer cancel()
	found := false
	err := wait.Until(waiting, 10*time.Millisecond, func() (done bool, err error) {
		for _, ns := range places {
			found, err = endIn(ctx, n, r, ns)
			if found = found || errors.Is(err, rdma.ErrNoRDMA); found {
				return true, nil
			}
			if err != nil {
				return true, err
			}
		}
		return !host.Bound(r.DeviceID), nil
	})
	if found || err != nil && !wait.Ended(waiting, err) {
		return err
	}
	n.Log.Warn("cannot find the RDMA device of rdma-cni's record",
		"device", r.Name, "parentDev", r.DeviceID, "netns", u.Netns)
	return nil
}

// endIn returns the device to the host if the device is in ns. It reports whether the device was in
// ns.
func endIn(ctx context.Context, n *attachment.Node, r *record, ns *netns.Netns) (bool, error) {
	core, err := rdma.Open(ns)
	if err != nil {
		return false, err
	}
	defer core.Close()
	devices, err := core.ByParent(r.DeviceID)
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(devices, func(d rdma.Device) bool { return d.Name == r.PodName || d.Name == r.Name })
	if i < 0 && len(devices) == 1 {
		i = 0 // the pod may have renamed the device
	}
	if i < 0 {
		return false, nil
	}
	d := devices[i]
	name := r.Name
	if name == "" {
		name = d.Name
	}
	if ns == n.Netns {
		return true, rdmadev.RestoreName(ctx, n, core, ns, &d, name)
	}
	return rdmadev.ReturnDevice(ctx, n, ledger.RDMADevice{Name: name, NodeGUID: d.NodeGUID, ParentDev: d.ParentDev}, ns, n.Netns)
}

// endUnrecorded returns the RDMA devices in the pod netns that belong to the
// NIC of the attachment's interface.
func endUnrecorded(ctx context.Context, u *attachment.Upstream) error {
	n, pod := u.Node, u.Pod
	l, err := link.ByName(pod, u.IfName)
	if errors.Is(err, link.ErrNotFound) || err == nil && !l.HasParent() {
		return nil
	}
	if err != nil {
		return err
	}
	core, err := rdma.Open(pod)
	if errors.Is(err, rdma.ErrNoRDMA) {
		return nil
	}
	if err != nil {
		return err
	}
	defer core.Close()
	// In shared mode every namespace sees the device, and the device was not moved.
	if mode, err := core.Mode(); err != nil || mode != rdma.Exclusive {
		return err
	}
	if rdmadev.HeldByAnother(n, l.ParentDev, u.Key) {
		return nil
	}
	devices, err := core.ByParent(l.ParentDev)
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range devices {
		_, err := rdmadev.ReturnDevice(ctx, n, ledger.RDMADevice{Name: d.Name, NodeGUID: d.NodeGUID, ParentDev: d.ParentDev}, pod, n.Netns)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
