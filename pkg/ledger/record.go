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
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

// Version is the version of the record format that this code writes. This code refuses records of a
// newer version.
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
	// Gateways has the gateways of the addresses, each once, in the order of the addresses.
	Gateways []string `json:"gateways,omitempty"`
	// MovedMS is the duration of the longest move of the NIC, or of one of its RDMA devices, into
	// the pod netns.
	MovedMS int64 `json:"movedMS,omitempty"`
	// Link is nil until ADD ends, and for a NIC without a netdev.
	Link *Link `json:"link,omitempty"`
	// DeviceInfo is the path of the device information file that ADD wrote and DEL must remove.
	DeviceInfo string `json:"deviceInfo,omitempty"`
	IPAM       *IPAM  `json:"ipam,omitempty"`
	// Routing is nil for an interface without a routing table of its own.
	Routing *Routing `json:"routing,omitempty"`
	// Rail is the rail of the NIC. It is nil if the network does not need the rail.
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

// Link is the state of the interface's link at the end of ADD.
type Link struct {
	Up       bool  `json:"up"`       // the link had a carrier, and its RDMA ports were active
	WaitedMS int64 `json:"waitedMS"` // how long ADD waited for the link
}

// Waited returns how long ADD waited for the link.
func (l *Link) Waited() time.Duration {
	if l == nil {
		return 0
	}
	return time.Duration(l.WaitedMS) * time.Millisecond
}

// Routing is the routing table of an interface, and the rules in the pod netns that lead to that
// table. There are rules for each address and for the interface.
type Routing struct {
	Table     int      `json:"table"`
	Priority  int      `json:"priority"`            // priority of the first rules; the other rules have the next number
	Addresses []string `json:"addresses,omitempty"` // addresses that have rules; none before the rules are made
}

// Loan is a NIC of the host that the attachment holds.
type Loan struct {
	NIC  string `json:"nic"`           // the result of nic.NIC.Key
	Name string `json:"name"`          // name of the NIC on the host; empty if the NIC had no netdev
	PCI  string `json:"pci,omitempty"` // PCI function of the NIC
	// RDMAAlone is set if only RDMA devices are lent: the NIC has a kernel driver, but no netdev.
	RDMAAlone bool `json:"rdmaAlone,omitempty"`
	// Driver is set if no netdev was moved. It is the driver of a function without a netdev, or of
	// a function with "DPDKMode".
	Driver   string        `json:"driver,omitempty"`
	Identity link.Identity `json:"identity"`
	LiesOn   string        `json:"liesOn,omitempty"`   // the host's NIC below this NIC, if this NIC is a VLAN
	PodIndex int           `json:"podIndex,omitempty"` // ifindex of the NIC in the pod netns, 0 while unknown
	// Above has the ifindexes of the links in the pod netns that lay on the NIC
	// before the NIC was lent.
	Above    []int              `json:"above,omitzero"`
	Snapshot *nicstate.Snapshot `json:"snapshot,omitempty"`
	// Hardware is nil if the driver does not report it, and for a NIC without a netdev.
	Hardware *device.Hardware `json:"hardware,omitempty"`
}

// VF has the settings of the lent virtual function that the attachment changes through the physical
// function.
type VF struct {
	PF     string `json:"pf"`     // PCI address of the physical function
	Number int    `json:"number"` // number of the virtual function within PF
	// Before and Want are what sriov.Changes returned at ADD.
	Before []byte `json:"before"`
	Want   []byte `json:"want"`
	// Driver is the driver that must be bound to the function again after each change, because the
	// settings include GUIDs. It is "" if the settings do not include GUIDs.
	Driver string `json:"driver,omitempty"`
	// RDMA and RDMASettings are the name and the settings (see rdma.Core.Settings) that the RDMA
	// device of the function must have on the host. They are set each time the driver has
	// re-created the device.
	RDMA         string            `json:"rdma,omitempty"`
	RDMASettings map[string]string `json:"rdmaSettings,omitempty"`
}

// Child is a macvlan or an IPoIB child that was made for the attachment.
type Child struct {
	Kind        string `json:"kind,omitempty"`        // [link.KindIPoIB], or "" for a macvlan
	Master      string `json:"master"`                // name of the NIC on which the child lies
	MasterIndex int    `json:"masterIndex,omitempty"` // ifindex of that NIC
	Mode        string `json:"mode"`
	InPod       bool   `json:"inPod,omitempty"` // the master is in the pod netns
	// Lower is the link on which the macvlan lies, or nil if that link is the master. If the master
	// is a macvlan, both macvlans lie on the NIC below (macvlan_common_newlink).
	Lower    *Lower `json:"lower,omitempty"`
	PodIndex int    `json:"podIndex,omitempty"` // the child's ifindex in the pod netns, 0 until it is known
	// Only an IPoIB child has the following fields: its partition with the bit of full membership,
	// the parent device of its master, its permanent address, which is "" until the child is made,
	// and the time at which it was made. Nobody can change the permanent address, but a child that
	// is made later may get the same address.
	PKey      uint16    `json:"pkey,omitempty"`
	ParentDev string    `json:"parentDev,omitempty"`
	PermMAC   string    `json:"permMAC,omitempty"`
	Made      time.Time `json:"made,omitzero"`
}

// Lower is the link below a macvlan, as it is seen in the pod.
type Lower struct {
	Index      int  `json:"index"`          // ifindex of the link
	OutsidePod bool `json:"away,omitempty"` // the link is in another netns than the pod's
}

