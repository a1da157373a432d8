package announce_test

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link/announce"
)

// An announcement changes a neighbor's entry for the former holder of the address.
func TestAnnounceCorrectsTheNeighbors(t *testing.T) {
	r := testnet.NewRail(t, "ens1")
	r.Wire.IP("addr", "add", "10.9.0.254/24", "dev", "ens1-sw")
	r.Wire.IP("addr", "add", "fd09::fe/64", "dev", "ens1-sw")
	addresses := []string{"10.9.0.1", "fd09::1"}
	for _, ip := range addresses {
		r.Wire.IP("neigh", "add", ip, "lladdr", "02:00:00:00:00:99", "nud", "stale", "dev", "ens1-sw")
	}
	// Not an address of the link, so it must not be announced.
	r.Wire.IP("neigh", "add", "fd09::77", "lladdr", "02:00:00:00:00:99", "nud", "stale", "dev", "ens1-sw")
	r.Host.Sysctl("ipv6/conf/ens1/ndisc_notify", "0")
	r.Host.IP("addr", "add", "10.9.0.1/24", "dev", "ens1")
	r.Host.IP("addr", "add", "fd09::1/64", "dev", "ens1")
	for strings.Contains(r.Host.IP("-6", "addr", "show", "dev", "ens1"), "tentative") {
		time.Sleep(time.Millisecond)
	}
	heard := r.Wire.Announced("ens1-sw")
	l := r.Host.Link("ens1")
	ips := []netip.Addr{netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("::ffff:10.9.0.1"), netip.MustParseAddr("fd09::1"), netip.MustParseAddr("fd09::77")}
	if err := announce.Addresses(r.Host.Netns, l, l.MAC, ips); err != nil {
		t.Fatal(err)
	}
	knows := func(ip string) bool {
		return strings.Contains(r.Wire.IP("neigh", "show", ip), l.MAC.String())
	}
	for deadline := time.Now().Add(30 * time.Second); !knows(addresses[0]) || !knows(addresses[1]); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the neighbor still has\n%s", r.Wire.IP("neigh"))
		}
	}
	if knows("fd09::77") || slices.ContainsFunc(heard(), func(s string) bool { return strings.HasPrefix(s, "fd09::77 ") }) {
		t.Errorf("an address was announced that the link does not have: %q", heard())
	}
}

// The kernel sends the announcement of a single IPv4 address, and a packet socket sends the
// announcements of other addresses. Each is sent once, whatever the state of the link is.
func TestAnnounceNewAnnouncesEachAddressOnce(t *testing.T) {
	for name, c := range map[string]struct {
		addresses []string
		notYet    bool      // the operational state was not up when the caller read it
		dormant   bool      // the operational state is not up, and does not come up
		sysctl    [2]string // sysctls of the interface's neighbors
	}{
		"one address":               {addresses: []string{"10.9.0.1/24"}},
		"of a host":                 {addresses: []string{"10.9.0.1/32"}},
		"right after the carrier":   {addresses: []string{"10.9.0.1/24"}, notYet: true},
		"waits for authentication":  {addresses: []string{"10.9.0.1/24"}, dormant: true},
		"the kernel asks a daemon":  {addresses: []string{"10.9.0.1/24"}, sysctl: [2]string{"app_solicit", "1"}},
		"the kernel asks nobody":    {addresses: []string{"10.9.0.1/24"}, sysctl: [2]string{"mcast_solicit", "0"}},
		"two of one subnet":         {addresses: []string{"10.9.0.1/24", "10.9.0.2/24"}},
		"a subnet within the other": {addresses: []string{"10.9.0.1/16", "10.9.0.2/24"}},
		"both families":             {addresses: []string{"10.9.0.1/24", "fd09::1/64"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := testnet.NewRail(t, "ens1")
			r.Host.Sysctl("ipv6/conf/ens1/ndisc_notify", "0")
			if c.sysctl[0] != "" {
				r.Host.Sysctl("ipv4/neigh/ens1/"+c.sysctl[0], c.sysctl[1])
			}
			var ips []netip.Addr
			var want []string
			l := r.Host.Link("ens1")
			r.Wire.IP("neigh", "add", "10.9.0.1", "lladdr", "02:00:00:00:00:99", "nud", "reachable", "dev", "ens1-sw")
			heard := r.Wire.Announced("ens1-sw")
			for _, text := range c.addresses {
				r.Host.IP("addr", "add", text, "dev", "ens1", "nodad")
				ip := netip.MustParsePrefix(text).Addr()
				ips = append(ips, ip)
				want = append(want, ip.String()+" is at "+l.MAC.String())
			}
			if c.dormant {
				r.Host.IP("link", "set", "ens1", "state", "dormant")
				l = r.Host.Link("ens1")
			}
			l.OperUp = l.OperUp && !c.notYet
			if err := announce.NewAddresses(r.Host.Netns, l, l.MAC, ips); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(30 * time.Second); len(heard()) < len(want) && time.Now().Before(deadline); {
				time.Sleep(time.Millisecond)
			}
			time.Sleep(20 * time.Millisecond) // time for more announcements than wanted
			got := heard()
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("announced %q, want %q", got, want)
			}
			if entries := r.Host.IP("neigh", "show", "dev", "ens1"); strings.Contains(entries, "10.9.0") {
				t.Errorf("the link keeps an entry for its own address: %s", entries)
			}
			if entry := r.Wire.IP("neigh", "show", "10.9.0.1"); !strings.Contains(entry, l.MAC.String()) {
				t.Errorf("the neighbor still has %s", entry)
			}
		})
	}
}

// The kernel announces the address at the end of its duplicate address detection.
func TestAnnounceLeavesOutWhatIsTentative(t *testing.T) {
	r, _ := testnet.NewRailWithDAD(t)
	r.Host.Sysctl("ipv6/conf/ens1/dad_transmits", "10") // ten seconds
	heard := r.Wire.Announced("ens1-sw")
	r.Host.IP("addr", "add", "fd09::1/64", "dev", "ens1")
	l := r.Host.Link("ens1")
	if err := announce.Addresses(r.Host.Netns, l, l.MAC, []netip.Addr{netip.MustParseAddr("fd09::1")}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	if slices.Contains(heard(), "fd09::1 is at "+l.MAC.String()) {
		t.Error("a tentative address was announced")
	}
}

func TestAnnounceOnALinkWithoutARPSendsNothing(t *testing.T) {
	r := testnet.NewRail(t, "ens1")
	heard := r.Wire.Announced("ens1-sw")
	ips := []netip.Addr{netip.MustParseAddr("10.9.0.1")}
	l := r.Host.Link("ens1")
	for what, announce := range map[string]func() error{
		"no Ethernet": func() error { return announce.Addresses(r.Host.Netns, r.Host.Link("lo"), l.MAC, ips) },
		"no MAC":      func() error { return announce.Addresses(r.Host.Netns, l, net.HardwareAddr{}, ips) },
		"noarp": func() error {
			r.Host.IP("link", "set", "ens1", "arp", "off")
			return announce.Addresses(r.Host.Netns, r.Host.Link("ens1"), l.MAC, ips)
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
