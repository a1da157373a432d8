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

// withFunctions is RTEXT_FILTER_VF. With it the kernel's answer includes each virtual function.
const withFunctions = 1

// functionSettings are the attributes of a virtual function (IFLA_VF_*) that the
// kernel accepts in the form in which it reports them. VLAN and TX_RATE are left
// out: VLAN_LIST and RATE contain them.
var functionSettings = map[uint16]string{
	1: "MAC", 4: "spoof check", 5: "link state", 6: "rate", 7: "RSS query", 9: "trust", 10: "node GUID", 11: "port GUID", 12: "VLAN",
}

// Functions reads the settings of the link's virtual functions. Each setting has the form of the
// kernel's IFLA_VF_INFO. The kernel asks the driver for each virtual function, so call Functions
// only for a NIC that is lent with its virtual functions.
func Functions(n *netns.Netns, index int) ([][]byte, error) {
	var functions [][]byte
	var err error
	byDump := guidsUncounted(n, index)
	if !byDump {
		functions, err = functionsIn(n, link.LinkRequest(0, index, withFunctions|link.SkipStats), index)
		byDump = errors.Is(err, unix.EMSGSIZE)
	}
	if byDump { // the datagrams of a dump are as large as our buffer
		functions, err = nlsocket.RetryDump(func() ([][]byte, error) {
			return functionsIn(n, link.LinkRequest(unix.NLM_F_DUMP, 0, withFunctions|link.SkipStats), index)
		})
	}
	return functions, failure.Context(link.IfGone(n, err, index), "read virtual functions of link with index %d in netns %s", index, n.Path)
}

// guidsUncounted reports whether the kernel may reserve no room for the GUIDs of the link's virtual functions (rtnl_vfinfo_size).
// Kernels before 6.15 reserve none, unless commit 23f00807619d was added to them. With some 16 functions their answer about this link
// does not fit. Then they return EMSGSIZE and write a warning to their log (rtnl_getlink), which ends a machine with panic_on_warn.
// For such a link a dump is used. Only InfiniBand has GUIDs. A dump is not used for other NICs, because it asks the drivers of all
// links.
func guidsUncounted(n *netns.Netns, index int) bool {
	if link.KernelAtLeast(6, 15) {
		return false
	}
	l, err := link.ReadWithoutParent(n, index)
	return err == nil && l.Encap == "infiniband"
}

// functionsIn returns the virtual functions of the link with this index, which it reads from the
// answer to a request.
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

