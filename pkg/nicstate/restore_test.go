package nicstate_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/link/sysctl"
	"github.com/rail-cni/rail-cni/pkg/nicstate"
)

const (
	nicName = "ens12np0"
)

// configured makes a rail whose NIC has every kind of setting of a host.
func configured(t *testing.T) *testnet.Rail {
	t.Helper()
	r := testnet.NewRail(t, nicName)
	h := r.Host
	// The partner of the multipath routes, and a second gateway.
	h.NIC("ens13np0", r.Wire)
	h.IP("addr", "add", "172.31.2.5/24", "dev", "ens13np0")
	h.IP("addr", "add", "fd00:99::5/64", "dev", "ens13np0")
	for _, args := range [][]string{
		{"link", "property", "add", "dev", nicName, "altname", "enp4s0np0", "altname", "rail-one-of-this-very-node"},
		{
			"link", "set", nicName, "down", "alias", "rail 1; do not touch", "mtu", "8000", "address", "02:00:00:00:00:17",
			"txqueuelen", "321", "group", "9", "gso_max_size", "60000", "gso_max_segs", "60", "gro_max_size", "61000",
		},
		{"link", "set", nicName, "up", "promisc", "on", "allmulticast", "on"},

		{"addr", "add", "172.31.1.9/24", "brd", "+", "dev", nicName},
		{"addr", "add", "172.31.1.5/24", "brd", "172.31.1.254", "dev", nicName},
		{"addr", "add", "172.31.1.7/24", "dev", nicName},
		{"addr", "add", "10.9.0.1", "peer", "10.9.0.2/32", "label", nicName + ":p2p", "dev", nicName},
		{"addr", "add", "192.168.7.1/24", "noprefixroute", "dev", nicName},
		{"addr", "add", "192.168.8.1/24", "metric", "77", "scope", "link", "dev", nicName},
		{"addr", "add", "10.10.0.1/24", "valid_lft", "1000", "preferred_lft", "500", "dev", nicName},
		{"addr", "add", "fd00:1::9/64", "dev", nicName},
		{"addr", "add", "fd00:1::5/64", "dev", nicName},
		{"addr", "add", "fd00:1::7/64", "dev", nicName},
		{"addr", "add", "fd00:2::1/64", "noprefixroute", "dev", nicName},
		{"addr", "add", "fd00:3::1/64", "valid_lft", "1000", "preferred_lft", "500", "dev", nicName},
		{"addr", "add", "fd00:4::1/128", "nodad", "home", "dev", nicName},
		{"addr", "add", "fe80::17/64", "dev", nicName},

		{"route", "add", "10.60.0.0/24", "dev", nicName, "scope", "link"},
		{"route", "add", "10.50.0.0/16", "via", "10.60.0.1", "dev", nicName}, // precedes its gateway's route
		{"route", "add", "10.51.0.0/16", "via", "172.31.1.1", "metric", "7", "src", "172.31.1.7"},
		{"route", "add", "10.52.0.0/16", "via", "10.99.0.1", "dev", nicName, "onlink"},
		{"route", "add", "10.53.0.0/16", "via", "172.31.1.1", "mtu", "1400", "advmss", "1300", "initcwnd", "20"},
		{"route", "add", "default", "via", "172.31.1.1", "table", "100", "src", "172.31.1.9"},
		{"route", "add", "default", "via", "172.31.1.1", "table", "70000"},
		{"route", "add", "10.55.0.0/16", "via", "172.31.1.1", "proto", "static", "tos", "0x10"},
		{
			"route", "add", "10.54.0.0/16", "nexthop", "via", "172.31.1.1", "dev", nicName, "weight", "3",
			"nexthop", "via", "172.31.2.1", "dev", "ens13np0",
		},
		{"route", "add", "fd00:60::/64", "dev", nicName},
		{"route", "add", "fd00:50::/48", "via", "fd00:60::1", "dev", nicName},
		{"route", "add", "fd00:51::/48", "via", "fd00:1::1", "metric", "5", "src", "fd00:1::7"},
		{"route", "add", "fd00:53::/48", "via", "fd00:1::1", "mtu", "1400", "pref", "high"},
		{"-6", "route", "add", "default", "via", "fd00:1::1", "table", "100"},
		{
			"route", "add", "fd00:54::/48", "nexthop", "via", "fd00:1::1", "dev", nicName, "weight", "3",
			"nexthop", "via", "fd00:99::1", "dev", "ens13np0",
		},
		{"rule", "add", "from", "172.31.1.9", "table", "100"},

		{"neigh", "add", "172.31.1.1", "lladdr", "02:00:00:00:00:01", "nud", "permanent", "dev", nicName},
		{"neigh", "add", "fd00:1::1", "lladdr", "02:00:00:00:00:01", "nud", "permanent", "router", "dev", nicName},
	} {
		h.IP(args...)
	}
	for key, value := range map[string]string{
		"ipv4/conf/" + nicName + "/arp_ignore":              "1",
		"ipv4/conf/" + nicName + "/arp_announce":            "2",
		"ipv4/conf/" + nicName + "/rp_filter":               "2",
		"ipv4/conf/" + nicName + "/forwarding":              "1",
		"ipv6/conf/" + nicName + "/accept_ra":               "0",
		"ipv6/conf/" + nicName + "/hop_limit":               "17",
		"ipv4/neigh/" + nicName + "/base_reachable_time_ms": "12345",
		"ipv4/neigh/" + nicName + "/unres_qlen_bytes":       "100001",
		"ipv6/neigh/" + nicName + "/retrans_time_ms":        "1234",
		"ipv6/neigh/" + nicName + "/ucast_solicit":          "5",
	} {
		h.Sysctl(key, value)
	}
	return r
}

