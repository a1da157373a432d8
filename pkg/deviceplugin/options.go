package deviceplugin

import (
	"log/slog"
	"time"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/notify"
	"github.com/rail-cni/rail-cni/pkg/pcie"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// Options configures a device plugin. All directories are as this process sees them: a
// test may give those of another root, below /proc/<pid>/root.
type Options struct {
	// Config returns the node's configuration of resources and rails, both nil if it has
	// none. It is called before each scan, and must be cheap.
	Config func() (*resource.Config, *resource.Rails, error)
	// Inventory returns the facts of the node's NICs, lent or not. It is called in each
	// scan, and by calls of the kubelet, from several goroutines.
	Inventory func() (*Inventory, error)
	// Changed wakes the device plugin when the configuration or the inventory may have
	// changed. It may be nil: the device plugin also scans every Interval.
	Changed *component.Trigger

	KubeletDir string // the kubelet's root directory, /var/lib/kubelet
	DevInfoDir string // for device information files of device plugins; "" for none
	CDIDir     string // for CDI specifications, /var/run/cdi; "" for none
	// Root is the root of the host's files, where the existence of char devices is checked;
	// "" for that of this process.
	Root string

	Dirs   *notify.Dirs           // the process's, which reports changes of the kubelet's sockets
	Notify func(component.Notice) // passes notices on, and does not block; nil for none
	Log    *slog.Logger

	// Interval is the time between scans without a notice, 10 s if it is zero.
	Interval time.Duration
	// Now returns the time, time.Now if it is nil.
	Now func() time.Time
}

// Inventory has the NICs and GPUs of a node.
type Inventory struct {
	NICs []NIC
	GPUs []GPU
}

// NIC is a NIC of the node, and its state.
type NIC struct {
	resource.NIC

	Lent *Lent // who has it, nil if nobody
	// Gone: its PCI function is not in sysfs any more.
	Gone bool
	// Link is the state of the netdev where it is, of a lent one in its pod.
	Link      Link
	AdminDown bool // somebody set the link down
	// Children is the number of pods' child interfaces on it: host-device refuses such a NIC.
	Children int
	// Ports are the states of its RDMA ports where they are, as package rdma writes them:
	// "ACTIVE", "DOWN". A state that cannot be read is empty.
	Ports []string
	// Distances has the distance to each GPU, by its PCI address.
	Distances map[string]pcie.Distance
}

// Lent names the attachment that has a NIC.
type Lent struct {
	Namespace, Pod string // both empty if the runtime did not say
	ContainerID    string
}

// Link is the state of a netdev's link.
type Link string

// The states of a link.
const (
	LinkUnknown Link = "" // there is no netdev, or its state cannot be read
	LinkUp      Link = "up"
	LinkDown    Link = "down" // without a carrier, or set down
)

// GPU is a GPU of the node.
type GPU struct {
	PCI  string
	UUID string // of NVIDIA's driver, "" if not known
}
