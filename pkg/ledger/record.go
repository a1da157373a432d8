package ledger

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/device"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nicstate"
	"github.com/rail-cni/rail-cni/pkg/rdma"
)

// Version is the version of the record format that this code writes. It refuses
// newer ones.
const Version = 1

// Phase is the phase of an attachment.
type Phase string

// The phases, in the order of an attachment's life.
const (
	Lending   Phase = "lending"   // ADD is running, or was killed
	Lent      Phase = "lent"      // ADD has succeeded
	Returning Phase = "returning" // DEL or a sweep is running, or was killed
	Freeing   Phase = "freeing"   // the NIC is on the host, but the IPAM plugin could not free the address yet
)

// Key identifies an attachment.
type Key struct {
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifname"`
}

func (k Key) String() string { return k.ContainerID + "/" + k.IfName }

// Record has everything that is needed to end an attachment.
type Record struct {
	Version int `json:"version"`
	Key
	Network   string    `json:"network"`
	Plugin    string    `json:"plugin"`
	Pod       *Pod      `json:"pod,omitempty"`
	Phase     Phase     `json:"phase"`
	Created   time.Time `json:"created"`
	Updated   time.Time `json:"updated"`
	BootID    string    `json:"bootID,omitempty"` // only if the file outlives a boot
	Netns     Netns     `json:"podNetns"`
	HostNetns Netns     `json:"hostNetns"`
	Loan      *Loan     `json:"loan,omitempty"`
	Child     *Child    `json:"child,omitempty"`
	VF        *VF       `json:"vf,omitempty"`
	RDMA      *RDMA     `json:"rdma,omitempty"`
	MAC       string    `json:"mac,omitempty"`
	MTU       int       `json:"mtu,omitempty"`
	Addresses []string  `json:"addresses,omitempty"` // CIDR
	// Gateways are those of the addresses, each once, in their order.
	Gateways []string `json:"gateways,omitempty"`
	// MovedMS is the duration of the longest move, of the NIC or one of its RDMA devices into
	// the pod netns.
	MovedMS int64 `json:"movedMS,omitempty"`
	// Link is nil until ADD ends, and for a NIC without a netdev.
	Link *Link `json:"link,omitempty"`
	// DeviceInfo is the device information file of ADD, to be removed.
	DeviceInfo string `json:"deviceInfo,omitempty"`
	IPAM       *IPAM  `json:"ipam,omitempty"`
	// Routing is nil for an interface without a routing table of its own.
	Routing *Routing `json:"routing,omitempty"`
	// Rail is the rail of the NIC, for a network that needs it, else nil.
	Rail *int `json:"rail,omitempty"`
}

// Pod is the pod as the runtime named it in CNI_ARGS.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
}

func (p *Pod) String() string {
	if p == nil {
		return ""
	}
	return p.Namespace + "/" + p.Name
}

// Netns is a network namespace and its last known path.
type Netns struct {
	netns.ID
	Path string `json:"path"`
}

// Link is the link of the interface when ADD ended.
type Link struct {
	Up       bool  `json:"up"`       // it had a carrier, and its RDMA ports were active
	WaitedMS int64 `json:"waitedMS"` // how long ADD waited for that
}

// Waited returns how long ADD waited for the link.
func (l *Link) Waited() time.Duration {
	if l == nil {
		return 0
	}
	return time.Duration(l.WaitedMS) * time.Millisecond
}

// Routing is the routing table of an interface, and the rules of the pod netns that lead to
// it: for each address, and for the interface.
type Routing struct {
	Table     int      `json:"table"`
	Priority  int      `json:"priority"`            // of the first rules; the next number is of those behind
	Addresses []string `json:"addresses,omitempty"` // that have rules; none until the rules are made
}

// Loan is a NIC of the host that the attachment holds.
type Loan struct {
	NIC  string `json:"nic"`           // nic.NIC.Key
	Name string `json:"name"`          // its name on the host; empty if it had no netdev
	PCI  string `json:"pci,omitempty"` // its PCI function
	// RDMAAlone is set if the RDMA devices are all that is lent: the NIC has no netdev, and a kernel driver.
	RDMAAlone bool          `json:"rdmaAlone,omitempty"`
	Driver    string        `json:"driver,omitempty"` // of a function without a netdev, or "DPDKMode": no netdev was moved
	Identity  link.Identity `json:"identity"`
	LiesOn    string        `json:"liesOn,omitempty"`   // the host's NIC below it, if it is a VLAN
	PodIndex  int           `json:"podIndex,omitempty"` // its ifindex in the pod netns, 0 while unknown
	// Above are the ifindexes of the links in the pod netns that lay on the NIC
	// before it was lent.
	Above    []int              `json:"above,omitzero"`
	Snapshot *nicstate.Snapshot `json:"snapshot,omitempty"`
	// Hardware is nil if the driver reports none, and for a NIC without a netdev.
	Hardware *device.Hardware `json:"hardware,omitempty"`
}

