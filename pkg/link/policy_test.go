package link_test

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// rule returns a policy rule of a table.
func rule(family, priority, table int, change func(*netlink.Rule)) netlink.Rule {
	r := netlink.NewRule()
	r.Family, r.Priority, r.Table = family, priority, table
	if change != nil {
		change(r)
	}
	return *r
}

func TestRulesAreAddedFoundAndDeleted(t *testing.T) {
	r := testnet.NewRail(t, "ens1")
	kernel := r.Host.IP("rule", "show") + r.Host.IP("-6", "rule", "show")
	from4 := func(r *netlink.Rule) { r.Src = cidr(t, "10.0.0.5/32") }
	from6 := func(r *netlink.Rule) { r.Src = cidr(t, "fd00::5/128") }
	unreachable := func(r *netlink.Rule) { r.Src, r.Type = cidr(t, "10.0.0.5/32"), unix.RTN_UNREACHABLE }
	by := func(r *netlink.Rule) { r.OifName = "ens1" }
	rules := []netlink.Rule{
		rule(unix.AF_INET, 100, 7, from4), rule(unix.AF_INET, 101, 7, unreachable), rule(unix.AF_INET, 100, 7, by),
		rule(unix.AF_INET6, 100, 1<<32-1, from6), rule(unix.AF_INET6, 100, 1<<32-1, by),
	}
	missing := func(want int) {
		t.Helper()
		if found, err := link.MissingRules(r.Host.Netns, rules); err != nil || len(found) != want {
			t.Errorf("%d rules are missing, want %d: %v, %v", len(found), want, found, err)
		}
	}
	missing(len(rules))
	for range 2 { // an existing one is not an error
		if err := link.AddRules(r.Host.Netns, rules); err != nil {
			t.Fatal(err)
		}
	}
	missing(0)
	shown := r.Host.IP("rule", "show") + r.Host.IP("-6", "rule", "show")
	for _, want := range []string{
		"100:	from 10.0.0.5 lookup 7", "101:	from 10.0.0.5 lookup 7 unreachable", "100:	from all oif ens1 lookup 7",
		"100:	from fd00::5 lookup 4294967295", "100:	from all oif ens1 lookup 4294967295",
	} {
		if strings.Count(shown, want) == 0 {
			t.Errorf("no %q in\n%s", want, shown)
		}
	}
	for i, change := range []func(*netlink.Rule){
		func(r *netlink.Rule) { r.Priority = 99 }, func(r *netlink.Rule) { r.Table = 8 },
		func(r *netlink.Rule) { r.Src = cidr(t, "10.0.0.6/32") }, func(r *netlink.Rule) { r.OifName = "ens2" },
	} {
		other := rules[0]
		change(&other)
		if found, err := link.MissingRules(r.Host.Netns, []netlink.Rule{other}); err != nil || len(found) != 1 {
			t.Errorf("change %d: %v passes for another rule (%v)", i, other, err)
		}
	}
	for _, c := range []struct {
		tables []int
		want   bool
	}{{[]int{7}, true}, {[]int{9, 1<<32 - 1}, true}, {[]int{unix.RT_TABLE_MAIN}, true}, {[]int{9}, false}, {nil, false}} {
		if got, err := link.HasRuleFor(r.Host.Netns, c.tables); got != c.want || err != nil {
			t.Errorf("HasRuleFor(%v) = %v, %v", c.tables, got, err)
		}
	}
	r.Host.IP("link", "del", "ens1") // a rule of the interface exists longer than the interface
	missing(0)
	for range 2 { // a missing one is not an error
		if err := link.DeleteRules(r.Host.Netns, rules); err != nil {
			t.Error(err)
		}
	}
	missing(len(rules))
	if now := r.Host.IP("rule", "show") + r.Host.IP("-6", "rule", "show"); now != kernel {
		t.Errorf("the rules are\n%s\nand were\n%s", now, kernel)
	}
}

func TestTableIsUsedIfItHasARoute(t *testing.T) {
	r := testnet.NewRail(t, "ens1")
	for _, route := range [][]string{
		{"10.5.0.0/16", "dev", "ens1", "table", "1003"},
		{"-6", "fd05::/64", "dev", "ens1", "table", "1003"},
		{"unreachable", "default", "table", "1003"},
		{"10.5.0.0/16", "dev", "ens1", "table", "4294967295"},
	} {
		table := 1003
		if route[len(route)-1] != "1003" {
			table = 1<<32 - 1
		}
		family := "-4"
		if route[0] == "-6" {
			family, route = "-6", route[1:]
		}
		for _, verb := range []string{"", "add", "del"} {
			if verb != "" {
				r.Host.IP(append([]string{family, "route", verb}, route...)...)
			}
			if used, err := link.TableUsed(r.Host.Netns, table); used != (verb == "add") || err != nil {
				t.Errorf("%v, after %q: used %v, %v", route, verb, used, err)
			}
		}
	}
}