// meddle changes everything that a pod can change.
func meddle(p *testnet.Netns) {
	for _, args := range [][]string{
		{"link", "set", "net1", "down"},
		{
			"link", "set", "net1", "name", "mine", "alias", "mine", "mtu", "1400", "address", "02:66:66:66:66:66", "txqueuelen", "1",
			"group", "66", "promisc", "off", "allmulticast", "off", "multicast", "off", "arp", "off",
			"gso_max_size", "2000", "gso_max_segs", "2", "gro_max_size", "2000", "mode", "dormant",
		},
		{"link", "property", "add", "dev", "mine", "altname", nicName, "altname", "evil"},
		{"link", "add", "podbr", "type", "bridge"},
		{"link", "set", "mine", "master", "podbr"},
		{"link", "set", "mine", "up"},
		{"addr", "add", "10.66.0.1/24", "dev", "mine"},
		{"addr", "add", "fd00:66::1/64", "dev", "mine"},
		{"route", "add", "default", "via", "10.66.0.2"},
	} {
		p.IP(args...)
	}
	p.Sysctl("ipv4/conf/mine/arp_ignore", "8")
	p.Sysctl("ipv6/conf/mine/disable_ipv6", "1")
	p.Sysctl("ipv4/neigh/mine/gc_stale_time", "66")
}

// restore reads the link with this index, and restores it.
func restore(t *testing.T, n *testnet.Netns, index int, s *nicstate.Snapshot) (lost []error, err error) {
	t.Helper()
	l, err := link.ByIndex(n.Netns, index)
	if err != nil {
		t.Fatal(err)
	}
	return nicstate.Restore(n.Netns, l, s)
}

// lend moves the NIC to the pod as an ADD does. Before that it takes a snapshot, which goes through
// the ledger's JSON.
func lend(t *testing.T, r *testnet.Rail) (*link.Link, *nicstate.Snapshot) {
	t.Helper()
	l := r.Host.Link(nicName)
	taken, err := nicstate.Take(r.Host.Netns, r.Host.View(l))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(taken)
	if err != nil {
		t.Fatal(err)
	}
	read := &nicstate.Snapshot{}
	if err := json.Unmarshal(text, read); err != nil {
		t.Fatal(err)
	}
	if err := link.Move(r.Host.Netns, l.Index, r.Pod.Netns, "net1", l.Name); err != nil {
		t.Fatal(err)
	}
	return l, read
}

// home moves the NIC back and restores it.
func home(t *testing.T, r *testnet.Rail, l *link.Link, s *nicstate.Snapshot) (lost []error) {
	t.Helper()
	found, err := link.Find(r.Pod.Netns, l.Identity(), "net1", nicName)
	if err != nil || found == nil {
		t.Fatalf("not in the pod: %v\n%s", err, r.Pod.IP("-d", "link"))
	}
	if err := link.KeepAltNames(r.Pod.Netns, found, s.AltNames); err != nil {
		t.Fatal(err)
	}
	if err := link.MoveAs(r.Pod.Netns, found, r.Host.Netns, s.Name, s.Alias); err != nil {
		t.Fatal(err)
	}
	lost, err = restore(t, r.Host, found.Index, s)
	if err != nil {
		t.Fatalf("Restore: %v", err)
	}
	return lost
}

