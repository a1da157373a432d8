package link

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// Snapshot is the state of a link in the host netns: everything that a move to
// a pod netns resets, and everything that a pod may change. Its JSON is for
// readers of the ledger, and for [Netns.Restore].
type Snapshot struct {
	Taken       time.Time         `json:"taken"`
	Index       int               `json:"index"`
	Name        string            `json:"name"`
	AltNames    []string          `json:"altNames,omitempty"`
	Alias       string            `json:"alias,omitempty"`
	MTU         int               `json:"mtu"`
	MAC         string            `json:"mac,omitempty"`
	Broadcast   string            `json:"broadcast,omitempty"` // of the link layer
	TxQueueLen  int               `json:"txQueueLen"`
	Group       uint32            `json:"group,omitempty"`
	Master      string            `json:"master,omitempty"` // name of its bridge, bond, …; only if lent despite it
	Up          bool              `json:"up"`
	Flags       Flags             `json:"flags"`
	Receivers   *Receivers        `json:"receivers,omitempty"` // nil for a NIC that upstream's plugin lent
	Settings    map[string]uint32 `json:"settings,omitempty"`  // "gso_max_size": 65536
	Addresses   []Replay          `json:"addresses,omitempty"`
	Routes      []Replay          `json:"routes,omitempty"`
	Connected   []Replay          `json:"connected,omitempty"` // routes that the kernel makes for the addresses; only compared
	HopLinks    []HopLink         `json:"hopLinks,omitempty"`  // of nexthops by several links, the link itself included
	Nexthops    []Replay          `json:"nexthops,omitempty"`  // objects, their groups, and the groups' objects by other links
	Rules       []Replay          `json:"rules,omitempty"`     // those of its addresses
	KeptRules   []Replay          `json:"keptRules,omitempty"` // others that concern it; only compared
	Neighbors   []Replay          `json:"neighbors,omitempty"` // permanent ones only
	Sysctls     map[string]string `json:"sysctls,omitempty"`   // "ipv4/conf/arp_ignore": "1"
	Token       string            `json:"token,omitempty"`     // of IPv6 addresses (ip-token(8))
	IPoIB       *IPoIB            `json:"ipoib,omitempty"`     // of an InfiniBand interface
	Device      *Device           `json:"device,omitempty"`
	Functions   [][]byte          `json:"functions,omitempty"`   // settings of the virtual functions, if it is lent with them
	Programs    []Program         `json:"programs,omitempty"`    // BPF programs of the host, if it is lent despite them
	VRRP        []string          `json:"vrrp,omitempty"`        // the families in which a VRRP daemon listens: some addresses are the daemon's
	VRRPSources []string          `json:"vrrpSources,omitempty"` // the own addresses at which it listens, if it sends to single hosts

	self Identity // of the link; not in the record, which has it beside the snapshot
}

// Flags are the interface flags that users can set (ip-link(8)), besides up.
type Flags struct {
	Promisc      bool `json:"promisc,omitempty"`
	AllMulticast bool `json:"allmulticast,omitempty"`
	Multicast    bool `json:"multicast,omitempty"`
	NoARP        bool `json:"noarp,omitempty"`
	// Rest are the flags in restFlags, with the kernel's numbers.
	Rest uint32 `json:"rest,omitempty"`
}

// restFlags are the other flags that the kernel lets userspace set
// (__dev_change_flags), though few drivers use them.
const restFlags = unix.IFF_DEBUG | unix.IFF_NOTRAILERS | unix.IFF_PORTSEL | unix.IFF_AUTOMEDIA | unix.IFF_DYNAMIC

func flagsOf(raw uint32) Flags {
	return Flags{
		Promisc:      raw&unix.IFF_PROMISC != 0,
		AllMulticast: raw&unix.IFF_ALLMULTI != 0,
		Multicast:    raw&unix.IFF_MULTICAST != 0,
		NoARP:        raw&unix.IFF_NOARP != 0,
		Rest:         raw & restFlags,
	}
}

const settableFlags = unix.IFF_PROMISC | unix.IFF_ALLMULTI | unix.IFF_MULTICAST | unix.IFF_NOARP | restFlags

func (f Flags) raw() uint32 {
	raw := f.Rest & restFlags
	for _, one := range []struct {
		set bool
		bit uint32
	}{{f.Promisc, unix.IFF_PROMISC}, {f.AllMulticast, unix.IFF_ALLMULTI}, {f.Multicast, unix.IFF_MULTICAST}, {f.NoARP, unix.IFF_NOARP}} {
		if one.set {
			raw |= one.bit
		}
	}
	return raw
}

// Replay is one address, route or neighbor: a text for the reader, and the
// kernel's message about it, which is sent back to the kernel with the new
// interface index and without the attributes that the kernel sets itself. So
// every attribute survives, including ones unknown to this project.
type Replay struct {
	Text string `json:"text"`
	Raw  []byte `json:"raw"` // payload of RTM_NEWADDR, RTM_NEWROUTE, RTM_NEWNEIGH, …, host byte order
}