// An address with a peer keeps its peer, and is not added a second time.
func TestAddressMetricOfAPeer(t *testing.T) {
	r := testnet.NewRail(t, "ens1")
	index := r.Host.Link("ens1").Index
	for _, c := range []struct{ local, peer, address string }{
		{"10.0.0.5", "10.0.0.4/32", "10.0.0.5/32"}, {"10.1.0.5", "10.1.0.4/31", "10.1.0.5/31"}, {"fd00::5", "fd00::4/128", "fd00::5/128"},
	} {
		r.Host.IP("addr", "add", c.local, "peer", c.peer, "dev", "ens1")
		if err := link.SetAddressMetric(r.Host.Netns, index, cidr(t, c.address), 1003); err != nil {
			t.Error(err)
		}
	}
	addresses := r.Host.IP("addr", "show", "dev", "ens1")
	for _, want := range []string{"10.0.0.5 peer 10.0.0.4/32 metric 1003", "10.1.0.5 peer 10.1.0.4/31 metric 1003", "fd00::5 peer fd00::4/128 metric 1003"} {
		if !strings.Contains(addresses, want) {
			t.Errorf("no %q in\n%s", want, addresses)
		}
	}
	if n := strings.Count(addresses, "metric 1003"); n != 3 {
		t.Errorf("%d addresses, want 3:\n%s", n, addresses)
	}
}

// The kernel's route for the address has the metric, even after the link was down.
func TestAddressMetric(t *testing.T) {
	r := testnet.NewRail(t, "ens1")
	index := r.Host.Link("ens1").Index
	r.Host.IP("addr", "add", "fd00::6/64", "dev", "ens1", "home")
	for _, address := range []string{"10.0.0.5/24", "10.0.0.6/24", "fd00::5/64"} {
		if err := link.AddAddress(r.Host.Netns, index, cidr(t, address)); err != nil {
			t.Fatal(err)
		}
	}
	for _, address := range []string{"10.0.0.5/24", "10.0.0.6/24", "fd00::5/64", "fd00::6/64"} {
		for range 2 {
			if err := link.SetAddressMetric(r.Host.Netns, index, cidr(t, address), 1003); err != nil {
				t.Error(err)
			}
		}
	}
	for _, state := range []string{"up", "down", "up"} {
		r.Host.IP("link", "set", "ens1", state)
		routes := r.Host.IP("route", "show", "dev", "ens1")
		if state == "up" && strings.TrimSpace(routes) != "10.0.0.0/24 proto kernel scope link src 10.0.0.5 metric 1003" {
			t.Errorf("%s: IPv4 routes:\n%s", state, routes)
		}
	}
	addresses := r.Host.IP("addr", "show", "dev", "ens1")
	for _, want := range []string{"10.0.0.5/24 metric 1003 brd 10.0.0.255", "10.0.0.6/24 metric 1003 brd 10.0.0.255"} {
		if !strings.Contains(addresses, want) {
			t.Errorf("no %q in\n%s", want, addresses)
		}
	}
	if err := link.SetAddressMetric(r.Host.Netns, index, cidr(t, "10.0.0.7/24"), 1); !errors.Is(err, unix.EADDRNOTAVAIL) || !strings.Contains(err.Error(), "10.0.0.7/24") {
		t.Errorf("of an address that it does not have: %v", err)
	}
}

func TestIPv6AddressMetricKeepsFlags(t *testing.T) {
	r := testnet.NewRail(t, "ens1")
	index := r.Host.Link("ens1").Index
	r.Host.IP("addr", "add", "fd00::6/64", "dev", "ens1", "home", "nodad")
	if err := link.SetAddressMetric(r.Host.Netns, index, cidr(t, "fd00::6/64"), 1003); err != nil {
		t.Fatal(err)
	}
	if got := r.Host.IP("-6", "addr", "show", "dev", "ens1"); !strings.Contains(got, "fd00::6/64 metric 1003 scope global nodad home") {
		t.Errorf("the address: %s", got)
	}
	if got := r.Host.IP("-6", "route", "show", "fd00::/64"); !strings.Contains(got, "metric 1003") || strings.Count(got, "dev") != 1 {
		t.Errorf("the route: %s", got)
	}
}

func TestRouteOfATableOfItsOwn(t *testing.T) {
	r := testnet.NewRail(t, "ens1")
	index := r.Host.Link("ens1").Index
	r.Host.IP("addr", "add", "10.0.0.5/32", "dev", "ens1")
	r.Host.IP("addr", "add", "10.0.0.6/32", "dev", "ens1")
	gateway := link.Route{Dst: cidr(t, "0.0.0.0/0"), Gateway: net.ParseIP("169.254.1.1"), Table: 1003}
	if err := link.AddRoute(r.Host.Netns, index, gateway); err == nil {
		t.Error("a gateway that no address reaches was accepted")
	}
	gateway.OnLink, gateway.Src = true, net.ParseIP("10.0.0.6").To4()
	for range 2 {
		if err := link.AddRoute(r.Host.Netns, index, gateway); err != nil {
			t.Fatal(err)
		}
	}
	if got := r.Host.IP("route", "show", "table", "1003"); strings.TrimSpace(got) != "default via 169.254.1.1 dev ens1 src 10.0.0.6 onlink" {
		t.Errorf("the table: %s", got)
	}
	if tables, err := link.TablesWith(r.Host.Netns, index, link.Route{Dst: gateway.Dst, Gateway: gateway.Gateway}); err != nil || len(tables) != 1 || tables[0] != 1003 {
		t.Errorf("tables %v, %v", tables, err)
	}
}
