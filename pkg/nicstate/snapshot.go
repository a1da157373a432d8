package nicstate

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/bpf"
	"github.com/rail-cni/rail-cni/pkg/link/device"
	"github.com/rail-cni/rail-cni/pkg/link/settings"
	"github.com/rail-cni/rail-cni/pkg/link/sysctl"
	"github.com/rail-cni/rail-cni/pkg/link/vrrp"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// Snapshot is the state of a link in the host netns. It has everything that a move to a pod netns
// resets, and everything that a pod may change. Its JSON is for readers of the ledger, and for
// [Restore].
type Snapshot struct {
	Taken       time.Time           `json:"taken"`
	Index       int                 `json:"index"`
	Name        string              `json:"name"`
	AltNames    []string            `json:"altNames,omitempty"`
	Alias       string              `json:"alias,omitempty"`
	MTU         int                 `json:"mtu"`
	MAC         string              `json:"mac,omitempty"`
	Broadcast   string              `json:"broadcast,omitempty"` // address of the link layer
	TxQueueLen  int                 `json:"txQueueLen"`
	Group       uint32              `json:"group,omitempty"`
	Master      string              `json:"master,omitempty"` // name of its bridge, bond, …, if the link was lent although it has a master
	Up          bool                `json:"up"`
	Flags       link.Flags          `json:"flags"`
	Receivers   *settings.Receivers `json:"receivers,omitempty"` // nil for a NIC that upstream's plugin lent
	Settings    map[string]uint32   `json:"settings,omitempty"`  // "gso_max_size": 65536
	Addresses   []Replay            `json:"addresses,omitempty"`
	Routes      []Replay            `json:"routes,omitempty"`
	Connected   []Replay            `json:"connected,omitempty"` // routes that the kernel makes for the addresses; only compared
	HopLinks    []HopLink           `json:"hopLinks,omitempty"`  // links of multipath routes, the link itself included
	Nexthops    []Replay            `json:"nexthops,omitempty"`  // the link's objects, their groups, and the groups' objects by other links
	Rules       []Replay            `json:"rules,omitempty"`     // rules of the link's addresses
	KeptRules   []Replay            `json:"keptRules,omitempty"` // other rules that concern the link; only compared
	Neighbors   []Replay            `json:"neighbors,omitempty"` // permanent ones only
	Sysctls     map[string]string   `json:"sysctls,omitempty"`   // "ipv4/conf/arp_ignore": "1"
	Token       string              `json:"token,omitempty"`     // interface identifier of IPv6 addresses (ip-token(8))
	IPoIB       *link.IPoIB         `json:"ipoib,omitempty"`     // settings of an InfiniBand interface
	Device      *device.Settings    `json:"device,omitempty"`
	Functions   [][]byte            `json:"functions,omitempty"`   // settings of the virtual functions, if the NIC is lent with them
	Programs    []bpf.Program       `json:"programs,omitempty"`    // BPF programs of the host, if the NIC is lent although it has some
	VRRP        []string            `json:"vrrp,omitempty"`        // the families in which a VRRP daemon listens: some addresses are the daemon's
	VRRPSources []string            `json:"vrrpSources,omitempty"` // the link's own addresses at which the daemon listens, if it sends to single hosts

	self link.Identity // identity of the link; not in the JSON, because the record has it beside the snapshot
}

// Replay is one address, route or neighbor. It has a text for the reader, and the kernel's message
// about the object. To restore the object, that message is sent back to the kernel with the new
// interface index, and without the attributes that the kernel sets itself. So every attribute
// survives, including attributes that this project does not know.
type Replay struct {
	Text string `json:"text"`
	Raw  []byte `json:"raw"` // payload of RTM_NEWADDR, RTM_NEWROUTE, RTM_NEWNEIGH, …, host byte order
}