// VF records the settings of the lent virtual function that the attachment changes, through the physical
// function.
type VF struct {
	PF     string `json:"pf"`     // PCI address
	Number int    `json:"number"` // of the virtual function there
	// Before and Want are what sriov.Changes returned at ADD.
	Before []byte `json:"before"`
	Want   []byte `json:"want"`
	// Driver is bound to the function again after each change, if the settings include GUIDs, which need this. It is ""
	// if they do not.
	Driver string `json:"driver,omitempty"`
	// RDMA and RDMASettings are the name and the settings, by rdma.Core.Settings, that the RDMA device of the function has
	// on the host, whenever the driver has re-created it.
	RDMA         string            `json:"rdma,omitempty"`
	RDMASettings map[string]string `json:"rdmaSettings,omitempty"`
}

// Child is a macvlan or an IPoIB child that was made for the attachment.
type Child struct {
	Kind        string `json:"kind,omitempty"`        // [link.KindIPoIB], or "" for a macvlan
	Master      string `json:"master"`                // name of the NIC it lies on
	MasterIndex int    `json:"masterIndex,omitempty"` // its ifindex
	Mode        string `json:"mode"`
	InPod       bool   `json:"inPod,omitempty"` // the master is in the pod netns
	// Lower is the link that the macvlan lies on, if that is not its master: a macvlan on a
	// macvlan lies on the NIC of both (macvlan_common_newlink).
	Lower    *Lower `json:"lower,omitempty"`
	PodIndex int    `json:"podIndex,omitempty"` // the child's ifindex in the pod netns, 0 until it is known
	// Of an IPoIB child: its partition with the bit of full membership, the parent device of its master, and
	// its permanent address, "" until it is made. Nobody can change the address, but a child that is made later
	// may get it.
	PKey      uint16    `json:"pkey,omitempty"`
	ParentDev string    `json:"parentDev,omitempty"`
	PermMAC   string    `json:"permMAC,omitempty"`
	Made      time.Time `json:"made,omitzero"`
}

// Lower is the link below a macvlan, as it is seen in the pod.
type Lower struct {
	Index      int  `json:"index"`          // its ifindex
	OutsidePod bool `json:"away,omitempty"` // in another netns than the pod's
}

// RDMA is the RDMA part of the attachment.
type RDMA struct {
	Mode    string       `json:"mode"` // of the machine at ADD: "shared" or "exclusive"
	Devices []RDMADevice `json:"devices"`
	GIDs    []GID        `json:"gids,omitempty"` // RoCE v2, of the interface's addresses
	// RoCETOS is the type of service that the network gave the devices for RDMA-CM, nil
	// if it gave none.
	RoCETOS *int `json:"roceTos,omitempty"`
	// PodIndex is the ifindex, in the pod netns, of an interface that another plugin made.
	// It is 0 if another part of the record has the interface, and if there is none.
	PodIndex int `json:"podIndex,omitempty"`
}

// RDMADevice is the state of an RDMA device on the host.
type RDMADevice struct {
	Name      string    `json:"name"`
	NodeGUID  rdma.GUID `json:"nodeGUID"`
	ParentDev string    `json:"parentDev"`
	Port      uint32    `json:"port,omitempty"`   // the port of the interface, 0 if unknown
	Netdev    string    `json:"netdev,omitempty"` // the port's netdev, if it is a link below the NIC or master, such as a bond's member
	Uverbs    string    `json:"uverbs,omitempty"` // "uverbs3"
	Lent      bool      `json:"lent,omitempty"`   // it moves with the NIC (exclusive mode)
	// Settings is the result of rdma.Core.Settings for a device that moves.
	Settings map[string]string `json:"settings,omitempty"`
}

// GID is an entry of the port's GID table.
type GID struct {
	Device  string `json:"device"`
	Port    uint32 `json:"port"`
	Index   int    `json:"index"`
	Value   string `json:"value"`
	Address string `json:"address"`
}

// IPAM has everything that is needed to free the attachment's addresses.
type IPAM struct {
	Type   string          `json:"type"`
	Path   string          `json:"path"`           // CNI_PATH at ADD
	Args   string          `json:"args,omitempty"` // CNI_ARGS at ADD
	Config json.RawMessage `json:"config"`         // network config at ADD, without prevResult
}

// Holder names the attachment for errors and tables.
func (r *Record) Holder() string {
	who := fmt.Sprintf("container %s, interface %s", r.ContainerID, r.IfName)
	if r.Pod != nil {
		who = fmt.Sprintf("pod %s (%s)", r.Pod, who)
	}
	return who
}

// LentTo returns the error for a NIC that is lent to holder.
func LentTo(holder *Record) error {
	return failure.New(failure.NICLent, "%s is lent to %s since %s (%s)", holder.NICName(), holder.Holder(), holder.Created.Format(time.RFC3339), holder.Phase).
		Cure("wait until that attachment ends, or choose another NIC")
}

