package inventory

import (
	"errors"
	"fmt"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// Namespaces has the network namespaces of the host and of pods. Each of them is opened only once.
// They must be closed soon, because the NICs in an open namespace cannot return. The zero value of
// Namespaces is ready to use.
type Namespaces struct {
	// HostNetns is the netns of the host. Close leaves it open. If HostNetns is nil, the netns of
	// the calling thread is opened.
	HostNetns *netns.Netns

	opened map[string]*Namespace
}

// Namespace is a network namespace.
type Namespace struct {
	Netns *netns.Netns // nil if it could not be opened
	Err   error        // why Netns is nil
	Core  *rdma.Core   // nil before Devices is called, and if the kernel has no RDMA core

	keep    bool // Close leaves the namespace open
	listed  bool
	devices []rdma.Device
	unread  error // the reason why devices is not known
}

// errPodGone is the error that the pod netns is gone.
var errPodGone = errors.New("the pod netns is gone")

// Close closes all namespaces that n has opened.
func (n *Namespaces) Close() {
	for _, ns := range n.opened {
		ns.Core.Close()
		if ns.Netns != nil && !ns.keep {
			ns.Netns.Close()
		}
	}
	n.opened = nil
}

// Host returns the host netns, in which shared RDMA devices are visible.
func (n *Namespaces) Host() *Namespace {
	return n.open("host", func() (*Namespace, error) {
		if n.HostNetns != nil {
			return &Namespace{Netns: n.HostNetns, keep: true}, nil
		}
		host, err := netns.Current()
		return &Namespace{Netns: host}, err
	})
}

// Pod returns the pod netns of the record if the recorded path leads to that netns. So it never
// opens a netns that is about to end.
func (n *Namespaces) Pod(r *ledger.Record) *Namespace {
	return n.open(podKey(r), func() (*Namespace, error) {
		pod := r.OpenPod()
		if pod == nil {
			return &Namespace{}, fmt.Errorf("%s: %w", r.Holder(), errPodGone)
		}
		return &Namespace{Netns: pod}, nil
	})
}

// FindPod returns the pod netns of the record, as Pod does. If the recorded path no longer leads to
// that netns, FindPod searches for the netns.
func (n *Namespaces) FindPod(r *ledger.Record) *Namespace {
	return n.open("found "+podKey(r), func() (*Namespace, error) {
		pod, err := netns.Find(r.Netns.ID, r.Netns.Path)
		if err == nil && pod == nil {
			err = errPodGone
		}
		return &Namespace{Netns: pod}, err
	})
}

func podKey(r *ledger.Record) string { return r.Netns.ID.String() + r.Netns.Path }

func (n *Namespaces) open(key string, open func() (*Namespace, error)) *Namespace {
	if ns := n.opened[key]; ns != nil {
		return ns
	}
	ns, err := open()
	ns.Err = err
	if n.opened == nil {
		n.opened = map[string]*Namespace{}
	}
	n.opened[key] = ns
	return ns
}

// Devices returns the RDMA devices of the namespace. It lists the devices only once.
func (n *Namespace) Devices() ([]rdma.Device, error) {
	if n.Err != nil {
		return nil, n.Err
	}
	if !n.listed {
		n.listed = true
		if n.Core, n.unread = rdma.Open(n.Netns); n.unread == nil {
			n.devices, n.unread = n.Core.Devices()
		}
	}
	return n.devices, n.unread
}

// DeviceOf returns the namespace in which the recorded RDMA device of r should be, and the device
// in that namespace. If the namespace is a pod netns, the function pod returns it.
func (n *Namespaces) DeviceOf(
	r *ledger.Record, recorded *ledger.RDMADevice, pod func(*ledger.Record) *Namespace,
) (*Namespace, rdma.Device, error) {
	ns, place := n.Host(), "on the host"
	if recorded.Lent {
		ns, place = pod(r), "in the pod netns"
	}
	devices, err := ns.Devices()
	if err != nil {
		return ns, rdma.Device{}, err
	}
	for _, d := range devices {
		if d.NodeGUID == recorded.NodeGUID && d.ParentDev == recorded.ParentDev {
			return ns, d, nil
		}
	}
	err = fmt.Errorf("%w %s: the device was unplugged, its driver was unloaded, or the device is just being moved", rdma.ErrNotFound, place)
	return ns, rdma.Device{}, err
}
