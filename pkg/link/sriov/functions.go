package sriov

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
	"github.com/rail-cni/rail-cni/pkg/nlsocket"
)

// withFunctions is RTEXT_FILTER_VF: the answer includes each virtual function.
const withFunctions = 1

// functionSettings are the attributes of a virtual function (IFLA_VF_*) that the
// kernel accepts in the form in which it reports them. VLAN and TX_RATE are left
// out: VLAN_LIST and RATE contain them.
var functionSettings = map[uint16]string{
	1: "MAC", 4: "spoof check", 5: "link state", 6: "rate", 7: "RSS query", 9: "trust", 10: "node GUID", 11: "port GUID", 12: "VLAN",
}

// Functions reads the settings of the link's virtual functions, each as the
// kernel's IFLA_VF_INFO. The kernel asks the driver for each of them, so call
// it only for a NIC that is lent with them.
func Functions(n *netns.Netns, index int) ([][]byte, error) {
	var functions [][]byte
	var err error
	byDump := guidsUncounted(n, index)
	if !byDump {
		functions, err = functionsIn(n, link.LinkRequest(0, index, withFunctions|link.SkipStats), index)
		byDump = errors.Is(err, unix.EMSGSIZE)
	}
	if byDump { // whose datagrams are as large as our buffer
		functions, err = nlsocket.RetryDump(func() ([][]byte, error) {
			return functionsIn(n, link.LinkRequest(unix.NLM_F_DUMP, 0, withFunctions|link.SkipStats), index)
		})
	}
	return functions, failure.Context(link.IfGone(n, err, index), "read virtual functions of link with index %d in netns %s", index, n.Path)
}

// guidsUncounted reports whether the kernel may count no room for the GUIDs of the link's virtual functions (rtnl_vfinfo_size).
// Kernels before 6.15 count none, unless 23f00807619d was added to them. With some 16 functions their answer about this link does not
// fit: they return EMSGSIZE, and warn in their log (rtnl_getlink), which ends a machine with panic_on_warn. Only InfiniBand has GUIDs.
// A dump asks the drivers of all links, so it is not for other NICs.
func guidsUncounted(n *netns.Netns, index int) bool {
	if link.KernelAtLeast(6, 15) {
		return false
	}
	l, err := link.ReadWithoutParent(n, index)
	return err == nil && l.Encap == "infiniband"
}

// functionsIn returns the virtual functions of the link with this index in the answer to a request.
func functionsIn(n *netns.Netns, req *nl.NetlinkRequest, index int) (functions [][]byte, err error) {
	seen := false
	err = n.Exchange(req, func(m []byte) {
		if link.IndexOf(m) != index {
			return
		}
		seen = true
		_, attrs, _ := nlattr.ParseMessage(bytes.Clone(m), unix.SizeofIfInfomsg)
		infos, _ := attrs.Nested(unix.IFLA_VFINFO_LIST)
		for _, info := range infos {
			all, _ := nlattr.Parse(info.Value)
			var settings nlattr.Attrs
			for _, a := range all {
				if functionSettings[a.Type] != "" {
					settings = append(settings, withProtocol(a))
				}
			}
			functions = append(functions, nlattr.Marshal(nil, settings))
		}
	})
	if err == nil && !seen {
		err = unix.ENODEV
	}
	return functions, err
}

// Restore restores the settings of the link's virtual functions, and
// returns those that still differ.
func Restore(n *netns.Netns, index int, want [][]byte) []link.Changed {
	if len(want) == 0 {
		return nil
	}
	have, err := Functions(n, index)
	if err == nil && len(have) != len(want) {
		err = fmt.Errorf("there are %d now, and were %d before", len(have), len(want))
	}
	if err != nil {
		return []link.Changed{{Setting: "virtual functions", Err: err}}
	}
	var changed []link.Changed
	for i := range want {
		was, _ := nlattr.Parse(want[i])
		is, _ := nlattr.Parse(have[i])
		for _, a := range was {
			a = withProtocol(a) // older snapshots have 0
			if now, ok := is.Get(a.Type); !ok || bytes.Equal(now, a.Value) {
				continue
			}
			if err := set(n, index, a); err != nil {
				changed = append(changed, link.Changed{Setting: fmt.Sprintf("virtual function %d, %s", i, functionSettings[a.Type]), Err: err})
			}
		}
	}
	return changed
}

