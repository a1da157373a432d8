package attach

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// PeerRecords is where rdma-cni (k8snetworkplumbingwg) keeps its records: one
// file for each attachment, named <network>-<container id>-<ifname>.
const PeerRecords = "/var/lib/cni/rdma"

// peerRecord is the content of such a file.
type peerRecord struct {
	DeviceID string `json:"deviceID"` // PCI address or auxiliary device
	Name     string `json:"sandboxRdmaDevName"`
	PodName  string `json:"containerRdmaDevName"`
}

// takeOver ends what rdma-cni began for this attachment: the RDMA device comes
// home under its name, and the record goes. rdma-cni itself leaves both alone
// once the pod netns is gone, or fails for ever.
//
// Where neither of us has a record, byInterface, the RDMA devices that are in
// the pod netns and belong to the NIC of its interface come home.
func (n *Node) takeOver(ctx context.Context, c *Call, p Chained, byInterface bool) error {
	pod, err := n.podOf(c)
	if err != nil {
		return err
	}
	defer pod.Close()
	r, forget := n.readPeer(c, p.Peer)
	if r != nil {
		if err := n.endPeer(ctx, c, r, pod); err != nil {
			return err
		}
	} else if byInterface && pod != nil && p.Conf.RDMA.RDMA != netconf.RDMAOff {
		if err := n.endUnrecorded(ctx, c, pod); err != nil {
			return err
		}
	}
	return forget()
}

// podOf opens the pod netns of a DEL, nil if there is none any more.
func (n *Node) podOf(c *Call) (*link.Netns, error) {
	if c.Netns == "" {
		return nil, nil
	}
	pod, err := link.OpenNetns(c.Netns)
	switch {
	case errors.Is(err, link.ErrNoNetns):
		return nil, nil
	case err != nil:
		return nil, err
	case pod.ID.Equal(n.Host.Netns.ID):
		pod.Close()
		return nil, nil
	}
	return pod, nil
}

// readPeer reads rdma-cni's record of the attachment, nil if there is none that
// can be understood. forget removes the file.
func (n *Node) readPeer(c *Call, dir string) (r *peerRecord, forget func() error) {
	nothing := func() error { return nil }
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nothing // rdma-cni was never here
	}
	defer root.Close()
	name := strings.Join([]string{c.Conf.Name, c.ContainerID, c.IfName}, "-")
	data, err := root.ReadFile(name)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			n.Log.Warn("rdma-cni's record of the attachment cannot be read", "file", name, "err", err)
		}
		return nil, nothing
	}
	forget = func() error {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return err
		}
		defer root.Close()
		if err := root.Remove(name); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	r = &peerRecord{}
	if err := json.Unmarshal(data, r); err != nil || r.DeviceID == "" {
		n.Log.Warn("rdma-cni's record of the attachment makes no sense and is removed", "file", name, "content", string(data))
		return nil, forget
	}
	return r, forget
}

// endPeer brings the RDMA device of rdma-cni's record home, from the pod netns
// (nil if it is gone), or from where the kernel puts it when that dies. One that
// is nowhere, or another attachment's by now, is no error: there is nothing to
// bring home.
func (n *Node) endPeer(ctx context.Context, c *Call, r *peerRecord, pod *link.Netns) error {
	if n.heldByAnother(r.DeviceID, c.Key) {
		return nil
	}
	places := []*link.Netns{n.Host.Netns}
	if pod != nil {
		places = []*link.Netns{pod, n.Host.Netns}
	}
	if first, err := link.OpenNetns(initNetns); err == nil {
		defer first.Close()
		if !first.ID.Equal(n.Host.Netns.ID) {
			places = append(places, first)
		}
	}
	for deadline := time.Now().Add(homeWait); ; time.Sleep(10 * time.Millisecond) {
		for _, ns := range places {
			found, err := n.endPeerIn(ctx, r, ns)
			if found || errors.Is(err, rdma.ErrNoRDMA) {
				return nil
			}
			if err != nil {
				return err
			}
		}
		if !n.bound(r.DeviceID) || time.Now().After(deadline) || ctx.Err() != nil {
			n.Log.Warn("the RDMA device of rdma-cni's record is neither on the host nor in the pod netns",
				"device", r.Name, "of", r.DeviceID, "netns", c.Netns)
			return nil
		}
	}
}

// endPeerIn brings the device home if it is in ns, and says whether it was.
func (n *Node) endPeerIn(ctx context.Context, r *peerRecord, ns *link.Netns) (bool, error) {
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
		i = 0 // renamed in the pod
	}
	if i < 0 {
		return false, nil
	}
	d := devices[i]
	name := r.Name
	if name == "" {
		name = d.Name
	}
	if ns == n.Host.Netns {
		return true, n.nameAgain(core, ns, &d, name)
	}
	return n.moveDeviceHome(ctx, ledger.RDMADevice{Name: name, NodeGUID: d.NodeGUID, ParentDev: d.ParentDev}, ns, n.Host.Netns)
}

// endUnrecorded brings home the RDMA devices in the pod netns that belong to
// the NIC of the attachment's interface.
func (n *Node) endUnrecorded(ctx context.Context, c *Call, pod *link.Netns) error {
	l, err := pod.ByName(c.IfName)
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
	// In shared mode every namespace sees it, and nothing was moved.
	if mode, err := core.Mode(); err != nil || mode != rdma.Exclusive {
		return err
	}
	if n.heldByAnother(l.ParentDev, c.Key) {
		return nil
	}
	devices, err := core.ByParent(l.ParentDev)
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range devices {
		_, err := n.moveDeviceHome(ctx, ledger.RDMADevice{Name: d.Name, NodeGUID: d.NodeGUID, ParentDev: d.ParentDev}, pod, n.Host.Netns)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
