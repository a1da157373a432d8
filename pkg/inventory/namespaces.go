package inventory

import (
	"errors"
	"fmt"

	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// Namespaces are the network namespaces of the host and of pods. Each is opened once. They must be
// closed soon: an open namespace keeps the NICs in it from returning. Its zero value is ready.
type Namespaces struct {
	// HostNetns is that of the host, which Close leaves open. If it is nil that of the calling
	// thread is opened.
	HostNetns *netns.Netns

	opened map[string]*Namespace
}

// Namespace is a network namespace.
type Namespace struct {
	Netns *netns.Netns // nil if it could not be opened
	Err   error        // why Netns is nil
	Core  *rdma.Core   // nil before Devices, and without an RDMA core

	keep    bool // Close leaves it open
	listed  bool
	devices []rdma.Device
	unread  error // why devices are not known
}

// errPodGone means that the pod netns is gone.
var errPodGone = errors.New("the pod netns is gone")

// Close closes what was opened.
func (n *Namespaces) Close() {
	for _, ns := range n.opened {
		ns.Core.Close()
		if ns.Netns != nil && !ns.keep {
			ns.Netns.Close()
		}
	}
	n.opened = nil
}

// Host returns the host netns, where shared RDMA devices are seen.
func (n *Namespaces) Host() *Namespace {
	return n.open("host", func() (*Namespace, error) {
		if n.HostNetns != nil {
			return &Namespace{Netns: n.HostNetns, keep: true}, nil
		}
		host, err := netns.Current()
		return &Namespace{Netns: host}, err
	})
}

// Pod returns the pod netns of the record if its path leads there. It opens none that is about to
// end.
func (n *Namespaces) Pod(r *ledger.Record) *Namespace {
	return n.open(podKey(r), func() (*Namespace, error) {
		pod := r.OpenPod()
		if pod == nil {
			return &Namespace{}, fmt.Errorf("%s: %w", r.Holder(), errPodGone)
		}
		return &Namespace{Netns: pod}, nil
	})
}

// FindPod is Pod, and searches for the netns if its path does not lead there any more.
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

// Devices returns the RDMA devices of the namespace, which are listed once.
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

// DeviceOf returns the namespace in which the recorded RDMA device of r should be, a pod netns as
// pod returns it, and the device there.
func (n *Namespaces) DeviceOf(
	r *ledger.Record, recorded *ledger.RDMADevice, pod func(*ledger.Record) *Namespace,
) (*Namespace, rdma.Device, error) {
	ns, where := n.Host(), "on the host"
	if recorded.Lent {
		ns, where = pod(r), "in the pod netns"
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
	err = fmt.Errorf("%w %s: it was unplugged, its driver was unloaded, or it is just being moved", rdma.ErrNotFound, where)
	return ns, rdma.Device{}, err
}