func mustLoseNothing(t *testing.T, lost []error) {
	t.Helper()
	for _, e := range lost {
		t.Errorf("lost: %v", e)
	}
}

func TestRestoreGivesBackEverythingThatAPodCanChange(t *testing.T) {
	t.Parallel()
	r := configured(t)
	before := r.Host.State()
	for _, want := range []string{`"fd00:54::/48"`, `"10.54.0.0/16"`, nicName + " ipv6/conf/hop_limit = 17", `"gso_max_segs": 60`, `"promisc"`} {
		if !strings.Contains(strings.ToLower(before), strings.ToLower(want)) {
			t.Fatalf("the host is not as the test means it: no %s in\n%s", want, before)
		}
	}
	l, s := lend(t, r)
	meddle(r.Pod)
	r.Pod.IP("link", "property", "del", "dev", "mine", "altname", "enp4s0np0")
	mustLoseNothing(t, home(t, r, l, s))
	if d := r.Host.Settled(before); d != "" {
		t.Errorf("the host is not as it was:\n%s", d)
	}
	// Restore changes only what differs, so a second Restore changes nothing.
	lost, err := restore(t, r.Host, l.Index, s)
	mustLoseNothing(t, lost)
	if err != nil {
		t.Error(err)
	}
	if d := r.Host.Settled(before); d != "" {
		t.Errorf("a second Restore changed the host:\n%s", d)
	}
}

func TestRestoreOfVariants(t *testing.T) {
	for _, c := range []struct {
		name  string
		given func(r *testnet.Rail)
	}{
		{"as it came", func(*testnet.Rail) {}},
		{"down", func(r *testnet.Rail) { r.Host.IP("link", "set", nicName, "down") }},
		{"down, with addresses", func(r *testnet.Rail) {
			r.Host.IP("link", "set", nicName, "down")
			r.Host.IP("addr", "add", "172.31.1.9/24", "dev", nicName)
			r.Host.IP("addr", "add", "fd00:1::9/64", "nodad", "dev", nicName)
		}},
		{"no multicast, no ARP", func(r *testnet.Rail) { r.Host.IP("link", "set", nicName, "multicast", "off", "arp", "off") }},
		{"no IPv6", func(r *testnet.Rail) { r.Host.Sysctl("ipv6/conf/"+nicName+"/disable_ipv6", "1") }},
		{"MTU too small for IPv6", func(r *testnet.Rail) { r.Host.IP("link", "set", nicName, "mtu", "1000") }},
		{"no link-local address", func(r *testnet.Rail) {
			r.Host.IP("link", "set", nicName, "addrgenmode", "none")
			r.Host.IP("-6", "addr", "flush", "dev", nicName)
		}},
		{"stable secret, but addresses by MAC", func(r *testnet.Rail) {
			r.Host.Sysctl("ipv6/conf/"+nicName+"/stable_secret", "2001:db8::1:2:3:4")
			r.Host.IP("link", "set", nicName, "addrgenmode", "eui64")
		}},
		{"stable secret", func(r *testnet.Rail) {
			r.Host.Sysctl("ipv6/conf/"+nicName+"/stable_secret", "2001:db8::1:2:3:4")
			r.Host.IP("link", "set", nicName, "down")
			r.Host.IP("link", "set", nicName, "up")
		}},
		{"a bridge's port", func(r *testnet.Rail) {
			r.Host.IP("link", "add", "br0", "type", "bridge")
			r.Host.IP("link", "set", nicName, "master", "br0")
		}},
		{"a route of the same destination by another NIC", func(r *testnet.Rail) {
			r.Host.NIC("ens13np0", r.Wire)
			r.Host.IP("route", "add", "10.70.0.0/16", "dev", "ens13np0")
			r.Host.IP("route", "append", "10.70.0.0/16", "dev", nicName)
			r.Host.IP("route", "add", "fd00:70::/64", "dev", "ens13np0", "metric", "9")
			r.Host.IP("route", "append", "fd00:70::/64", "dev", nicName, "metric", "9")
		}},
		{"a route of a nexthop object", func(r *testnet.Rail) {
			r.Host.IP("addr", "add", "172.31.1.9/24", "dev", nicName)
			r.Host.IP("nexthop", "add", "id", "17", "via", "172.31.1.1", "dev", nicName)
			r.Host.IP("route", "add", "10.71.0.0/16", "nhid", "17")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := testnet.NewRail(t, nicName)
			c.given(r)
			before := quiet(r.Host)
			l, s := lend(t, r)
			meddle(r.Pod)
			mustLoseNothing(t, home(t, r, l, s))
			if d := r.Host.Settled(before); d != "" {
				t.Errorf("the host is not as it was:\n%s", d)
			}
		})
	}
}