// ifVFInfo is IFLA_VF_INFO of linux/if_link.h.
const ifVFInfo = 1

// Settings are settings of a virtual function, which are set through its physical function (ip-link(8),
// "vf"). A nil one stays as it is.
type Settings struct {
	MAC              net.HardwareAddr
	VLAN             *VLAN
	SpoofCheck       *bool
	Trust            *bool
	LinkState        *uint32 // IFLA_VF_LINK_STATE_…: 0 as the physical function's, 1 up, 2 down
	MinRate, MaxRate *uint32 // Mbit/s, 0 is no limit
	// GUID is the node and port GUID of an InfiniBand function, which it has when its driver is bound the next time.
	GUID *uint64
}

// VLAN is the VLAN that the NIC adds to the packets of a virtual function, which does not see it. An ID
// of 0 is none.
type VLAN struct {
	ID, QoS uint32
	Proto   uint16 // ETH_P_8021Q or ETH_P_8021AD
}

// IsZero reports whether nothing is wanted.
func (w *Settings) IsZero() bool {
	return w.MAC == nil && w.VLAN == nil && w.SpoofCheck == nil && w.Trust == nil && w.LinkState == nil && w.MinRate == nil && w.MaxRate == nil && w.GUID == nil
}

// The attributes of a virtual function that are set (IFLA_VF_*). Each begins with the number of the function.
const (
	vfMAC        = 1
	vfSpoofCheck = 4
	vfLinkState  = 5
	vfRate       = 6
	vfTrust      = 9
	vfNodeGUID   = 10
	vfPortGUID   = 11
	vfVLANList   = 12
)

// unknown is what the kernel reports for a setting that the driver does not report (rtnl_fill_vfinfo).
const unknown = ^uint32(0)

// Changes compares the settings of a virtual function, from [Function], with those that are wanted. It
// returns the settings that differ: as they are, and as wanted, both in the form that [Set] takes.
func Changes(settings []byte, w *Settings) (before, wanted []byte) {
	have, _ := nlattr.Parse(settings) // [Function] has made it
	node, port := guidsIn(have)
	guids := w.GUID != nil && (node != *w.GUID || port != *w.GUID)
	var was, is nlattr.Attrs
	for _, a := range have {
		to := bytes.Clone(a.Value)
		w.put(a.Type, to)
		same := bytes.Equal(to, a.Value) || isUnknown(a) && isNone(nlattr.Attr{Type: a.Type, Value: to})
		if isGUID(a.Type) {
			same = !guids // of two that are restored by one bind, both are recorded
		}
		if same {
			continue
		}
		is = append(is, nlattr.Attr{Type: a.Type, Flags: a.Flags, Value: to})
		if isUnknown(a) { // off, as drivers have it by default
			a.Value = bytes.Clone(a.Value)
			clear(a.Value[4:])
		}
		if isGUID(a.Type) && isNone(a) {
			a.Value = bytes.Clone(a.Value)
			binary.NativeEndian.PutUint64(a.Value[8:], NoGUID)
		}
		was = append(was, a)
	}
	return nlattr.Marshal(nil, was), nlattr.Marshal(nil, is)
}

// NoGUID is the GUID that a virtual function gets on its return if it had none before, because 0 cannot be set.
const NoGUID = ^uint64(0)

// IsGUID reports whether a port can have this GUID: not 0, which a new virtual function has, and not [NoGUID].
func IsGUID(guid uint64) bool { return guid != 0 && guid != NoGUID }

func isGUID(kind uint16) bool { return kind == vfNodeGUID || kind == vfPortGUID }

// GUIDs returns the node and the port GUID in settings of [Changes]. ok is false if they lack one.
func GUIDs(settings []byte) (node, port uint64, ok bool) {
	attrs, _ := nlattr.Parse(settings)
	node, port = guidsIn(attrs)
	return node, port, node != 0 && port != 0
}

