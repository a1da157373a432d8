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
	for name, c := range map[string]struct {
		family, prefix, flags byte
		attrs                 nlattr.Attrs
		want                  [2]bool // without a daemon that listens, and with
	}{
		"the link's own":         {unix.AF_INET, 24, unix.IFA_F_PERMANENT, nil, [2]bool{}},
		"beside it":              {unix.AF_INET, 24, unix.IFA_F_SECONDARY, nil, [2]bool{false, true}},
		"a host address":         {unix.AF_INET, 32, 0, nil, [2]bool{false, true}},
		"IPv6":                   {unix.AF_INET6, 64, 0, nil, [2]bool{}},
		"IPv6, temporary":        {unix.AF_INET6, 64, unix.IFA_F_SECONDARY, nil, [2]bool{}},
		"an IPv6 host address":   {unix.AF_INET6, 128, 0, nil, [2]bool{false, true}},
		"with the daemon's mark": {unix.AF_INET, 24, 0, marked, [2]bool{true, true}},
		"with another's mark":    {unix.AF_INET, 24, 0, nlattr.Attrs{{Type: ifaProto, Value: []byte{3}}}, [2]bool{}},
	} {
		for i, listens := range []bool{false, true} {
			if got := (&Snapshot{VRRP: listens}).isVirtual([]byte{c.family, c.prefix, c.flags, 0, 0, 0, 0, 0}, c.attrs); got != c.want[i] {
				t.Errorf("%s, a daemon listens: %v: %v", name, listens, got)
			}
		}
	}
}