// An object whose ID was given away meanwhile cannot be restored. Its route is restored as a plain
// route.
func TestRestoreOfANexthopObject(t *testing.T) {
	for _, taken := range []bool{false, true} {
		r := testnet.NewRail(t, nicName)
		r.Host.NIC("ens13np0", r.Wire)
		r.Host.IP("addr", "add", "172.31.1.9/24", "dev", nicName)
		r.Host.IP("nexthop", "add", "id", "17", "via", "172.31.1.1", "dev", nicName)
		r.Host.IP("route", "add", "10.71.0.0/16", "nhid", "17")
		l, s := lend(t, r)
		want := "10.71.0.0/16 nhid 17 via 172.31.1.1 dev " + nicName
		if taken {
			r.Host.IP("nexthop", "add", "id", "17", "dev", "ens13np0")
			want = "10.71.0.0/16 via 172.31.1.1 dev " + nicName
		}
		lost := home(t, r, l, s)
		if said := fmt.Sprint(lost); strings.Contains(said, "nexthop object 17 via 172.31.1.1 of "+nicName) != taken || len(lost) > 1 {
			t.Errorf("ID taken: %v; lost: %v", taken, lost)
		}
		if got := r.Host.IP("route", "show", "10.71.0.0/16"); !strings.HasPrefix(got, want) {
			t.Errorf("ID taken: %v; route: %q", taken, got)
		}
	}
}

// Without a cable the kernel marks nexthops "linkdown" and keeps addresses tentative. Neither state
// must prevent a route from being restored.
func TestRestoreOfRoutesWithoutACarrier(t *testing.T) {
	t.Parallel()
	r := testnet.NewRail(t, nicName)
	h := r.Host
	h.NIC("ens13np0", r.Wire)
	h.Sysctl("ipv6/conf/"+nicName+"/accept_dad", "1")
	h.IP("addr", "add", "172.31.1.9/24", "dev", nicName)
	h.IP("addr", "add", "172.31.2.9/24", "dev", "ens13np0")
	h.IP("addr", "add", "fd00:1::9/64", "dev", nicName)
	awaitSettledAddresses(t, h)
	h.IP("route", "add", "10.54.0.0/16", "nexthop", "via", "172.31.1.1", "dev", nicName, "nexthop", "via", "172.31.2.1", "dev", "ens13np0")
	h.IP("route", "add", "10.55.0.0/16", "via", "172.31.1.1")
	h.IP("route", "add", "fd00:55::/64", "via", "fd00:1::1", "src", "fd00:1::9")
	r.Wire.IP("link", "set", nicName+"-sw", "down")
	await(t, "the kernel to see that the cable is out", func() bool {
		return strings.Contains(h.IP("link", "show", nicName), "NO-CARRIER") && strings.Contains(h.IP("route"), "linkdown")
	})
	before := h.State()
	l, s := lend(t, r)
	mustLoseNothing(t, home(t, r, l, s))
	if d := h.Settled(before); d != "" {
		t.Errorf("the host is not as it was:\n%s", d)
	}
}

// With duplicate address detection on, a restored address is usable at once: it was checked when
// the host got it, and its routes cannot wait.
func TestRestoreOfRoutesWithAnIPv6Source(t *testing.T) {
	t.Parallel()
	r := testnet.NewRail(t, nicName)
	r.Host.Sysctl("ipv6/conf/"+nicName+"/accept_dad", "1")
	r.Host.IP("addr", "add", "fd00:1::9/64", "dev", nicName)
	awaitSettledAddresses(t, r.Host)
	r.Host.IP("route", "add", "fd00:55::/64", "via", "fd00:1::1", "src", "fd00:1::9")
	before := r.Host.State()
	l, s := lend(t, r)
	mustLoseNothing(t, home(t, r, l, s))
	if got := r.Host.IP("addr", "show", "dev", nicName, "to", "fd00:1::9"); strings.Contains(got, "tentative") || strings.Contains(got, "nodad") {
		t.Errorf("address: %s", got)
	}
	if d := r.Host.Settled(before); d != "" {
		t.Errorf("the host is not as it was:\n%s", d)
	}
}

