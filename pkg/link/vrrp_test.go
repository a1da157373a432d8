package link

import (
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
