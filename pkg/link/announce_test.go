package link_test

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// A neighbor that has an entry for the former holder of an address takes the new one.
func TestAnnounceCorrectsTheNeighbors(t *testing.T) {
	r := newRail(t, "ens1")
	r.wire.IP("addr", "add", "10.9.0.254/24", "dev", "ens1-sw")
	r.wire.IP("addr", "add", "fd09::fe/64", "dev", "ens1-sw")
	addresses := []string{"10.9.0.1", "fd09::1"}
	for _, ip := range addresses {
		r.wire.IP("neigh", "add", ip, "lladdr", "02:00:00:00:00:99", "nud", "stale", "dev", "ens1-sw")
	}
	// Not an address of the link, so it must not be announced.
	r.wire.IP("neigh", "add", "fd09::77", "lladdr", "02:00:00:00:00:99", "nud", "stale", "dev", "ens1-sw")
	r.host.Sysctl("ipv6/conf/ens1/ndisc_notify", "0")
	r.host.IP("addr", "add", "10.9.0.1/24", "dev", "ens1")
	r.host.IP("addr", "add", "fd09::1/64", "dev", "ens1")
	for strings.Contains(r.host.IP("-6", "addr", "show", "dev", "ens1"), "tentative") {
		time.Sleep(time.Millisecond)
	}
	heard := r.wire.Announced("ens1-sw")
	l := byName(t, r.host, "ens1")
	ips := []netip.Addr{netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("::ffff:10.9.0.1"), netip.MustParseAddr("fd09::1"), netip.MustParseAddr("fd09::77")}
	if err := r.host.Announce(l, l.MAC, ips); err != nil {
		t.Fatal(err)
	}
	knows := func(ip string) bool {
		return strings.Contains(r.wire.IP("neigh", "show", ip), l.MAC.String())
	}
	for deadline := time.Now().Add(30 * time.Second); !knows(addresses[0]) || !knows(addresses[1]); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the neighbor still has\n%s", r.wire.IP("neigh"))
		}
	}
	if knows("fd09::77") || slices.ContainsFunc(heard(), func(s string) bool { return strings.HasPrefix(s, "fd09::77 ") }) {
		t.Errorf("an address was announced that the link does not have: %q", heard())
	}
}

// The kernel announces the address at the end of its duplicate address detection.
func TestAnnounceLeavesOutWhatIsTentative(t *testing.T) {
	r, _ := detects(t)
	r.host.Sysctl("ipv6/conf/ens1/dad_transmits", "10") // ten seconds
	heard := r.wire.Announced("ens1-sw")
	r.host.IP("addr", "add", "fd09::1/64", "dev", "ens1")
	l := byName(t, r.host, "ens1")
	if err := r.host.Announce(l, l.MAC, []netip.Addr{netip.MustParseAddr("fd09::1")}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	if slices.Contains(heard(), "fd09::1 is at "+l.MAC.String()) {
		t.Error("a tentative address was announced")
	}
}

func TestAnnounceOnALinkWithoutARPSendsNothing(t *testing.T) {
	r := newRail(t, "ens1")
	heard := r.wire.Announced("ens1-sw")
	ips := []netip.Addr{netip.MustParseAddr("10.9.0.1")}
	l := byName(t, r.host, "ens1")
	for what, announce := range map[string]func() error{
		"no Ethernet": func() error { return r.host.Announce(byName(t, r.host, "lo"), l.MAC, ips) },
		"no MAC":      func() error { return r.host.Announce(l, net.HardwareAddr{}, ips) },
		"noarp": func() error {
			r.host.IP("link", "set", "ens1", "arp", "off")
			return r.host.Announce(byName(t, r.host, "ens1"), l.MAC, ips)
		},
	} {
		if err := announce(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	time.Sleep(20 * time.Millisecond)
	if got := heard(); len(got) > 0 {
		t.Errorf("announced: %q", got)
	}
}