// RDMA is the RDMA part of the attachment.
type RDMA struct {
	Mode    string       `json:"mode"` // of the machine at ADD: "shared" or "exclusive"
	Devices []RDMADevice `json:"devices"`
	GIDs    []GID        `json:"gids,omitempty"` // RoCE v2 GIDs of the interface's addresses
	// RoCETOS is the type of service that the network set for RDMA-CM, or nil if it set none.
	RoCETOS *int `json:"roceTos,omitempty"`
	// PodIndex is the ifindex in the pod netns of an interface that another plugin made.
	// It is 0 if there is no interface, or if another part of the record has the interface.
	PodIndex int `json:"podIndex,omitempty"`
}

// RDMADevice is the state of an RDMA device on the host.
type RDMADevice struct {
	Name      string      `json:"name"`
	NodeGUID  ibaddr.GUID `json:"nodeGUID"`
	ParentDev string      `json:"parentDev"`
	Port      uint32      `json:"port,omitempty"`   // the port of the interface, 0 if unknown
	Netdev    string      `json:"netdev,omitempty"` // the port's netdev, if it is a link below the NIC or master, such as a bond's member
	Uverbs    string      `json:"uverbs,omitempty"` // "uverbs3"
	Lent      bool        `json:"lent,omitempty"`   // the device moves with the NIC (exclusive mode)
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

// Holder returns the name of the attachment, for errors and tables.
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

// Same reports whether both records are of the same ADD, in any phase. The key alone does not show
// that, because a runtime may reuse the key of an attachment.
func (r *Record) Same(other *Record) bool {
	return r.Key == other.Key && r.Created.Equal(other.Created) && r.Netns == other.Netns
}

// LinkKind returns the kind of the child: "macvlan" or "ipoib".
func (c *Child) LinkKind() string { return cmp.Or(c.Kind, "macvlan") }

// LendsRDMAOf reports whether the record lends an RDMA device of this parent device.
func (r *Record) LendsRDMAOf(parent string) bool {
	return r.RDMA != nil && slices.ContainsFunc(r.RDMA.Devices, func(d RDMADevice) bool { return d.Lent && d.ParentDev == parent })
}

// HasInterface reports whether the attachment's interface is recorded. If it is not, the record
// belongs to a chained plugin, and the plugin that made the interface has no record here.
func (r *Record) HasInterface() bool { return r.Loan != nil || r.Child != nil }

// LendsNetdev reports whether the attachment's NIC was lent as a network interface. It was not if
// the network has DPDKMode, or if the function has no network interface.
func (r *Record) LendsNetdev() bool { return r.Loan != nil && r.Loan.Driver == "" }

// NICName returns the name of the host's NIC that the attachment uses: the NIC that is lent, the
// master of the macvlan or IPoIB child, or the NIC of which only the RDMA devices were lent.
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

// MadeAnew reports whether the lent NIC is an InfiniBand interface that the attachment destroys,
// because its RDMA device moves or its driver is bound again. In both cases the kernel makes
// another interface in init_net (rdma_dev_change_netns, ipoib_add_one).
func (r *Record) MadeAnew() bool {
	if !r.LendsNetdev() || r.Loan.Snapshot == nil || r.Loan.Snapshot.IPoIB == nil {
		return false
	}
	return r.Rebinds() || r.RDMA != nil && slices.ContainsFunc(r.RDMA.Devices, func(d RDMADevice) bool { return d.Lent })
}

// Rebinds reports whether the attachment unbinds and binds the driver of its virtual function. From
// then on the function has a new RDMA device and a new interface.
func (r *Record) Rebinds() bool { return r.VF != nil && r.VF.Driver != "" }

// errNewer is wrapped by the error about a record of a newer version. Such a record is not corrupt.
var errNewer = errors.New("written by a newer version of rail-cni")

// IsNewer reports whether err is about a record of a newer version. Such a record must not be
// changed.
func IsNewer(err error) bool { return errors.Is(err, errNewer) }

// Decode returns the record in data. It refuses a record of a newer version, and a record that
// lacks fields which are needed to end the attachment. It also refuses a record whose pod netns is
// the host netns, because interfaces of the host could be mistaken for interfaces of the pod.
func Decode(data []byte) (*Record, error) {
	r := &Record{}
	err := json.Unmarshal(data, r)
	version := r.Version
	if err != nil {
		// A newer version may use other types for known keys.
		version = versionOf(data)
	}
	switch {
	case version > Version:
		return nil, failure.From(errNewer, failure.BadRecord, "record of version %d", version).Cure("use that version of rail-cni, or end the attachment with that version")
	case err != nil:
		return nil, err
	case r.Version < 1:
		return nil, errors.New("the record has no version")
	case r.ContainerID == "" || r.IfName == "":
		return nil, errors.New("the record has no container ID or no interface name")
	case !r.HasInterface() && (r.RDMA == nil || len(r.RDMA.Devices) == 0):
		return nil, errors.New("the record has no loan, no child and no RDMA devices")
	case r.VF != nil && r.Loan == nil:
		return nil, errors.New("the record has settings of a virtual function, but no loan")
	case r.Child != nil && r.Child.Kind != "" && r.Child.Kind != link.KindIPoIB:
		return nil, failure.From(errNewer, failure.BadRecord, "a child of kind %q", r.Child.Kind).Cure("use that version of rail-cni, or end the attachment with that version")
	case r.LendsNetdev() && (r.Loan.Snapshot == nil || r.Loan.Snapshot.Name == ""):
		return nil, errors.New("the record has a loan without a snapshot")
	case !r.HostNetns.IsZero() && r.Netns.Equal(r.HostNetns.ID):
		return nil, errors.New("the host's netns is recorded as the pod's")
	}
	return r, nil
}

// versionOf returns the version of a record of any format, or 0 if the record has no version.
func versionOf(data []byte) int {
	var v struct {
		Version int `json:"version"`
	}
	if json.Unmarshal(data, &v) != nil {
		return 0
	}
	return v.Version
}
