package sriov

import (
	"encoding/binary"
	"fmt"
	"net"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// textRSSQuery is an attribute of a virtual function that only [Text] uses.
const textRSSQuery = 7

// Setting is a virtual function's setting in a form for people, for example "VLAN" and "100 qos 5
// 802.1ad".
type Setting struct{ Name, Value string }

// Text returns settings of the form of [Changes] in a form for people. It leaves out what it cannot read, because a
// record may have been edited. The node GUID and the port GUID of an InfiniBand function are shown as one setting if
// they are equal.
func Text(settings []byte) []Setting {
	attrs, _ := nlattr.Parse(settings)
	var all []Setting
	guids := map[uint16]string{}
	for _, a := range attrs {
		if value := guidText(a.Value); value != "" && (a.Type == vfNodeGUID || a.Type == vfPortGUID) {
			guids[a.Type] = value
		} else if name, value := settingText(a.Type, a.Value); value != "" {
			all = append(all, Setting{name, value})
		}
	}
	node, port := guids[vfNodeGUID], guids[vfPortGUID]
	switch {
	case node == port && node != "", node == "" && port != "":
		all = append(all, Setting{"guid", port})
	case node != "" && port == "":
		all = append(all, Setting{"guid", node})
	case node != "":
		all = append(all, Setting{"node guid", node}, Setting{"port guid", port})
	}
	return all
}

// settingText returns the name and the value of a setting. Both are "" if the setting is damaged or nobody sets it.
func settingText(kind uint16, value []byte) (name, text string) {
	name = functionSettings[kind]
	v := uint32At(value, 4)
	switch {
	case v == nil:
	case kind == vfMAC && len(value) >= 10:
		text = "none"
		if mac := net.HardwareAddr(value[4:10]); mac.String() != "00:00:00:00:00:00" {
			text = mac.String()
		}
	case kind == vfVLANList:
		if vlan, ok := vlanIn(value); ok {
			text = vlan.String()
		}
	case kind == vfSpoofCheck, kind == vfTrust, kind == textRSSQuery:
		text = map[uint32]string{0: "off", 1: "on", unknown: "unknown"}[*v]
	case kind == vfLinkState:
		text = map[uint32]string{0: "auto", 1: "enable", 2: "disable"}[*v]
	case kind == vfRate:
		if maxRate := uint32At(value, 8); maxRate != nil {
			text = fmt.Sprintf("min %d, max %d Mbit/s", *v, *maxRate)
		}
	}
	return name, text
}

// String returns the VLAN in the form that ip-link(8) accepts, such as "100 qos 5 802.1ad". It
// returns "none" if there is no VLAN.
func (v VLAN) String() string {
	if v.ID == 0 && v.QoS == 0 {
		return "none"
	}
	text := []string{fmt.Sprint(v.ID)}
	if v.QoS != 0 {
		text = append(text, fmt.Sprintf("qos %d", v.QoS))
	}
	if v.Proto == unix.ETH_P_8021AD {
		text = append(text, "802.1ad")
	}
	return strings.Join(text, " ")
}

// vlanIn returns the first VLAN of a list.
func vlanIn(list []byte) (v VLAN, ok bool) {
	infos, _ := nlattr.Parse(list)
	if len(infos) == 0 || len(infos[0].Value) < 14 { // struct ifla_vf_vlan_info
		return v, false
	}
	info := infos[0].Value
	return VLAN{ID: *uint32At(info, 4), QoS: *uint32At(info, 8), Proto: binary.BigEndian.Uint16(info[12:])}, true
}

// guidText returns the GUID in a struct ifla_vf_guid, or "" if there is none.
func guidText(value []byte) string {
	if len(value) < 16 {
		return ""
	}
	guid := net.HardwareAddr(binary.BigEndian.AppendUint64(nil, binary.NativeEndian.Uint64(value[8:])))
	return guid.String()
}

// uint32At returns the number at an offset, or nil if the value ends before it.
func uint32At(value []byte, off int) *uint32 {
	if len(value) < off+4 {
		return nil
	}
	v := binary.NativeEndian.Uint32(value[off:])
	return &v
}

// State has the settings that isolate a virtual function from others, as the driver reports them.
type State struct {
	Number            int
	VLAN              VLAN  // the ID is 0 if there is no VLAN
	SpoofCheck, Trust *bool // nil if the driver does not report it
}

// StateOf reads settings of [Functions]. ok is false if the settings do not contain the number of
// the function.
func StateOf(settings []byte) (s State, ok bool) {
	attrs, _ := nlattr.Parse(settings)
	mac, _ := attrs.Get(vfMAC)
	number := uint32At(mac, 0)
	if number == nil {
		return s, false
	}
	s.Number = int(*number)
	if list, found := attrs.Get(vfVLANList); found {
		s.VLAN, _ = vlanIn(list)
	}
	flag := func(kind uint16) *bool {
		value, _ := attrs.Get(kind)
		v := uint32At(value, 4)
		if v == nil || *v == unknown {
			return nil
		}
		enabled := *v != 0
		return &enabled
	}
	s.SpoofCheck, s.Trust = flag(vfSpoofCheck), flag(vfTrust)
	return s, true
}
