package ibaddr

import (
	"net/netip"
	"testing"
)

func TestGIDsOfAddresses(t *testing.T) {
	for ip, want := range map[string]string{
		"10.0.0.1":          "0000:0000:0000:0000:0000:ffff:0a00:0001",
		"::ffff:10.0.0.1":   "0000:0000:0000:0000:0000:ffff:0a00:0001",
		"fd00:10::1":        "fd00:0010:0000:0000:0000:0000:0000:0001",
		"fe80::1":           "fe80:0000:0000:0000:0000:0000:0000:0001",
		"255.255.255.255":   "0000:0000:0000:0000:0000:ffff:ffff:ffff",
		"fe80::aa%net1":     "fe80:0000:0000:0000:0000:0000:0000:00aa",
		"0.0.0.0":           "0000:0000:0000:0000:0000:ffff:0000:0000",
		"2001:db8:a:b::c:d": "2001:0db8:000a:000b:0000:0000:000c:000d",
	} {
		g := GIDOf(netip.MustParseAddr(ip))
		if g.String() != want {
			t.Errorf("%s is %s, want %s", ip, g, want)
		}
		back, err := ParseGID(want)
		if err != nil || back != g || back.Addr() != netip.MustParseAddr(ip).WithZone("").Unmap() {
			t.Errorf("%s is read as %s (%s), %v", want, back, back.Addr(), err)
		}
	}
	for _, bad := range []string{"", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "fe80", "zz"} {
		if g, err := ParseGID(bad); err == nil {
			t.Errorf("%q is %s", bad, g)
		}
	}
}