// guidsIn returns the node and the port GUID, 0 where there is none.
func guidsIn(attrs nlattr.Attrs) (node, port uint64) {
	read := func(kind uint16) uint64 {
		value, _ := attrs.Get(kind)
		if len(value) < 16 {
			return 0
		}
		return binary.NativeEndian.Uint64(value[8:])
	}
	return read(vfNodeGUID), read(vfPortGUID)
}

// UnsetGUIDs returns the names, as in [Compare], of the GUIDs that are 0 in settings of [Function]: nobody has set
// them.
func UnsetGUIDs(settings []byte) (names []string) {
	attrs, _ := nlattr.Parse(settings) // [Function] has made it
	node, port := guidsIn(attrs)
	for kind, guid := range map[uint16]uint64{vfNodeGUID: node, vfPortGUID: port} {
		if guid == 0 {
			names = append(names, functionSettings[kind])
		}
	}
	return names
}

// WithGUIDs returns settings of [Changes] with these GUIDs where they have [NoGUID]: a driver may report 0 for those
// that it was not given itself (mlx5_ib_get_vf_guid).
func WithGUIDs(settings []byte, node, port uint64) []byte {
	attrs, _ := nlattr.Parse(settings)
	for i, a := range attrs {
		guid := map[uint16]uint64{vfNodeGUID: node, vfPortGUID: port}[a.Type]
		if IsGUID(guid) && len(a.Value) >= 16 && binary.NativeEndian.Uint64(a.Value[8:]) == NoGUID {
			attrs[i].Value = bytes.Clone(a.Value)
			binary.NativeEndian.PutUint64(attrs[i].Value[8:], guid)
		}
	}
	return nlattr.Marshal(nil, attrs)
}

// MAC returns the MAC that the physical function has given a virtual one, nil if it has given none.
// settings are from [Function].
func MAC(settings []byte) net.HardwareAddr {
	have, _ := nlattr.Parse(settings)
	value, _ := have.Get(vfMAC)
	if len(value) < 10 || bytes.Equal(value[4:10], make([]byte, 6)) {
		return nil
	}
	return bytes.Clone(value[4:10])
}

// withProtocol replaces the protocol 0 of a VLAN by 802.1Q: mlx5 reports 0, and refuses it
// (mlx5_eswitch_get_vport_config, mlx5e_set_vf_vlan).
func withProtocol(a nlattr.Attr) nlattr.Attr {
	if a.Type == vfVLANList && len(a.Value) >= 18 && a.Value[16] == 0 && a.Value[17] == 0 {
		a.Value = bytes.Clone(a.Value)
		binary.BigEndian.PutUint16(a.Value[16:], unix.ETH_P_8021Q)
	}
	return a
}

// put writes what is wanted into a setting of this type, as the kernel reported it.
func (w *Settings) put(kind uint16, value []byte) {
	ne := binary.NativeEndian
	number := func(at int, to *uint32) {
		if to != nil && len(value) >= at+4 {
			ne.PutUint32(value[at:], *to)
		}
	}
	flag := func(to *bool) {
		if to == nil {
			return
		}
		v := uint32(0)
		if *to {
			v = 1
		}
		number(4, &v)
	}
	switch kind {
	case vfMAC:
		if w.MAC != nil && len(value) >= 4+len(w.MAC) {
			clear(value[4:])
			copy(value[4:], w.MAC)
		}
	case vfSpoofCheck:
		flag(w.SpoofCheck)
	case vfTrust:
		flag(w.Trust)
	case vfLinkState:
		number(4, w.LinkState)
	case vfNodeGUID, vfPortGUID: // aligned to 8 bytes
		if w.GUID != nil && len(value) >= 16 {
			ne.PutUint64(value[8:], *w.GUID)
		}
	case vfRate:
		number(4, w.MinRate)
		number(8, w.MaxRate)
	case vfVLANList: // of one VLAN, behind the header of its attribute
		if w.VLAN != nil && len(value) >= 18 {
			number(8, &w.VLAN.ID)
			number(12, &w.VLAN.QoS)
			binary.BigEndian.PutUint16(value[16:], w.VLAN.Proto)
		}
	}
}

