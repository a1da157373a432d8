package link

import (
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

func TestMembersOfTheGroupOfVRRP(t *testing.T) {
	const igmp = "Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter\n" +
		"1\tlo        :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n" +
		"2\teth0      :     2      V3\n\t\t\t\t120000E0     1 0:00000000\t\t0\n\t\t\t\t010000E0     1 0:00000000\t\t0\n" +
		"3\teth1      :     1      V3\n\t\t\t\t010000E0     1 0:00000000\t\t0\n"
	const igmp6 = "2    eth0            ff0200000000000000000001ff000001     1 00000004 0\n" +
		"3    eth1            ff020000000000000000000000000012     1 00000004 0\n"
	for device, want := range map[string][2]bool{"lo": {}, "eth0": {true, false}, "eth1": {false, true}, "eth": {}, "": {}} {
		if got := isMember(strings.NewReader(igmp), device, vrrpGroups4); got != want[0] {
			t.Errorf("IPv4 of %q: %v", device, got)
		}
		if got := isMember(strings.NewReader(igmp6), device, vrrpGroups6); got != want[1] {
			t.Errorf("IPv6 of %q: %v", device, got)
		}
	}
}

func TestAddressesOfVRRPAreKnownByMarkOrForm(t *testing.T) {
	marked := nlattr.Attrs{{Type: ifaProto, Value: []byte{unix.RTPROT_KEEPALIVED}}}
	peer := nlattr.Attrs{{Type: unix.IFA_LOCAL, Value: []byte{10, 0, 0, 1}}, {Type: unix.IFA_ADDRESS, Value: []byte{10, 0, 0, 2}}}
	message := func(family, prefix, flags byte) []byte {
		return []byte{family, prefix, flags, unix.RT_SCOPE_UNIVERSE, 0, 0, 0, 0}
	}
	own := []Replay{{Raw: message(unix.AF_INET, 24, 0)}, {Raw: message(unix.AF_INET6, 64, 0)}}
	for name, c := range map[string]struct {
		family, prefix, flags byte
		attrs                 nlattr.Attrs
		listens               string // the family in which the form counts
		always                bool
	}{
		"the link's own":         {family: unix.AF_INET, prefix: 24, flags: unix.IFA_F_PERMANENT},
		"beside it":              {family: unix.AF_INET, prefix: 24, flags: unix.IFA_F_SECONDARY, listens: ipv4},
		"a host address":         {family: unix.AF_INET, prefix: 32, listens: ipv4},
		"a peer":                 {family: unix.AF_INET, prefix: 32, attrs: peer},
		"IPv6":                   {family: unix.AF_INET6, prefix: 64},
		"IPv6, temporary":        {family: unix.AF_INET6, prefix: 64, flags: unix.IFA_F_SECONDARY},
		"an IPv6 host address":   {family: unix.AF_INET6, prefix: 128, listens: ipv6},
		"with the daemon's mark": {family: unix.AF_INET, prefix: 24, attrs: marked, always: true},
		"with another's mark":    {family: unix.AF_INET, prefix: 24, attrs: nlattr.Attrs{{Type: ifaProto, Value: []byte{3}}}},
	} {
		for _, listens := range []string{"", ipv4, ipv6} {
			want := c.always || listens != "" && listens == c.listens
			if got := (&Snapshot{VRRP: []string{listens}, Addresses: own}).isVirtual(message(c.family, c.prefix, c.flags), c.attrs); got != want {
				t.Errorf("%s, a daemon listens by %q: %v", name, listens, got)
			}
		}
	}
	// A routed host has nothing but a host address.
	if (&Snapshot{VRRP: []string{ipv4}}).isVirtual(message(unix.AF_INET, 32, 0), nil) {
		t.Error("the link's only address is taken for the daemon's")
	}
}

// Keepalived with unicast_peer has a socket at its own address, and one to send by.
func TestSocketsOfVRRP(t *testing.T) {
	word := func(ip ...byte) string { return fmt.Sprintf("%08X", binary.NativeEndian.Uint32(ip)) }
	const head, rest = "  sl  local_address rem_address   st tx_queue rx_queue\n", " 00000000:0000 07 00001380:00000000 0 563242 2\n"
	raw := head + "  24: 00000000:0070" + rest + "  24: " + word(10, 1, 0, 5) + ":0070" + rest + "   1: " + word(10, 1, 0, 6) + ":0001" + rest +
		"  24: zz00010A:0070" + rest + "  24: " + word(224, 0, 0, 18) + ":0070" + rest + "\n  24:\n"
	raw6 := head + "  24: " + word(0xfd, 0, 0, 1) + word(0, 0, 0, 0) + word(0, 0, 0, 0) + word(0, 0, 0, 5) + ":0070" + rest
	var own []net.IP
	for _, ip := range []string{"10.1.0.5", "10.1.0.6", "fd00:1::5", "fd00:1::6"} {
		own = append(own, net.ParseIP(ip))
	}
	if got := fmt.Sprint(vrrpSockets(strings.NewReader(raw), own), vrrpSockets(strings.NewReader(raw6), own)); got != "[10.1.0.5] [fd00:1::5]" {
		t.Errorf("VRRP listens at %s", got)
	}
}

// A daemon's address may have a prefix of its own, within the subnet of the link's.
func TestAddressWithinTheSubnetOfAnEarlierOneIsVirtual(t *testing.T) {
	message := func(cidr string) []byte {
		ip, subnet, err := net.ParseCIDR(cidr)
		if err != nil {
			t.Fatal(err)
		}
		bits, _ := subnet.Mask.Size()
		family := byte(unix.AF_INET6)
		if v4 := ip.To4(); v4 != nil {
			ip, family = v4, unix.AF_INET
		}
		return nlattr.Marshal([]byte{family, byte(bits), 0, unix.RT_SCOPE_UNIVERSE, 0, 0, 0, 0}, nlattr.Attrs{{Type: unix.IFA_ADDRESS, Value: ip}})
	}
	s := &Snapshot{VRRP: []string{ipv4, ipv6}, VRRPSources: []string{"10.1.0.8"}}
	for _, cidr := range []string{
		"10.1.0.5/24", "10.1.0.100/28", "10.1.0.8/30", "10.2.0.5/28", "10.2.0.6/24", "10.3.0.1/32", "fd00::5/64", "fd00::6/96", "fd00:1::6/96",
	} {
		s.Addresses = append(s.Addresses, Replay{Text: cidr, Raw: message(cidr)})
	}
	if got := fmt.Sprint(s.Virtual()); got != "[10.1.0.100/28 10.3.0.1/32 fd00::6/96]" {
		t.Errorf("virtual are %s", got)
	}
}