// Take returns the state of the link of v, which the caller must have just read from n. It reads
// everything that is not in v.
func Take(n *netns.Netns, v *link.View) (*Snapshot, error) {
	l := v.Link
	s := &Snapshot{
		Taken: time.Now().UTC(), Index: l.Index, Name: l.Name, AltNames: l.AltNames, Alias: l.Alias,
		MTU: l.MTU, MAC: link.MACText(l.MAC), TxQueueLen: l.TxQueueLen, Group: l.Group,
		Up: l.IsUp(), Flags: l.SettableFlags(), self: l.Identity(),
	}
	if l.Master != 0 {
		master := v.ByIndex(l.Master)
		if master == nil {
			return nil, link.LeftError(n, l.Master)
		}
		s.Master = master.Name
	}
	attrs, err := link.AttrsOf(n, l)
	if err != nil {
		return nil, err
	}
	receivers := settings.ReceiversOf(attrs)
	s.Receivers = &receivers
	s.Settings, s.Broadcast, s.Token = settings.Read(attrs), link.MACText(link.BroadcastOf(attrs)), settings.TokenOf(attrs)
	s.IPoIB = settings.ReadIPoIB(attrs, v)
	if s.Neighbors, err = snapshotNeighbors(n, l.Index); err != nil {
		return nil, err
	}
	if s.Sysctls, err = sysctl.ReadKnowing(n, l.Name, sysctl.OfAttrs(attrs)); err != nil {
		return nil, err
	}
	s.Addresses = snapshotAddresses(v.RawAddresses)
	s.Routes, s.Connected = snapshotRoutes(v.RawRoutes, originOf(l, v.RawAddresses, s.Sysctls))
	s.addHopLinks(v)
	if err := snapshotNexthops(n, v, s); err != nil {
		return nil, err
	}
	if s.VRRP, s.VRRPSources, err = vrrp.Listening(n, l.Name, globalAddresses(v.RawAddresses)); err != nil {
		return nil, err
	}
	if s.Rules, s.KeptRules, err = snapshotRules(n, s, v); err != nil {
		return nil, err
	}
	s.Device, err = device.Read(n, l)
	return s, err
}

// snapshotAddresses returns the addresses of a link, without the addresses that only the kernel can
// add.
func snapshotAddresses(msgs [][]byte) []Replay {
	var v4, v6 []Replay
	for _, m := range msgs {
		h, attrs, err := nlattr.ParseMessage(m, unix.SizeofIfAddrmsg)
		if err != nil || h[0] == unix.AF_INET6 && onlyByKernel(h, attrs) {
			continue
		}
		r := Replay{Text: addressText(h, attrs), Raw: m}
		if h[0] == unix.AF_INET6 {
			// The kernel puts a new IPv6 address before the others of its scope. So adding the last
			// address of the list first restores the order.
			v6 = append([]Replay{r}, v6...)
		} else {
			v4 = append(v4, r)
		}
	}
	return append(v4, v6...)
}

// onlyByKernel reports whether only the kernel can make the IPv6 address. The kernel makes a
// privacy address from the address that it belongs to, and a link-local address from a secret.
func onlyByKernel(ifaddrmsg []byte, attrs nlattr.Attrs) bool {
	flags := link.AddressFlags(ifaddrmsg, attrs)
	return flags&unix.IFA_F_TEMPORARY != 0 || flags&unix.IFA_F_STABLE_PRIVACY != 0 && ifaddrmsg[3] == unix.RT_SCOPE_LINK
}

// snapshotRoutes returns the routes of a link. It returns separately, as connected, the routes to
// the subnets of the link's addresses, which the kernel adds itself. It leaves out the other routes
// that the kernel adds: for the addresses themselves, and for router advertisements.
func snapshotRoutes(msgs [][]byte, from origin) (found, connected []Replay) {
	for _, m := range msgs {
		h, attrs, err := nlattr.ParseMessage(m, unix.SizeofRtMsg)
		if err != nil {
			continue
		}
		r := Replay{Text: routeText(h, attrs), Raw: m}
		switch {
		case !from.byKernel(h, attrs):
			found = append(found, r)
		case from.isConnected(h, attrs):
			connected = append(connected, r)
		}
	}
	return found, connected
}

func snapshotNeighbors(n *netns.Netns, index int) ([]Replay, error) {
	msgs, err := n.Dump(unix.RTM_GETNEIGH, &netlink.Ndmsg{Index: uint32(index)}, func(m []byte) bool {
		h, _, err := nlattr.ParseMessage(m, unix.SizeofNdMsg)
		return err == nil && int(int32(binary.NativeEndian.Uint32(h[4:]))) == index &&
			binary.NativeEndian.Uint16(h[8:])&netlink.NUD_PERMANENT != 0 && nlattr.IsIP(h)
	})
	if err != nil {
		return nil, fmt.Errorf("list neighbors in netns %s: %w", n.Path, err)
	}
	found := make([]Replay, 0, len(msgs))
	for _, m := range msgs {
		_, attrs, _ := nlattr.ParseMessage(m, unix.SizeofNdMsg)
		found = append(found, Replay{Text: neighborText(attrs), Raw: m})
	}
	return found, nil
}