// Snapshot returns the state of the link of v, which the caller has just read from n,
// and reads the rest of it.
func (n *Netns) Snapshot(v *View) (*Snapshot, error) {
	l := v.Link
	s := &Snapshot{
		Taken: time.Now().UTC(), Index: l.Index, Name: l.Name, AltNames: l.AltNames, Alias: l.Alias,
		MTU: l.MTU, MAC: macText(l.MAC), TxQueueLen: l.TxQueueLen, Group: l.Group,
		Up: l.IsUp(), Flags: flagsOf(l.Flags), self: l.Identity(),
	}
	if l.Master != 0 {
		master := v.ByIndex(l.Master)
		if master == nil {
			return nil, notFound(unix.ENODEV, withIndex(l.Master), n.Path)
		}
		s.Master = master.Name
	}
	attrs, err := n.attrsOf(l)
	if err != nil {
		return nil, err
	}
	receivers := receiversOf(attrs)
	s.Receivers = &receivers
	s.Settings, s.Broadcast, s.Token = settingsOf(attrs), macText(broadcastOf(attrs)), tokenOf(attrs)
	s.IPoIB = snapshotIPoIB(attrs, v)
	if s.Neighbors, err = n.snapshotNeighbors(l.Index); err != nil {
		return nil, err
	}
	if s.Sysctls, err = n.sysctls(l.Name, conf(attrs)); err != nil {
		return nil, err
	}
	s.Addresses = snapshotAddresses(v.addresses)
	s.Routes, s.Connected = snapshotRoutes(v.routes, originOf(l, v.addresses, s.Sysctls))
	s.addHopLinks(v)
	if err := n.snapshotNexthops(v, s); err != nil {
		return nil, err
	}
	if s.VRRP, s.VRRPSources, err = n.vrrp(l.Name, globalAddresses(v.addresses)); err != nil {
		return nil, err
	}
	if s.Rules, s.KeptRules, err = n.snapshotRules(s, v); err != nil {
		return nil, err
	}
	s.Device, err = n.Device(l)
	return s, err
}

// dump requests all objects of one kind, and returns the payloads of those that are
// wanted. wanted must not keep its argument.
func (n *Netns) dump(ask int, header nl.NetlinkRequestData, wanted func(payload []byte) bool) ([][]byte, error) {
	return dumpBy(n.exchange, ask, wanted, header)
}

// dumpOf is dump of some objects: the kernel sends only those that the header and the attributes
// select. A kernel that cannot select sends all, so wanted must select as well.
func (n *Netns) dumpOf(ask int, header nl.NetlinkRequestData, attrs nlattr.Attrs, wanted func(payload []byte) bool) ([][]byte, error) {
	data := []nl.NetlinkRequestData{header, rawHeader(nlattr.Marshal(nil, attrs))}
	found, err := dumpBy(n.sockets[unix.NETLINK_ROUTE].exchangeStrictly, ask, wanted, data...)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return dumpBy(n.exchange, ask, wanted, data...)
	}
	return found, err
}

func dumpBy(exchange func(*nl.NetlinkRequest, func([]byte)) error, ask int, wanted func(payload []byte) bool, data ...nl.NetlinkRequestData) ([][]byte, error) {
	return retryDump(func() ([][]byte, error) {
		var found [][]byte
		req := nl.NewNetlinkRequest(ask, unix.NLM_F_DUMP)
		for _, d := range data {
			req.AddData(d)
		}
		err := exchange(req, func(m []byte) {
			if wanted(m) {
				found = append(found, bytes.Clone(m))
			}
		})
		return found, err
	})
}

// snapshotAddresses returns the addresses of a link, without those that only the
// kernel can add.
func snapshotAddresses(msgs [][]byte) []Replay {
	var v4, v6 []Replay
	for _, m := range msgs {
		h, attrs, err := nlattr.ParseMessage(m, unix.SizeofIfAddrmsg)
		if err != nil || h[0] == unix.AF_INET6 && onlyByKernel(h, attrs) {
			continue
		}
		r := Replay{Text: addressText(h, attrs), Raw: m}
		if h[0] == unix.AF_INET6 {
			// The kernel puts a new IPv6 address before those of its scope:
			// adding the last of the list first restores the order.
			v6 = append([]Replay{r}, v6...)
		} else {
			v4 = append(v4, r)
		}
	}
	return append(v4, v6...)
}

// onlyByKernel reports whether only the kernel can make the IPv6 address: a privacy
// address from the one it belongs to, a link-local one from a secret.
func onlyByKernel(ifaddrmsg []byte, attrs nlattr.Attrs) bool {
	flags := addressFlags(ifaddrmsg, attrs)
	return flags&unix.IFA_F_TEMPORARY != 0 || flags&unix.IFA_F_STABLE_PRIVACY != 0 && ifaddrmsg[3] == unix.RT_SCOPE_LINK
}

// addressFlags returns all IFA_F_* of an address; its header has room for only
// eight.
func addressFlags(ifaddrmsg []byte, attrs nlattr.Attrs) uint32 {
	if all, ok := attrs.Uint32(unix.IFA_FLAGS); ok {
		return all
	}
	return uint32(ifaddrmsg[2])
}

// snapshotRoutes returns the routes of a link, and apart from them those to the subnets of its
// addresses, which the kernel adds itself. It leaves out what else the kernel adds: for the
// addresses themselves, and for router advertisements.
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

func leavesBy(attrs nlattr.Attrs, index int) bool {
	if oif, ok := attrs.Uint32(unix.RTA_OIF); ok {
		return int(oif) == index
	}
	leaves := false
	hops, _ := attrs.Get(unix.RTA_MULTIPATH)
	eachHop(hops, func(hop []byte) { leaves = leaves || int(binary.NativeEndian.Uint32(hop[4:])) == index })
	return leaves
}

func (n *Netns) snapshotNeighbors(index int) ([]Replay, error) {
	msgs, err := n.dump(unix.RTM_GETNEIGH, &netlink.Ndmsg{Index: uint32(index)}, func(m []byte) bool {
		h, _, err := nlattr.ParseMessage(m, unix.SizeofNdMsg)
		return err == nil && int(int32(binary.NativeEndian.Uint32(h[4:]))) == index &&
			binary.NativeEndian.Uint16(h[8:])&netlink.NUD_PERMANENT != 0 && ofIP(h)
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