// TestRestoreOfAnAddressThatWasNotChecked has no cable, so duplicate address detection never began.
// Another host may have the address, so the address is checked when the cable is in.
func TestRestoreOfAnAddressThatWasNotChecked(t *testing.T) {
	t.Parallel()
	r := testnet.NewRail(t, nicName)
	r.Host.Sysctl("ipv6/conf/"+nicName+"/accept_dad", "1")
	r.Wire.IP("link", "set", nicName+"-sw", "down")
	await(t, "the kernel to see that the cable is out", func() bool { return strings.Contains(r.Host.IP("link", "show", nicName), "NO-CARRIER") })
	r.Host.IP("addr", "add", "fd00:1::9/64", "dev", nicName)
	l, s := lend(t, r)
	mustLoseNothing(t, home(t, r, l, s))
	if got := r.Host.IP("addr", "show", "dev", nicName, "to", "fd00:1::9"); !strings.Contains(got, "tentative") || strings.Contains(got, "nodad") {
		t.Errorf("address: %s", got)
	}
	r.Wire.IP("link", "set", nicName+"-sw", "up")
	awaitSettledAddresses(t, r.Host)
}

func awaitSettledAddresses(t *testing.T, n *testnet.Netns) {
	t.Helper()
	await(t, "duplicate address detection", func() bool { return n.IP("-6", "addr", "show", "tentative") == "" })
}

// quiet returns the state of a namespace once that state has stopped changing: the kernel notices a
// carrier up to a second late.
func quiet(n *testnet.Netns) string {
	before, since := n.State(), time.Now()
	for time.Since(since) < 1300*time.Millisecond {
		time.Sleep(100 * time.Millisecond)
		if now := n.State(); now != before {
			before, since = now, time.Now()
		}
	}
	return before
}

func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still waiting for %s", what)
		}
	}
}

// A process that was killed during a Restore leaves an address with the flag
// "without detection".
func TestRestoreTakesAwayTheMarkThatAKilledOneLeft(t *testing.T) {
	r := testnet.NewRail(t, nicName)
	r.Host.IP("addr", "add", "fd00:1::5/64", "dev", nicName)
	before := r.Host.State()
	l, err := link.ByName(r.Host.Netns, nicName)
	if err != nil {
		t.Fatal(err)
	}
	snapshot, err := nicstate.Take(r.Host.Netns, r.Host.View(l))
	if err != nil {
		t.Fatal(err)
	}
	r.Host.IP("addr", "del", "fd00:1::5/64", "dev", nicName)
	r.Host.IP("addr", "add", "fd00:1::5/64", "dev", nicName, "nodad")
	if lost, err := restore(t, r.Host, l.Index, snapshot); err != nil || len(lost) > 0 {
		t.Fatal(lost, err)
	}
	if d := r.Host.Settled(before); d != "" {
		t.Errorf("the address is not as it was:\n%s", d)
	}
}

func TestRestoreAgesAddressesWithALifetime(t *testing.T) {
	t.Parallel()
	r := testnet.NewRail(t, nicName)
	for _, a := range []string{"10.10.0.1/24", "fd00:3::1/64"} {
		r.Host.IP("addr", "add", a, "valid_lft", "1000", "preferred_lft", "300", "dev", nicName)
	}
	for _, a := range []string{"10.10.1.1/24", "fd00:4::1/64"} {
		r.Host.IP("addr", "add", a, "valid_lft", "200", "preferred_lft", "100", "dev", nicName)
	}
	for _, a := range []string{"10.10.2.1/24", "fd00:5::1/64"} { // deprecated, but valid forever
		r.Host.IP("addr", "add", a, "preferred_lft", "0", "dev", nicName)
	}
	l, s := lend(t, r)
	s.Taken = s.Taken.Add(-400 * time.Second)
	mustLoseNothing(t, home(t, r, l, s))
	var shown []struct {
		Info []struct {
			Local      string `json:"local"`
			Valid      uint32 `json:"valid_life_time"`
			Preferred  uint32 `json:"preferred_life_time"`
			Deprecated bool   `json:"deprecated"`
		} `json:"addr_info"`
	}
	text := r.Host.IP("-j", "addr", "show", "dev", nicName, "scope", "global")
	if err := json.Unmarshal([]byte(text), &shown); err != nil {
		t.Fatal(err)
	}
	const forever = ^uint32(0)
	left := map[string][2]uint32{}
	for _, one := range shown {
		for _, a := range one.Info {
			if a.Local == "" {
				continue // ip shows an address that is not global in this way
			}
			if a.Deprecated {
				a.Preferred = 0 // in IPv4 the kernel reports it as preferred as long as it lives
			}
			left[a.Local] = [2]uint32{a.Valid, a.Preferred}
		}
	}
	for address, want := range map[string][2]uint32{
		"10.10.0.1": {600, 0}, "fd00:3::1": {600, 0}, "10.10.2.1": {forever, 0}, "fd00:5::1": {forever, 0},
	} {
		if got, ok := left[address]; !ok || got[1] != want[1] || got[0] > want[0] || got[0] < want[0]-20 {
			t.Errorf("%s: valid and preferred for %v s, want %v\n%s", address, got, want, text)
		}
		delete(left, address)
	}
	if len(left) != 0 {
		t.Errorf("what had run out came back: %v", left)
	}
}