// isUnknown reports whether the driver does not report the setting.
func isUnknown(a nlattr.Attr) bool {
	return (a.Type == vfSpoofCheck || a.Type == vfTrust) && len(a.Value) >= 8 && binary.NativeEndian.Uint32(a.Value[4:]) == unknown
}

// isNone reports whether the value is off, none or 0, as it is with a driver that cannot set it.
func isNone(a nlattr.Attr) bool {
	value := a.Value
	if a.Type == vfVLANList {
		if len(value) < 18 {
			return false
		}
		value = value[4:16] // without the protocol
	}
	return len(value) >= 4 && len(bytes.Trim(value[4:], "\x00")) == 0
}

// Function returns the settings of a virtual function, as [Functions] does those of all. index is that of the
// physical function. It returns [link.ErrNotFound] if the link has no such function.
func Function(n *netns.Netns, index, number int) (settings []byte, err error) {
	all, err := Functions(n, index)
	if err != nil {
		return nil, err
	}
	for _, f := range all {
		attrs, _ := nlattr.Parse(f) // [Functions] has made it
		if at, ok := attrs.Get(vfMAC); ok && len(at) >= 4 && binary.NativeEndian.Uint32(at) == uint32(number) {
			return f, nil
		}
	}
	return nil, fmt.Errorf("virtual function %d of the link with index %d: %w", number, index, link.ErrNotFound)
}

// Set sets settings of [Changes]. index is that of the physical function. It sets all that it can, and
// returns the names of the others, and their errors. EOPNOTSUPP is not an error if the wanted value is off, none or 0.
func Set(n *netns.Netns, index int, settings []byte) (refused []string, err error) {
	attrs, err := nlattr.Parse(settings)
	errs := []error{err}
	for _, a := range attrs {
		err := set(n, index, a)
		if errors.Is(err, unix.EOPNOTSUPP) && isNone(a) {
			err = nil
		}
		if err != nil {
			refused = append(refused, functionSettings[a.Type])
			errs = append(errs, fmt.Errorf("%s: %w", functionSettings[a.Type], err))
		}
	}
	return refused, errors.Join(errs...)
}

// set sets one setting of a virtual function, which names its number.
func set(n *netns.Netns, index int, a nlattr.Attr) error {
	info := nlattr.Marshal(nil, nlattr.Attrs{a})
	list := nlattr.Marshal(nil, nlattr.Attrs{{Type: ifVFInfo, Flags: unix.NLA_F_NESTED, Value: info}})
	return link.Set(n, index, nlattr.Attr{Type: unix.IFLA_VFINFO_LIST, Flags: unix.NLA_F_NESTED, Value: list})
}

// Compare returns the names of the settings that differ from wanted, settings of [Changes], and of those
// that the driver does not report. It returns [link.ErrNotFound] if the physical function, the link with this index,
// has no virtual function with this number, or its driver has no answer while it resets the function.
func Compare(n *netns.Netns, index, number int, wanted []byte) (differ, unreported []string, err error) {
	attrs, err := nlattr.Parse(wanted)
	if err != nil {
		return nil, nil, err
	}
	now, err := Function(n, index, number)
	if err != nil {
		return nil, nil, err
	}
	have, _ := nlattr.Parse(now)
	for _, a := range attrs {
		switch value, _ := have.Get(a.Type); {
		case isUnknown(nlattr.Attr{Type: a.Type, Value: value}):
			unreported = append(unreported, functionSettings[a.Type])
		case !bytes.Equal(value, a.Value):
			differ = append(differ, functionSettings[a.Type])
		}
	}
	return differ, unreported, nil
}

// Isolates reports whether the setting with this name, from [Compare], keeps a virtual function apart from
// others, by its GUID too, by which a fabric knows it: one that keeps it from a former pod must not be lent.
func Isolates(setting string) bool {
	return slices.ContainsFunc([]uint16{vfVLANList, vfTrust, vfSpoofCheck, vfNodeGUID, vfPortGUID}, func(kind uint16) bool { return setting == functionSettings[kind] })
}
