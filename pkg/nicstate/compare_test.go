package nicstate_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netns"
	"github.com/rail-cni/rail-cni/pkg/nicstate"
)

// whats returns the names of the objects that the errors are about.
func whats(t *testing.T, errs []error) []string {
	t.Helper()
	var all []string
	for _, e := range errs {
		var l *nicstate.Lost
		if !errors.As(e, &l) || !errors.Is(e, nicstate.ErrMissing) && !errors.Is(e, nicstate.ErrChanged) {
			t.Errorf("%v is no finding of a comparison", e)
			continue
		}
		all = append(all, l.What)
	}
	slices.Sort(all)
	return all
}

func compare(t *testing.T, r *testnet.Rail, s *nicstate.Snapshot, settled bool) []string {
	t.Helper()
	missing, err := nicstate.Compare(r.Host.Netns, r.Host.Link(nicName).Index, s, settled)
	if err != nil {
		t.Fatal(err)
	}
	return whats(t, missing)
}

// TestCompareFindsWhatIsMissing removes each kind of object from a NIC that has returned.
func TestCompareFindsWhatIsMissing(t *testing.T) {
	t.Parallel()
	r := configured(t)
	h := r.Host
	for _, args := range []string{
		"addr add 10.77.0.1/32 dev ens12np0",
		"nexthop add id 7 via 172.31.1.1 dev ens12np0", "nexthop add id 8 via 172.31.2.1 dev ens13np0", "nexthop add id 9 group 7/8",
		"route add 10.80.0.0/16 nhid 9", "-6 rule add from fd00:1::9 lookup 100", "rule add iif ens12np0 lookup 100 priority 900",
		"rule add from 172.31.1.0/24 lookup 300 priority 901 proto static",
		"rule add from 172.31.1.5 lookup 100 priority 902 proto bgp", "rule add from 10.99.0.0/16 lookup 100 priority 903",
	} {
		h.IP(strings.Fields(args)...)
	}
	l, s := lend(t, r)
	mustLoseNothing(t, home(t, r, l, s))
	if missing := compare(t, r, s, true); len(missing) > 0 {
		t.Fatalf("nothing is missing, and it finds %q", missing)
	}
	for _, c := range [][2]string{
		{"addr add 10.78.0.1/32 dev ens12np0"}, // added after the loan
		{"addr del 10.10.0.1/24 dev ens12np0"}, // this address has a lifetime, and the next one as well
		{"addr del fd00:3::1/64 dev ens12np0"},
		{"rule del from 172.31.1.5 lookup 100 priority 902"}, // a daemon's
		{"rule del from 10.99.0.0/16 lookup 100 priority 903"},
		{"nexthop replace id 7 via 172.31.1.2 dev ens12np0", "nexthop object 7 via 172.31.1.1"},
		{"nexthop replace id 9 group 8", "nexthop object 9 group 7/8"},
		{"addr del 192.168.8.1/24 dev ens12np0", "address 192.168.8.1/24"},
		{"addr del fd00:2::1/64 dev ens12np0", "address fd00:2::1/64"},
		{"route del 10.52.0.0/16", "route 10.52.0.0/16 via 10.99.0.1"},
		{"route del 10.50.0.0/16 via 10.60.0.1 dev ens12np0", "route 10.50.0.0/16"},
		{"route del default via 172.31.1.1 table 70000", "route default via 172.31.1.1 table 70000"},
		{"route replace 10.54.0.0/16 via 172.31.2.1 dev ens13np0", "route 10.54.0.0/16"},
		{"-6 route del fd00:51::/48 metric 5", "route fd00:51::/48 via fd00:1::1"},
		{"-6 route del fd00:54::/48 via fd00:1::1 dev ens12np0", "route fd00:54::/48"},
		{"route del 172.31.1.0/24 dev ens12np0 proto kernel src 172.31.1.9", "route 172.31.1.0/24"},
		{"-6 route del fd00:1::/64 dev ens12np0 proto kernel", "route fd00:1::/64"},
		{"-6 rule del from fd00:1::9 lookup 100", "rule from fd00:1::9/128 lookup 100"},
		{"rule del iif ens12np0 lookup 100 priority 900", "rule from all iif ens12np0 lookup 100 priority 900"},
		{"rule del from 172.31.1.0/24 lookup 300 priority 901", "rule from 172.31.1.0/24"},
	} {
		command, what := c[0], c[1]
		had := compare(t, r, s, true)
		h.IP(strings.Fields(command)...)
		found := slices.DeleteFunc(compare(t, r, s, true), func(w string) bool { return slices.Contains(had, w) })
		if what == "" && len(found) > 0 || what != "" && !slices.ContainsFunc(found, func(w string) bool { return strings.HasPrefix(w, what) }) {
			t.Errorf("after %q it finds %q beside %q", command, found, had)
		}
		if strings.Contains(command, "priority 901") {
			for _, w := range compare(t, r, s, false) {
				if strings.HasPrefix(w, what) {
					t.Errorf("right after the return it finds %q, which a daemon may be about to add", w)
				}
			}
		}
	}
}

