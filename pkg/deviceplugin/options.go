package deviceplugin

import (
	"log/slog"
	"time"

	"github.com/rail-cni/rail-cni/pkg/component"
	"github.com/rail-cni/rail-cni/pkg/notify"
	"github.com/rail-cni/rail-cni/pkg/pcie"
	"github.com/rail-cni/rail-cni/pkg/resource"
)

// Options configures a device plugin. All directories are paths as this process sees them. A test
// may use directories of another root, below /proc/<pid>/root.
type Options struct {
	// Config returns the node's configuration of resources and rails. Both are nil if the node has
	// none. Config is called before each scan, and must be cheap.
	Config func() (*resource.Config, *resource.Rails, error)
	// Inventory returns the facts about the node's NICs, whether they are lent or not. It is called
	// in each scan and in calls of the kubelet, from several goroutines.
	Inventory func() (*Inventory, error)
	// Changed wakes the device plugin when the configuration or the inventory may have
	// changed. It may be nil: the device plugin also scans every Interval.
	Changed *component.Trigger

	KubeletDir string // the kubelet's root directory, /var/lib/kubelet
	DevInfoDir string // directory of device information files of device plugins; "" for none
	CDIDir     string // directory of CDI specifications, /var/run/cdi; "" for none
	// Root is the root of the host's files, in which the device plugin checks whether char devices
	// exist. "" means the root of this process.
	Root string

	Dirs   *notify.Dirs           // the process's Dirs, which reports changes of the kubelet's sockets
	Notify func(component.Notice) // passes notices on, and must not block; nil if nobody wants them
	Log    *slog.Logger

	// Interval is the time between scans without a notice. Zero means 10 s.
	Interval time.Duration
	// Now returns the time. nil means time.Now.
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

	Lent *Lent // the holder of the NIC, nil if the NIC is not lent
	// Gone means that the NIC's PCI function is no longer in sysfs.
	Gone bool
	// Link is the state of the netdev, wherever it is. If the NIC is lent, the netdev is in its
	// pod.
	Link      Link
	AdminDown bool // somebody set the link down
	// Children is the number of pods' child interfaces on the NIC. host-device refuses a NIC that
	// has any.
	Children int
	// Ports are the states of the NIC's RDMA ports, wherever they are, in the form of package rdma:
	// "ACTIVE", "DOWN". A state that cannot be read is empty.
	Ports []string
	// Distances has the distance to each GPU, by its PCI address.
	Distances map[string]pcie.Distance
}

// Lent names the attachment that has a NIC.
type Lent struct {
	Namespace, Pod string // both empty if the runtime did not name the pod
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
	UUID string // UUID of NVIDIA's driver, "" if it is not known
}
