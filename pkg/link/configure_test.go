package link_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
)

func cidr(t *testing.T, s string) *net.IPNet {
	t.Helper()
	ip, n, err := net.ParseCIDR(s)
	if err != nil {
		t.Fatal(err)
	}
	n.IP = ip
	if v4 := ip.To4(); v4 != nil {
		n.IP = v4
	}
	return n
}

func TestAddAddress(t *testing.T) {
	r := testnet.NewRail(t, "ens1")
	index := r.Host.Link("ens1").Index
	for address, want := range map[string]string{
		"10.0.0.5/24": "10.0.0.5/24 brd 10.0.0.255", "10.0.1.5/32": "10.0.1.5/32 scope",
		"10.0.2.4/31": "10.0.2.4/31 scope", "fd00::5/64": "fd00::5/64 scope",
	} {
		if err := link.AddAddress(r.Host.Netns, index, cidr(t, address)); err != nil {
			t.Error(err)
		}
		if got := r.Host.IP("addr", "show", "dev", "ens1"); !strings.Contains(got, want) {
			t.Errorf("%s: no %q in\n%s", address, want, got)
		}
	}
	if err := link.AddAddress(r.Host.Netns, index, cidr(t, "10.0.0.5/24")); !errors.Is(err, unix.EEXIST) || !strings.Contains(err.Error(), "10.0.0.5/24") {
		t.Errorf("twice: %v", err)
	}
}