// If a NIC has no configuration, Compare asks the kernel nothing. The zero Netns has no socket.
func TestCompareOfNothingAsksNothing(t *testing.T) {
	t.Parallel()
	missing, err := nicstate.Compare((&netns.Netns{}), 7, &nicstate.Snapshot{Index: 7, Up: true}, true)
	if len(missing) > 0 || err != nil {
		t.Error(missing, err)
	}
}

// TestCompareWithoutACarrier has a NIC whose cable is out when it returns. The kernel marks the
// NIC's routes, and adds other routes only when there is a carrier.
func TestCompareWithoutACarrier(t *testing.T) {
	t.Parallel()
	r := testnet.NewRail(t, nicName)
	h := r.Host
	h.Sysctl("ipv6/conf/"+nicName+"/accept_dad", "1")
	for _, args := range []string{
		"addr add 172.31.1.9/24 dev ens12np0", "addr add fd00:1::9/64 dev ens12np0", "route add 10.50.0.0/16 via 172.31.1.1",
		"route add 10.51.0.0/16 nexthop via 172.31.1.1 dev ens12np0 nexthop via 172.31.1.2 dev ens12np0", "-6 route add fd00:50::/48 via fd00:1::1",
	} {
		h.IP(strings.Fields(args)...)
	}
	awaitSettledAddresses(t, h)
	l, s := lend(t, r)
	r.Wire.IP("link", "set", nicName+"-sw", "down")
	mustLoseNothing(t, home(t, r, l, s))
	if missing := compare(t, r, s, true); len(missing) > 0 {
		t.Errorf("without a carrier it finds %q", missing)
	}
	r.Wire.IP("link", "set", nicName+"-sw", "up")
	awaitSettledAddresses(t, h)
	if missing := compare(t, r, s, true); len(missing) > 0 {
		t.Errorf("with one it finds %q", missing)
	}
	h.IP("link", "set", nicName, "down")
	if missing := compare(t, r, s, true); !slices.Contains(missing, "route 10.50.0.0/16 via 172.31.1.1 table 254 of "+nicName) {
		t.Errorf("down it finds %q", missing)
	}
}

// TestChangedFindsWhatLinkFilesSet makes the changes that a .link file of udev makes after the
// return.
func TestChangedFindsWhatLinkFilesSet(t *testing.T) {
	t.Parallel()
	r := testnet.NewRail(t, nicName)
	l, s := lend(t, r)
	mustLoseNothing(t, home(t, r, l, s))
	changed := func() []string {
		t.Helper()
		now, err := link.ByIndex(r.Host.Netns, l.Index)
		if err != nil {
			t.Fatal(err)
		}
		found, err := nicstate.CompareSettings(r.Host.Netns, now, s)
		if err != nil {
			t.Fatal(err)
		}
		return whats(t, found)
	}
	if found := changed(); len(found) > 0 {
		t.Fatalf("nothing has changed, and it finds %q", found)
	}
	for _, set := range [][]string{
		{"name", "rail0"}, {"mtu", "4000"}, {"txqueuelen", "777"}, {"address", "02:00:00:00:00:99"}, {"alias", "x"}, {"gso_max_size", "3000"}, {"down"},
	} {
		now, err := link.ByIndex(r.Host.Netns, l.Index)
		if err != nil {
			t.Fatal(err)
		}
		r.Host.IP(append([]string{"link", "set", "dev", now.Name}, set...)...)
	}
	want := []string{"MAC", "MTU", "alias", "gso_max_size", "name", "queue length", "state"}
	for i, w := range want {
		want[i] = w + " of " + nicName
	}
	found := changed()
	found = slices.DeleteFunc(found, func(w string) bool { return strings.HasPrefix(w, "gso_ipv4") }) // follows the other
	if !slices.Equal(found, want) {
		t.Errorf("it finds %q, want %q", found, want)
	}
}