// Same reports whether both records are of the same ADD, in any phase: a
// runtime may reuse the key of an attachment.
func (r *Record) Same(other *Record) bool {
	return r.Key == other.Key && r.Created.Equal(other.Created) && r.Netns == other.Netns
}

// LinkKind returns the kind of the child: "macvlan" or "ipoib".
func (c *Child) LinkKind() string { return cmp.Or(c.Kind, "macvlan") }

// LendsRDMAOf reports whether an RDMA device of this parent device is lent.
func (r *Record) LendsRDMAOf(parent string) bool {
	return r.RDMA != nil && slices.ContainsFunc(r.RDMA.Devices, func(d RDMADevice) bool { return d.Lent && d.ParentDev == parent })
}

// HasInterface reports whether the attachment's interface is recorded. If not,
// the record is a chained plugin's own: another plugin made the interface, and
// has no record here.
func (r *Record) HasInterface() bool { return r.Loan != nil || r.Child != nil }

// LendsNetdev reports whether the attachment's NIC was lent as a network interface: not with
// DPDKMode, and not a function that has none.
func (r *Record) LendsNetdev() bool { return r.Loan != nil && r.Loan.Driver == "" }

// NICName returns the host's NIC that the attachment uses: the lent one, the
// macvlan's master, or the NIC of which only the RDMA devices were lent.
func (r *Record) NICName() string {
	switch {
	case r.Loan != nil && r.Loan.Name != "":
		return r.Loan.Name
	case r.Loan != nil:
		return r.Loan.PCI
	case r.Child != nil:
		return r.Child.Master
	case r.RDMA != nil && len(r.RDMA.Devices) > 0:
		return r.RDMA.Devices[0].ParentDev
	}
	return ""
}

// MadeAnew reports whether the lent NIC is an InfiniBand interface that the attachment
// destroys: its RDMA device moves, or its driver is bound again. Both times the kernel
// makes another one in init_net (rdma_dev_change_netns, ipoib_add_one).
func (r *Record) MadeAnew() bool {
	if !r.LendsNetdev() || r.Loan.Snapshot == nil || r.Loan.Snapshot.IPoIB == nil {
		return false
	}
	return r.Rebinds() || r.RDMA != nil && slices.ContainsFunc(r.RDMA.Devices, func(d RDMADevice) bool { return d.Lent })
}

// Rebinds reports whether the attachment unbinds and binds the driver of its virtual function. Its RDMA device and its
// interface are others from then on.
func (r *Record) Rebinds() bool { return r.VF != nil && r.VF.Driver != "" }

// errNewer marks a record of a newer version, which is not corrupt.
var errNewer = errors.New("written by a newer version of rail-cni")

// IsNewer reports whether err is about a record of a newer version, which must
// be left unchanged.
func IsNewer(err error) bool { return errors.Is(err, errNewer) }

// Decode reads a record. It refuses a newer version, a record that lacks fields
// needed to end the attachment, and one that names the host as its pod, so that
// nothing of the host's own is taken for the pod's.
func Decode(data []byte) (*Record, error) {
	r := &Record{}
	err := json.Unmarshal(data, r)
	version := r.Version
	if err != nil {
		// A newer version may have other types below known keys.
		version = versionOf(data)
	}
	switch {
	case version > Version:
		return nil, failure.From(errNewer, failure.BadRecord, "record of version %d", version).Cure("use that version, or let it end the attachment")
	case err != nil:
		return nil, err
	case r.Version < 1:
		return nil, errors.New("no version")
	case r.ContainerID == "" || r.IfName == "":
		return nil, errors.New("no container id or interface name")
	case !r.HasInterface() && (r.RDMA == nil || len(r.RDMA.Devices) == 0):
		return nil, errors.New("neither a loan nor a child nor RDMA devices")
	case r.VF != nil && r.Loan == nil:
		return nil, errors.New("settings of a virtual function without a loan")
	case r.Child != nil && r.Child.Kind != "" && r.Child.Kind != link.KindIPoIB:
		return nil, failure.From(errNewer, failure.BadRecord, "a child of kind %q", r.Child.Kind).Cure("use that version, or let it end the attachment")
	case r.LendsNetdev() && (r.Loan.Snapshot == nil || r.Loan.Snapshot.Name == ""):
		return nil, errors.New("a loan without a snapshot")
	case !r.HostNetns.IsZero() && r.Netns.Equal(r.HostNetns.ID):
		return nil, errors.New("the host's netns is recorded as the pod's")
	}
	return r, nil
}

// versionOf returns the version of a record of any format, 0 if it has none.
func versionOf(data []byte) int {
	var v struct {
		Version int `json:"version"`
	}
	if json.Unmarshal(data, &v) != nil {
		return 0
	}
	return v.Version
}