func TestAddRoute(t *testing.T) {
	host := unix.RT_SCOPE_LINK
	for _, c := range []struct {
		name  string
		route link.Route
		shown string // ip route show table all
	}{
		{"by the gateway", link.Route{Dst: cidr(t, "10.5.0.0/16"), Gateway: net.ParseIP("10.0.0.1")}, "10.5.0.0/16 via 10.0.0.1 dev ens1"},
		{"on the link", link.Route{Dst: cidr(t, "10.5.0.0/16")}, "10.5.0.0/16 dev ens1 scope link"},
		{"default", link.Route{Dst: cidr(t, "0.0.0.0/0"), Gateway: net.ParseIP("10.0.0.1")}, "default via 10.0.0.1 dev ens1"},
		{
			"with everything",
			link.Route{Dst: cidr(t, "10.5.0.0/16"), Gateway: net.ParseIP("10.0.0.1"), MTU: 1400, AdvMSS: 1300, Priority: 7, Table: 100},
			"10.5.0.0/16 via 10.0.0.1 dev ens1 table 100 metric 7 mtu 1400 advmss 1300",
		},
		{"with a scope", link.Route{Dst: cidr(t, "10.5.0.0/16"), Scope: &host}, "10.5.0.0/16 dev ens1 scope link"},
		{"a large table", link.Route{Dst: cidr(t, "10.5.0.0/16"), Table: 70000}, "10.5.0.0/16 dev ens1 table 70000 scope link"},
		{"IPv6 by the gateway", link.Route{Dst: cidr(t, "fd05::/64"), Gateway: net.ParseIP("fd00::1")}, "fd05::/64 via fd00::1 dev ens1 metric 1024"},
		{"IPv6 on the link", link.Route{Dst: cidr(t, "fd05::/64"), MTU: 1300}, "fd05::/64 dev ens1 metric 1024 mtu 1300"},
		{"IPv6 default", link.Route{Dst: cidr(t, "::/0"), Gateway: net.ParseIP("fd00::1"), Priority: 9}, "default via fd00::1 dev ens1 metric 9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := testnet.NewRail(t, "ens1")
			index := r.Host.Link("ens1").Index
			r.Host.IP("addr", "add", "10.0.0.5/24", "dev", "ens1")
			r.Host.IP("addr", "add", "fd00::5/64", "dev", "ens1")
			has := func(route link.Route) bool {
				ok, err := link.HasRoute(r.Host.Netns, index, route)
				if err != nil {
					t.Fatal(err)
				}
				return ok
			}
			if has(c.route) {
				t.Fatal("the route was there before")
			}
			for range 2 { // an existing one is not an error
				if err := link.AddRoute(r.Host.Netns, index, c.route); err != nil {
					t.Fatal(err)
				}
			}
			shown := strings.Join(strings.Fields(r.Host.IP("route", "show", "table", "all")+r.Host.IP("-6", "route", "show", "table", "all")), " ")
			if !strings.Contains(shown, c.shown) {
				t.Errorf("no %q in %s", c.shown, shown)
			}
			if !has(c.route) {
				t.Error("HasRoute does not see it")
			}
			for name, change := range map[string]func(*link.Route){
				"table":       func(r *link.Route) { r.Table = 99 },
				"metric":      func(r *link.Route) { r.Priority = 99 },
				"gateway":     func(r *link.Route) { r.Gateway = net.ParseIP("10.0.0.99") },
				"destination": func(r *link.Route) { r.Dst = cidr(t, "10.99.0.0/16") },
			} {
				other := c.route
				change(&other)
				if has(other) {
					t.Errorf("it passes for one with another %s", name)
				}
			}
			if ok, err := link.HasRoute(r.Host.Netns, index+1000, c.route); ok || err != nil {
				t.Errorf("by another link: %v, %v", ok, err)
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		r := testnet.NewRail(t, "ens1")
		err := link.AddRoute(r.Host.Netns, r.Host.Link("ens1").Index, link.Route{Dst: cidr(t, "10.5.0.0/16"), Gateway: net.ParseIP("10.77.0.1")})
		if err == nil || !strings.Contains(err.Error(), "10.5.0.0/16 via 10.77.0.1") {
			t.Errorf("a gateway that cannot be reached: %v", err)
		}
	})
}

// In one namespace each rail has its own route to a common destination.
func TestAddRouteBesideOneToTheSameDestination(t *testing.T) {
	for _, c := range []struct{ dst, gateway4, gateway6 string }{
		{"172.16.0.0/12", "10.0.%d.1", ""},
		{"0.0.0.0/0", "10.0.%d.1", ""},
		{"172.16.0.0/12", "", ""},
		{"fd05::/64", "", "fd00:%d::1"},
		{"::/0", "", "fd00:%d::1"},
		{"fd05::/64", "", ""},
	} {
		gateway := c.gateway4 + c.gateway6
		t.Run(c.dst+" via "+gateway, func(t *testing.T) {
			r := testnet.NewRail(t, "ens1")
			route := link.Route{Dst: cidr(t, c.dst)}
			way := func(i int) (int, link.Route) {
				if gateway != "" {
					route.Gateway = net.ParseIP(fmt.Sprintf(gateway, i))
				}
				return r.Host.Link(fmt.Sprint("ens", i)).Index, route
			}
			for i := 1; i <= 3; i++ {
				if i > 1 {
					r.Host.NIC(fmt.Sprint("ens", i), r.Wire)
				}
				r.Host.IP("addr", "add", fmt.Sprintf("10.0.%d.5/24", i), "dev", fmt.Sprint("ens", i))
				r.Host.IP("addr", "add", fmt.Sprintf("fd00:%d::5/64", i), "dev", fmt.Sprint("ens", i))
				index, route := way(i)
				if ok, err := link.HasRoute(r.Host.Netns, index, route); ok || err != nil {
					t.Errorf("before ens%d has it: %v, %v", i, ok, err)
				}
				for range 2 {
					if err := link.AddRoute(r.Host.Netns, index, route); err != nil {
						t.Fatal(err)
					}
				}
			}
			for i := 1; i <= 3; i++ {
				index, route := way(i)
				if ok, err := link.HasRoute(r.Host.Netns, index, route); !ok || err != nil {
					t.Errorf("by ens%d: %v, %v", i, ok, err)
				}
			}
			// If one route is removed, the others stay.
			r.Host.IP("link", "del", "ens2")
			for i := 1; i <= 3; i += 2 {
				index, route := way(i)
				if ok, err := link.HasRoute(r.Host.Netns, index, route); !ok || err != nil {
					t.Errorf("after ens2 went, by ens%d: %v, %v", i, ok, err)
				}
			}
		})
	}
}

func TestAwaitDAD(t *testing.T) {
	const address = "fd00::5/64"
	for _, c := range []struct {
		name     string
		given    func(r *testnet.Rail)
		deadline time.Duration
		atLeast  time.Duration
		atMost   time.Duration
		check    func(err error, tentative string) string
	}{
		{
			"nobody else has it", func(r *testnet.Rail) { r.Host.IP("addr", "add", address, "dev", "ens1") },
			10 * time.Second, 500 * time.Millisecond, 9 * time.Second,
			func(err error, tentative string) string {
				if err != nil || tentative != "" {
					return "want no error and nothing tentative"
				}
				return ""
			},
		},
		{
			"a duplicate", func(r *testnet.Rail) {
				r.Wire.IP("addr", "add", address, "dev", "ens1-sw")
				r.Host.IP("addr", "add", address, "dev", "ens1")
			},
			10 * time.Second, 0, 9 * time.Second,
			func(err error, _ string) string {
				if !errors.Is(err, link.ErrDuplicateAddress) || !strings.Contains(err.Error(), address) {
					return "want ErrDuplicateAddress and the address"
				}
				return ""
			},
		},
		{
			"no cable", func(r *testnet.Rail) {
				r.Wire.IP("link", "set", "ens1-sw", "down")
				// linkwatch notifies IPv6 up to a second later.
				for !strings.Contains(r.Host.IP("link", "show", "ens1"), "state DOWN") {
					time.Sleep(10 * time.Millisecond)
				}
				r.Host.IP("addr", "add", address, "dev", "ens1")
			},
			500 * time.Millisecond, 500 * time.Millisecond, 9 * time.Second,
			func(err error, tentative string) string {
				if !errors.Is(err, link.ErrNoCarrier) || !strings.Contains(err.Error(), address) || tentative == "" {
					return "want ErrNoCarrier and the address, which is unchecked"
				}
				return ""
			},
		},
		{
			"the cable comes late", func(r *testnet.Rail) {
				r.Wire.IP("link", "set", "ens1-sw", "down")
				r.Host.IP("addr", "add", address, "dev", "ens1")
				later(t, 300*time.Millisecond, func() { _ = link.SetUp(r.Wire.Netns, r.Wire.Link("ens1-sw").Index) })
			},
			10 * time.Second, 500 * time.Millisecond, 9 * time.Second,
			func(err error, tentative string) string {
				if err != nil || tentative != "" {
					return "want no error and nothing tentative"
				}
				return ""
			},
		},
		{
			"the time is over", func(r *testnet.Rail) { r.Host.IP("addr", "add", address, "dev", "ens1") },
			100 * time.Millisecond, 100 * time.Millisecond, 9 * time.Second,
			func(err error, _ string) string {
				if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, link.ErrDuplicateAddress) || !strings.Contains(err.Error(), address) {
					return "want the deadline and the address"
				}
				return ""
			},
		},
		{
			"no IPv6 address", func(r *testnet.Rail) { r.Host.IP("addr", "add", "10.0.0.5/24", "dev", "ens1") },
			10 * time.Second, 0, 9 * time.Second,
			func(err error, _ string) string {
				if err != nil {
					return "want no error"
				}
				return ""
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r, index := testnet.NewRailWithDAD(t)
			c.given(r)
			began := time.Now() // before the deadline is set, so that a wait for it is never too short
			ctx, cancel := context.WithTimeout(t.Context(), c.deadline)
			defer cancel()
			err := link.AwaitDAD(ctx, r.Host.Netns, index)
			took := time.Since(began)
			tentative := r.Host.IP("-6", "addr", "show", "dev", "ens1", "scope", "global", "tentative")
			if bad := c.check(err, tentative); bad != "" {
				t.Errorf("error %v, %s; tentative: %q", err, bad, tentative)
			}
			if took < c.atLeast || took > c.atMost {
				t.Errorf("took %v, want %v to %v", took, c.atLeast, c.atMost)
			}
		})
	}
	t.Run("the link is gone", func(t *testing.T) {
		r, index := testnet.NewRailWithDAD(t)
		r.Host.IP("addr", "add", address, "dev", "ens1")
		later(t, 100*time.Millisecond, func() { _ = link.Delete(r.Wire.Netns, r.Wire.Link("ens1-sw").Index) })
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := link.AwaitDAD(ctx, r.Host.Netns, index); err != nil && !errors.Is(err, link.ErrNotFound) {
			t.Errorf("error %v", err)
		}
	})
}

