package railinfo

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/rail-cni/rail-cni/pkg/pcie"
	"github.com/rail-cni/rail-cni/pkg/rdma/ibaddr"
)

// Schema is the version of the document [Rails]. Later releases with the same Schema only add keys.
const Schema = "rail-cni.io/rails/v1"

// Rails is the rail information of a pod, which describes the pod's attachments. Its JSON is the
// file rails.json (docs/reference/rails-json.md).
type Rails struct {
	Schema string `json:"schema"`
	Pod    PodRef `json:"pod"`
	// Generation counts the changes of the file. Of two documents of the same pod, the document
	// with the greater generation is later. publish.Describe returns 0.
	Generation uint64 `json:"generation"`
	// Rails are sorted by the number of the rail, and then by interface. Rails without a number
	// come last.
	Rails []Rail `json:"rails"`
}

// PodRef names a pod and its node.
type PodRef struct {
	UID       string `json:"uid,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	Node      string `json:"node,omitempty"`
}

// The link layers of RDMA ports.
const (
	InfiniBand = "InfiniBand"
	Ethernet   = "Ethernet" // RoCE
)

// Rail is one attachment of the pod, with at most one RDMA device. An attachment with two devices,
// such as a macvlan on a bond, appears twice.
type Rail struct {
	Rail   *int   `json:"rail,omitempty"`   // nil if the NIC has no rail
	IfName string `json:"ifName,omitempty"` // name in the pod, empty if no interface was lent
	RDMA   string `json:"rdma,omitempty"`   // the RDMA device, by the name that the pod sees
	Port   uint32 `json:"port,omitempty"`
	// LinkLayer is [Ethernet] or [InfiniBand].
	LinkLayer string `json:"linkLayer,omitempty"`
	// State is the state of the RDMA port, for example "ACTIVE". Without RDMA it is "up" or "down".
	State     string `json:"state,omitempty"`
	SpeedMbps uint32 `json:"speedMbps,omitempty"` // megabit per second
	MTU       int    `json:"mtu,omitempty"`       // MTU of the interface, in bytes
	ActiveMTU int    `json:"activeMtu,omitempty"` // MTU of RDMA packets, in bytes
	MAC       string `json:"mac,omitempty"`
	PCI       string `json:"pci,omitempty"` // PCI address of the NIC, which for a macvlan is the parent
	NUMA      *int   `json:"numa,omitempty"`
	// PCIeSwitch is the upstream port of the PCIe switch above the NIC.
	PCIeSwitch string `json:"pcieSwitch,omitempty"`
	// SysImageGUID is the system image GUID of the RDMA device. The functions of one card have the
	// same.
	SysImageGUID string `json:"sysImageGUID,omitempty"`
	GIDs         []GID  `json:"gids,omitempty"` // by index
	// LID, GUID, PKey, PKeyIndex and Mode belong to an InfiniBand port and its interface. The index
	// of a P_Key depends on the history of the port, so it differs between nodes, and is read each
	// time. PKeyIndex is nil if the port is not a member of the interface's partition.
	LID       uint32 `json:"lid,omitempty"`
	GUID      string `json:"guid,omitempty"` // GUID of the port
	PKey      string `json:"pkey,omitempty"` // key of the interface's partition: "0x8001", or "0x0001" for a limited member
	PKeyIndex *int   `json:"pkeyIndex,omitempty"`
	Mode      string `json:"mode,omitempty"` // datagram or connected
	// SharedPort is true if the GID table of the port also has GIDs of the host and of other pods, as
	// with a macvlan. A program that takes the first GID may take a GID of somebody else.
	SharedPort bool `json:"sharedPort,omitempty"`
	// GIDIndexV2 is the index of the RoCE v2 GID of the first address that has such a GID. It is
	// nil if no address has one, and on InfiniBand.
	GIDIndexV2  *int     `json:"gidIndexV2,omitempty"`
	Addresses   []string `json:"addresses,omitempty"` // CIDR
	Gateway     string   `json:"gateway,omitempty"`   // gateway of the first address
	GPUs        []GPU    `json:"gpus,omitempty"`      // GPUs of the node, with the nearest first
	CharDevices []string `json:"charDevices,omitempty"`
}

// GID is an entry of the port's GID table.
type GID struct {
	Index int            `json:"index"`
	Type  ibaddr.GIDType `json:"type"`          // as the kernel names it
	GID   string         `json:"gid,omitempty"` // eight groups of four digits
	IP    string         `json:"ip,omitempty"`  // the address of the GID, empty on InfiniBand
}

// GPU is a GPU of the node and its distance from the NIC.
type GPU struct {
	PCI   string        `json:"pci"`
	UUID  string        `json:"uuid,omitempty"`
	Level pcie.Distance `json:"level"`
}

// Sort sorts the rails.
func (r *Rails) Sort() {
	slices.SortStableFunc(r.Rails, func(a, b Rail) int {
		switch {
		case a.Rail == nil && b.Rail != nil:
			return 1
		case a.Rail != nil && b.Rail == nil:
			return -1
		case a.Rail != nil && *a.Rail != *b.Rail:
			return cmp.Compare(*a.Rail, *b.Rail)
		}
		return cmp.Or(cmp.Compare(a.IfName, b.IfName), cmp.Compare(a.PCI, b.PCI), cmp.Compare(a.RDMA, b.RDMA), cmp.Compare(a.Port, b.Port))
	})
}

// HasRDMA reports whether a rail has an RDMA device.
func (r *Rails) HasRDMA() bool {
	return slices.ContainsFunc(r.Rails, func(l Rail) bool { return l.RDMA != "" })
}

// CharDevices returns the sorted paths, below /dev/infiniband, of the char devices of all rails.
// rdma_cm is not among them, because it belongs to no rail.
func (r *Rails) CharDevices() []string {
	var paths []string
	for _, l := range r.Rails {
		paths = append(paths, l.CharDevices...)
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

// JSON returns the content of the file rails.json.
func (r *Rails) JSON() []byte {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		panic(err) // cannot happen: all types have a form in JSON
	}
	return append(data, '\n')
}

// Same reports whether both documents have the same content, apart from their generations.
func (r *Rails) Same(other *Rails) bool {
	if r == nil || other == nil {
		return r == other
	}
	a, b := *r, *other
	a.Generation, b.Generation = 0, 0
	return bytes.Equal(a.line(), b.line())
}

// maxAnnotation bounds the length in bytes of the result of [Rails.Compact]: all annotations of an
// object together may have 256 KiB, and each client that reads pods receives them.
const maxAnnotation = 8 << 10

// Compact returns the document in the form for [RailsAnnotation]. This form has only the RoCE v2
// GIDs of the rail's addresses, without their text, and only the PCI addresses of the nearest GPUs.
// It leaves out what changes while the pod works (state, generation) and what only a program in the
// pod needs (char devices, GUIDs). The result has less than 8 KiB. If there are too many rails for
// that, Compact leaves out the GPUs, then the GIDs, then everything except the names.
func (r *Rails) Compact() []byte {
	c := Rails{Schema: r.Schema, Pod: r.Pod, Rails: slices.Clone(r.Rails)}
	for i := range c.Rails {
		c.Rails[i].compact()
	}
	data := c.line()
	for _, shorten := range []func(*Rail){
		func(l *Rail) { l.GPUs = nil },
		func(l *Rail) { l.GIDs = nil },
		func(l *Rail) { *l = Rail{Rail: l.Rail, IfName: l.IfName, RDMA: l.RDMA, Port: l.Port, PCI: l.PCI} },
	} {
		if len(data) < maxAnnotation {
			return data
		}
		for i := range c.Rails {
			shorten(&c.Rails[i])
		}
		data = c.line()
	}
	return data
}

func (r *Rails) line() []byte {
	data, err := json.Marshal(r)
	if err != nil {
		panic(err) // cannot happen: all types have a form in JSON
	}
	return data
}

func (l *Rail) compact() {
	var gids []GID
	for _, g := range l.GIDs {
		if g.Type == ibaddr.RoCEv2 && l.HasAddress(g.IP) {
			gids = append(gids, GID{Index: g.Index, Type: g.Type, IP: g.IP})
		}
	}
	var gpus []GPU
	for _, g := range l.GPUs {
		if g.Level == l.GPUs[0].Level && g.Level < pcie.NODE {
			gpus = append(gpus, GPU{PCI: g.PCI, Level: g.Level})
		}
	}
	l.GIDs, l.GPUs, l.CharDevices, l.SysImageGUID, l.State = gids, gpus, nil, "", ""
	l.LID, l.GUID, l.PKeyIndex, l.Mode = 0, "", nil, ""
}

// HasAddress reports whether the interface has the address.
func (l *Rail) HasAddress(ip string) bool {
	return slices.ContainsFunc(l.Addresses, func(a string) bool { return plain(a) == ip })
}

// plain returns the address in a CIDR.
func plain(cidr string) string {
	address, _, _ := strings.Cut(cidr, "/")
	return address
}