func TestRestoreSaysWhatTheHostNoLongerTakes(t *testing.T) {
	t.Parallel()
	r := testnet.NewRail(t, nicName)
	r.Host.NIC("ens13np0", r.Wire)
	r.Host.IP("link", "add", "br0", "type", "bridge")
	r.Host.IP("link", "set", nicName, "master", "br0")
	r.Host.IP("addr", "add", "172.31.1.9/24", "dev", nicName)
	r.Host.IP("addr", "add", "172.31.2.9/24", "dev", "ens13np0")
	r.Host.IP("route", "add", "10.54.0.0/16", "nexthop", "via", "172.31.1.1", "dev", nicName, "nexthop", "via", "172.31.2.1", "dev", "ens13np0")
	r.Host.IP("route", "add", "10.55.0.0/16", "via", "172.31.1.1")
	l, s := lend(t, r)
	// Meanwhile its bridge and a partner are deleted.
	r.Host.IP("link", "del", "br0")
	r.Host.IP("link", "del", "ens13np0")
	lost := home(t, r, l, s)
	text := errors.Join(lost...).Error()
	for _, want := range []string{`"br0"`, "10.54.0.0/16"} {
		if !strings.Contains(text, want) {
			t.Errorf("not said to be lost: %s, in\n%s", want, text)
		}
	}
	if len(lost) != 2 {
		t.Errorf("%d lost, want 2:\n%s", len(lost), text)
	}
	if got := r.Host.IP("route", "show", "10.55.0.0/16"); !strings.Contains(got, nicName) {
		t.Errorf("what could come back did not: %q", got)
	}
}

// The rails lead to the same networks. Whether three of them are away at once or one, each gets its
// own route to these networks again, in whatever order they return.
func TestRestoreBesideOthersRoutesToTheSameDestination(t *testing.T) {
	t.Parallel()
	nics := []string{"ens1", "ens2", "ens3"}
	for _, order := range [][]int{{0}, {0, 1, 2}, {2, 1, 0}, {1, 2, 0}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			r := testnet.NewRail(t, nics[0])
			for i, name := range nics {
				if i > 0 {
					r.Host.NIC(name, r.Wire)
				}
				r.Host.IP("addr", "add", fmt.Sprintf("172.31.%d.9/24", i), "dev", name)
				r.Host.IP("addr", "add", fmt.Sprintf("fd00:%d::9/64", i), "dev", name)
				for _, to := range []string{"10.55.0.0/16", "0.0.0.0/0"} {
					r.Host.IP("route", "append", to, "via", fmt.Sprintf("172.31.%d.1", i))
				}
				for _, to := range []string{"fd00:55::/64", "::/0"} {
					r.Host.IP("-6", "route", "append", to, "via", fmt.Sprintf("fd00:%d::1", i))
				}
			}
			routes := func() []string {
				lines := strings.Split(r.Host.IP("-4", "route")+r.Host.IP("-6", "route"), "\n")
				slices.Sort(lines)
				return lines
			}
			before := routes()
			links, snapshots := map[int]*link.Link{}, map[int]*nicstate.Snapshot{}
			for i := range order {
				l := r.Host.Link(nics[i])
				s, err := nicstate.Take(r.Host.Netns, r.Host.View(l))
				if err != nil {
					t.Fatal(err)
				}
				if err := link.Move(r.Host.Netns, l.Index, r.Pod.Netns, "pod-"+l.Name, l.Name); err != nil {
					t.Fatal(err)
				}
				links[i], snapshots[i] = l, s
			}
			for _, i := range order {
				l, err := link.Find(r.Pod.Netns, links[i].Identity(), "pod-"+nics[i])
				if err != nil || l == nil {
					t.Fatalf("%s is not in the pod: %v", nics[i], err)
				}
				if err := link.MoveAs(r.Pod.Netns, l, r.Host.Netns, nics[i], ""); err != nil {
					t.Fatal(err)
				}
				for range 2 { // as after an end that was killed
					lost, err := restore(t, r.Host, l.Index, snapshots[i])
					if err != nil {
						t.Fatal(err)
					}
					mustLoseNothing(t, lost)
				}
			}
			if after := routes(); !slices.Equal(after, before) {
				t.Errorf("before\n%s\nafter\n%s", strings.Join(before, "\n"), strings.Join(after, "\n"))
			}
		})
	}
}