func TestRulesOfAnAddressAndItsTables(t *testing.T) {
	n, pod := testnet.NewNetns(t, "n"), testnet.NewNetns(t, "pod")
	for _, args := range [][]string{
		{"from", "10.0.0.5", "table", "100", "pref", "500"},
		{"from", "10.0.0.0/24", "table", "100", "pref", "501"},
		{"from", "10.0.0.5", "table", "200", "pref", "502"},
		{"from", "10.0.1.5", "table", "100", "pref", "503"},
		{"from", "all", "table", "100", "pref", "504"},
		{"to", "10.0.0.5", "table", "100", "pref", "505"},
	} {
		n.IP(append([]string{"rule", "add"}, args...)...)
	}
	n.IP("-6", "rule", "add", "from", "fd00::5", "table", "100", "pref", "506")
	rules, err := link.Rules(n.Netns, []*net.IPNet{cidr(t, "10.0.0.5/24"), cidr(t, "fd00::5/64")}, []int{100})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // existing ones are left
		if err := link.AddRules(pod.Netns, rules); err != nil {
			t.Fatal(err)
		}
	}
	got := pod.IP("rule") + pod.IP("-6", "rule")
	for pref, want := range map[string]int{"500:": 1, "501:": 1, "502:": 0, "503:": 0, "504:": 0, "505:": 0, "506:": 1} {
		if n := strings.Count(got, pref); n != want {
			t.Errorf("%d rules with preference %s want %d, in\n%s", n, pref, want, got)
		}
	}
}
