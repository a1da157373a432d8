package settings

import (
	"encoding/binary"
	"net"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

// numbers are further numbers of a link that a pod can change, and that survive a move. Each has
// its name in ip-link(8), and its attribute. For example, a NIC that returned in mode "dormant"
// would never be used again.
var numbers = []struct {
	name string
	kind uint16
}{
	{"linkmode", unix.IFLA_LINKMODE},
	{"gso_max_size", unix.IFLA_GSO_MAX_SIZE},
	{"gso_max_segs", unix.IFLA_GSO_MAX_SEGS},
	{"gro_max_size", unix.IFLA_GRO_MAX_SIZE},
	{"gso_ipv4_max_size", unix.IFLA_GSO_IPV4_MAX_SIZE},
	{"gro_ipv4_max_size", unix.IFLA_GRO_IPV4_MAX_SIZE},
	{"proto_down", unix.IFLA_PROTO_DOWN},
}

// Read returns the settings that the kernel reports.
func Read(attrs nlattr.Attrs) map[string]uint32 {
	found := map[string]uint32{}
	for _, s := range numbers {
		switch v, _ := attrs.Get(s.kind); len(v) {
		case 1:
			found[s.name] = uint32(v[0])
		case 4:
			found[s.name] = binary.NativeEndian.Uint32(v)
		}
	}
	if _, known := found["proto_down"]; known {
		found[protoDownReason] = protoDownReasons(attrs)
	}
	return found
}

// Restore sets the settings that differ from attrs.
func Restore(n *netns.Netns, index int, attrs nlattr.Attrs, want map[string]uint32) error {
	have := Read(attrs)
	change, after := restoreReasons(have, want)
	for _, s := range numbers {
		wanted, ok := want[s.name]
		if now, known := have[s.name]; !ok || !known || now == wanted {
			continue
		}
		value := binary.NativeEndian.AppendUint32(nil, wanted)
		if old, _ := attrs.Get(s.kind); len(old) == 1 {
			value = []byte{byte(wanted)}
		}
		change = append(change, nlattr.Attr{Type: s.kind, Value: value})
	}
	for _, c := range []nlattr.Attrs{change, after} {
		if len(c) == 0 {
			continue
		}
		if err := link.Set(n, index, c...); err != nil {
			return err
		}
	}
	return nil
}

// protoDownReason is the set of reasons (bits) why a link is held down. A pod can set reasons
// without setting proto_down.
const protoDownReason = "proto_down_reason"

// protoDownReasons returns the reasons. If there are none, the kernel does not report the
// attribute.
func protoDownReasons(attrs nlattr.Attrs) uint32 {
	reason, err := attrs.Nested(unix.IFLA_PROTO_DOWN_REASON)
	if err != nil {
		return 0
	}
	bits, _ := reason.Uint32(unix.IFLA_PROTO_DOWN_REASON_VALUE)
	return bits
}

// restoreReasons returns the changes that restore the reasons. before must be made before a change
// of proto_down, and after must be made after it: while there is a reason, the kernel does not
// clear proto_down (do_set_proto_down). The reasons are unknown for a NIC that upstream's plugin
// lent.
func restoreReasons(have, want map[string]uint32) (before, after nlattr.Attrs) {
	now, wanted := have[protoDownReason], want[protoDownReason]
	if _, known := want[protoDownReason]; !known || now == wanted {
		return nil, nil
	}
	return changeReasons(now, 0), changeReasons(wanted, wanted)
}

func changeReasons(mask, value uint32) nlattr.Attrs {
	if mask == 0 {
		return nil
	}
	nested := nlattr.Marshal(nil, nlattr.Attrs{
		{Type: unix.IFLA_PROTO_DOWN_REASON_MASK, Value: binary.NativeEndian.AppendUint32(nil, mask)},
		{Type: unix.IFLA_PROTO_DOWN_REASON_VALUE, Value: binary.NativeEndian.AppendUint32(nil, value)},
	})
	return nlattr.Attrs{{Type: unix.IFLA_PROTO_DOWN_REASON, Flags: unix.NLA_F_NESTED, Value: nested}}
}

// RestoreBroadcast restores the link-layer broadcast address, to which ARP requests are sent: a pod
// that changed the address could receive the requests of later pods. text is the address. It is
// empty for a NIC that upstream's plugin lent. In that case RestoreBroadcast sets Ethernet's
// broadcast address.
func RestoreBroadcast(n *netns.Netns, l *link.Link, attrs nlattr.Attrs, text string) error {
	if text == "" && l.Encap == "ether" {
		text = "ff:ff:ff:ff:ff:ff"
	}
	have := link.BroadcastOf(attrs)
	if text == "" || link.MACText(have) == text {
		return nil
	}
	want, err := net.ParseMAC(text)
	if err != nil {
		return err
	}
	return link.Set(n, l.Index, nlattr.Attr{Type: unix.IFLA_BROADCAST, Value: want})
}

// TokenOf returns the link's interface identifier for the IPv6 addresses from router advertisements
// (ip-token(8)), or "" if none is set.
func TokenOf(attrs nlattr.Attrs) string {
	for _, family := range []uint16{unix.IFLA_AF_SPEC, unix.AF_INET6} {
		var err error
		if attrs, err = attrs.Nested(family); err != nil {
			return ""
		}
	}
	token, _ := attrs.Get(unix.IFLA_INET6_TOKEN)
	if ip := net.IP(token); len(ip) == net.IPv6len && !ip.IsUnspecified() {
		return ip.String()
	}
	return ""
}

// RestoreToken sets the interface identifier of the link, unless it is "".
func RestoreToken(n *netns.Netns, index int, text string) error {
	if text == "" {
		return nil
	}
	token := nlattr.Marshal(nil, nlattr.Attrs{{Type: unix.IFLA_INET6_TOKEN, Value: net.ParseIP(text).To16()}})
	family := nlattr.Marshal(nil, nlattr.Attrs{{Type: unix.AF_INET6, Flags: unix.NLA_F_NESTED, Value: token}})
	return link.Set(n, index, nlattr.Attr{Type: unix.IFLA_AF_SPEC, Flags: unix.NLA_F_NESTED, Value: family})
}