// In no case is another link changed.
func TestRestoreUnderATakenNameLeavesTheOtherLinkAlone(t *testing.T) {
	r := testnet.NewRail(t, nicName)
	r.Host.Sysctl("ipv4/conf/"+nicName+"/arp_ignore", "1")
	r.Host.IP("link", "property", "add", "dev", nicName, "altname", "enp4s0np0")
	l, s := lend(t, r)
	r.Host.IP("link", "add", nicName, "type", "ifb")
	before := r.Host.IP("-d", "-o", "link", "show", nicName)
	if err := link.MoveAs(r.Pod.Netns, l, r.Host.Netns, "fallen", s.Alias); err != nil {
		t.Fatal(err)
	}
	_, err := restore(t, r.Host, l.Index, s)
	if !errors.Is(err, unix.EEXIST) {
		t.Errorf("error %v, want EEXIST", err)
	}
	for name, want := range map[string]string{nicName: "0", "fallen": "1"} {
		settings, err := sysctl.Read(r.Host.Netns, name)
		if err != nil || settings["ipv4/conf/arp_ignore"] != want {
			t.Errorf("arp_ignore of %s is %q, want %q (%v)", name, settings["ipv4/conf/arp_ignore"], want, err)
		}
	}
	if after := r.Host.IP("-d", "-o", "link", "show", nicName); after != before {
		t.Errorf("the other link was changed:\n%s%s", before, after)
	}
	got := r.Host.Link("fallen")
	if !got.IsUp() || len(got.AltNames) != 1 {
		t.Errorf("not everything else was restored: %+v", got)
	}
	// Once the name is free, the next Restore finishes.
	r.Host.IP("link", "del", nicName)
	lost, err := restore(t, r.Host, l.Index, s)
	mustLoseNothing(t, lost)
	if err != nil || r.Host.Link(nicName).Index != l.Index {
		t.Errorf("the second Restore: %v", err)
	}
}

func TestRestoreOfALinkThatIsGone(t *testing.T) {
	r := testnet.NewRail(t, nicName)
	l := r.Host.Link(nicName)
	r.Host.IP("link", "del", nicName)
	if _, err := nicstate.Restore(r.Host.Netns, l, &nicstate.Snapshot{Name: nicName, Up: !l.IsUp()}); !errors.Is(err, unix.ENODEV) {
		t.Errorf("error %v", err)
	}
}

// Different plugins move two NICs at the same time, each with a default route and other
// configuration. The snapshot of one must not contain the other's configuration.
func TestSnapshotHoldsOnlyTheLinksOwn(t *testing.T) {
	r := configured(t)
	s, err := nicstate.Take(r.Host.Netns, r.Host.View(r.Host.Link("ens13np0")))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, list := range [][]nicstate.Replay{s.Addresses, s.Routes, s.Neighbors} {
		for _, one := range list {
			if !strings.HasPrefix(one.Text, "fe80:") {
				got = append(got, one.Text)
			}
		}
	}
	want := "172.31.2.5/24|fd00:99::5/64|10.54.0.0/16 table 254|fd00:54::/48 table 254 metric 1024"
	if text := strings.Join(got, "|"); text != want {
		t.Errorf("holds\n%s\nwant\n%s", text, want)
	}
}
