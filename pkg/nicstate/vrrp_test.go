package nicstate

import (
	"fmt"
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/link/vrrp"
	"github.com/rail-cni/rail-cni/pkg/nlattr"
)

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
		"beside it":              {family: unix.AF_INET, prefix: 24, flags: unix.IFA_F_SECONDARY, listens: vrrp.IPv4},
		"a host address":         {family: unix.AF_INET, prefix: 32, listens: vrrp.IPv4},
		"a peer":                 {family: unix.AF_INET, prefix: 32, attrs: peer},
		"IPv6":                   {family: unix.AF_INET6, prefix: 64},
		"IPv6, temporary":        {family: unix.AF_INET6, prefix: 64, flags: unix.IFA_F_SECONDARY},
		"an IPv6 host address":   {family: unix.AF_INET6, prefix: 128, listens: vrrp.IPv6},
		"with the daemon's mark": {family: unix.AF_INET, prefix: 24, attrs: marked, always: true},
		"with another's mark":    {family: unix.AF_INET, prefix: 24, attrs: nlattr.Attrs{{Type: ifaProto, Value: []byte{3}}}},
	} {
		for _, listens := range []string{"", vrrp.IPv4, vrrp.IPv6} {
			want := c.always || listens != "" && listens == c.listens
			if got := (&Snapshot{VRRP: []string{listens}, Addresses: own}).isVirtual(message(c.family, c.prefix, c.flags), c.attrs); got != want {
				t.Errorf("%s, a daemon listens by %q: %v", name, listens, got)
			}
		}
	}
	// A routed host has only a host address.
	if (&Snapshot{VRRP: []string{vrrp.IPv4}}).isVirtual(message(unix.AF_INET, 32, 0), nil) {
		t.Error("the link's only address is taken for the daemon's")
	}
}

// An address of a daemon may have a different prefix, within the subnet of the link's address.
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
	s := &Snapshot{VRRP: []string{vrrp.IPv4, vrrp.IPv6}, VRRPSources: []string{"10.1.0.8"}}
	for _, cidr := range []string{
		"10.1.0.5/24", "10.1.0.100/28", "10.1.0.8/30", "10.2.0.5/28", "10.2.0.6/24", "10.3.0.1/32", "fd00::5/64", "fd00::6/96", "fd00:1::6/96",
	} {
		s.Addresses = append(s.Addresses, Replay{Text: cidr, Raw: message(cidr)})
	}
	if got := fmt.Sprint(s.Virtual()); got != "[10.1.0.100/28 10.3.0.1/32 fd00::6/96]" {
		t.Errorf("virtual are %s", got)
	}
}