// Restore restores the settings of the link's virtual functions. It returns the settings that still
// differ.
func Restore(n *netns.Netns, index int, want [][]byte) []link.Changed {
	if len(want) == 0 {
		return nil
	}
	have, err := Functions(n, index)
	if err == nil && len(have) != len(want) {
		err = fmt.Errorf("the NIC has %d now, and had %d before", len(have), len(want))
	}
	if err != nil {
		return []link.Changed{{Setting: "virtual functions", Err: err}}
	}
	var changed []link.Changed
	for i := range want {
		was, _ := nlattr.Parse(want[i])
		is, _ := nlattr.Parse(have[i])
		for _, a := range was {
			a = withProtocol(a) // older snapshots have the protocol 0
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

// Settings has settings of a virtual function, which are set through its physical function (ip-link(8), "vf"). A setting that is nil
// is not changed.
type Settings struct {
	MAC              net.HardwareAddr
	VLAN             *VLAN
	SpoofCheck       *bool
	Trust            *bool
	LinkState        *uint32 // IFLA_VF_LINK_STATE_…: 0 as the physical function's, 1 up, 2 down
	MinRate, MaxRate *uint32 // Mbit/s, 0 is no limit
	// GUID is the node GUID and the port GUID of an InfiniBand function. The function gets this GUID when its driver is bound the next
	// time.
	GUID *uint64
}

// VLAN is the VLAN that the NIC adds to the packets of a virtual function. The function does not see the VLAN. An ID of 0 means no
// VLAN.
type VLAN struct {
	ID, QoS uint32
	Proto   uint16 // ETH_P_8021Q or ETH_P_8021AD
}

// IsZero reports whether w has no setting.
func (w *Settings) IsZero() bool {
	return w.MAC == nil && w.VLAN == nil && w.SpoofCheck == nil && w.Trust == nil && w.LinkState == nil && w.MinRate == nil && w.MaxRate == nil && w.GUID == nil
}

// The attributes of a virtual function (IFLA_VF_*) that this package sets. Each value begins with the number of the function.
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

// unknown is the value that the kernel reports if the driver does not report the setting (rtnl_fill_vfinfo).
const unknown = ^uint32(0)

// Changes compares the settings of a virtual function with the wanted settings w. settings are from [Function]. It returns the
// settings that differ: before has the present values, and wanted has the values in w. Both have the form that [Set] accepts.
func Changes(settings []byte, w *Settings) (before, wanted []byte) {
	have, _ := nlattr.Parse(settings) // no error, because [Function] made the settings
	node, port := guidsIn(have)
	guids := w.GUID != nil && (node != *w.GUID || port != *w.GUID)
	var was, is nlattr.Attrs
	for _, a := range have {
		to := bytes.Clone(a.Value)
		w.put(a.Type, to)
		same := bytes.Equal(to, a.Value) || isUnknown(a) && isNone(nlattr.Attr{Type: a.Type, Value: to})
		if isGUID(a.Type) {
			same = !guids // one bind restores both GUIDs, so both are recorded if one differs
		}
		if same {
			continue
		}
		is = append(is, nlattr.Attr{Type: a.Type, Flags: a.Flags, Value: to})
		if isUnknown(a) { // recorded as off, which is the default of drivers
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

// IsGUID reports whether a port can have this GUID. It returns false for 0, which a new virtual function has, and for [NoGUID].
func IsGUID(guid uint64) bool { return guid != 0 && guid != NoGUID }

func isGUID(kind uint16) bool { return kind == vfNodeGUID || kind == vfPortGUID }

// GUIDs returns the node GUID and the port GUID in settings that [Changes] returned. ok is false if
// one of the two is missing.
func GUIDs(settings []byte) (node, port uint64, ok bool) {
	attrs, _ := nlattr.Parse(settings)
	node, port = guidsIn(attrs)
	return node, port, node != 0 && port != 0
}

// guidsIn returns the node GUID and the port GUID in attrs. A GUID that is missing is 0.
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

// UnsetGUIDs returns the names of the GUIDs that are 0 in settings of [Function], because nobody has set them. The names are the same
// as in [Compare].
func UnsetGUIDs(settings []byte) (names []string) {
	attrs, _ := nlattr.Parse(settings) // no error, because [Function] made the settings
	node, port := guidsIn(attrs)
	for kind, guid := range map[uint16]uint64{vfNodeGUID: node, vfPortGUID: port} {
		if guid == 0 {
			names = append(names, functionSettings[kind])
		}
	}
	return names
}

// WithGUIDs returns settings of [Changes] in which each [NoGUID] is replaced by the GUID node or port. A driver may report 0 for a
// GUID that it was not given itself (mlx5_ib_get_vf_guid).
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

// MAC returns the MAC that the physical function has given the virtual function, or nil if it has
// given none. settings are from [Function].
func MAC(settings []byte) net.HardwareAddr {
	have, _ := nlattr.Parse(settings)
	value, _ := have.Get(vfMAC)
	if len(value) < 10 || bytes.Equal(value[4:10], make([]byte, 6)) {
		return nil
	}
	return bytes.Clone(value[4:10])
}

// withProtocol replaces the protocol 0 of a VLAN by 802.1Q: mlx5 reports 0, but refuses 0
// (mlx5_eswitch_get_vport_config, mlx5e_set_vf_vlan).
func withProtocol(a nlattr.Attr) nlattr.Attr {
	if a.Type == vfVLANList && len(a.Value) >= 18 && a.Value[16] == 0 && a.Value[17] == 0 {
		a.Value = bytes.Clone(a.Value)
		binary.BigEndian.PutUint16(a.Value[16:], unix.ETH_P_8021Q)
	}
	return a
}

// put writes the wanted value into value, which is a setting of this type as the kernel reported
// it.
func (w *Settings) put(kind uint16, value []byte) {
	ne := binary.NativeEndian
	number := func(off int, to *uint32) {
		if to != nil && len(value) >= off+4 {
			ne.PutUint32(value[off:], *to)
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
	case vfNodeGUID, vfPortGUID: // the GUID is aligned to 8 bytes
		if w.GUID != nil && len(value) >= 16 {
			ne.PutUint64(value[8:], *w.GUID)
		}
	case vfRate:
		number(4, w.MinRate)
		number(8, w.MaxRate)
	case vfVLANList: // a list of one VLAN, which follows the header of its attribute
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

// isNone reports whether the value is off, none or 0, which is the value with a driver that cannot
// set it.
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

// Function returns the settings of one virtual function, in the form of [Functions]. index is the index of the physical function. The
// error wraps [link.ErrNotFound] if the link has no such function.
func Function(n *netns.Netns, index, number int) (settings []byte, err error) {
	all, err := Functions(n, index)
	if err != nil {
		return nil, err
	}
	for _, f := range all {
		attrs, _ := nlattr.Parse(f) // no error, because [Functions] read it
		if mac, ok := attrs.Get(vfMAC); ok && len(mac) >= 4 && binary.NativeEndian.Uint32(mac) == uint32(number) {
			return f, nil
		}
	}
	return nil, fmt.Errorf("virtual function %d of the link with index %d: %w", number, index, link.ErrNotFound)
}

// Set sets settings that [Changes] returned. index is the index of the physical function. It sets all settings that it can. refused
// has the names of the other settings, and err has their errors. EOPNOTSUPP is not an error if the wanted value is off, none or 0.
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

// set sets one setting of a virtual function. The setting contains the number of the function.
func set(n *netns.Netns, index int, a nlattr.Attr) error {
	info := nlattr.Marshal(nil, nlattr.Attrs{a})
	list := nlattr.Marshal(nil, nlattr.Attrs{{Type: ifVFInfo, Flags: unix.NLA_F_NESTED, Value: info}})
	return link.Set(n, index, nlattr.Attr{Type: unix.IFLA_VFINFO_LIST, Flags: unix.NLA_F_NESTED, Value: list})
}

// Compare compares the virtual function with wanted, which [Changes] returned. differ has the names of the settings that differ, and
// unreported has the names of the settings that the driver does not report. index is the index of the physical function. The error
// wraps [link.ErrNotFound] if the physical function has no virtual function with this number, or if its driver does not answer because
// it resets the function.
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

// Isolates reports whether the setting with this name, from [Compare], separates a virtual function from others. A GUID counts,
// because a fabric knows the function by it. A function with a setting that isolates it from a former pod must not be lent.
func Isolates(setting string) bool {
	return slices.ContainsFunc([]uint16{vfVLANList, vfTrust, vfSpoofCheck, vfNodeGUID, vfPortGUID}, func(kind uint16) bool { return setting == functionSettings[kind] })
}
