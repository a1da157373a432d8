package plans_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/link"
)

// asMade has configurations of a NIC as daemons make them. A daemon adds an address without a
// route (noprefixroute), and then adds the route of the address itself, in the kernel's name.
var asMade = map[string][]string{
	"NetworkManager": {
		"addr add 10.1.0.5/24 dev %s noprefixroute",
		"route add 10.1.0.0/24 dev %s proto kernel scope link src 10.1.0.5 metric 101",
		"route add 10.9.0.0/16 via 10.1.0.1 dev %s proto static metric 101",
	},
	"NetworkManager, IPv6": {
		"addr add fd00:1::5/64 dev %s nodad noprefixroute",
		"-6 route add fd00:1::/64 dev %s proto kernel metric 101",
		"-6 route add fd00:9::/48 via fd00:1::1 dev %s proto static metric 101",
	},
	"a link-local address of its own": {
		"link set %s addrgenmode none",
		"addr flush dev %s",
		"addr add fe80::9/64 dev %s nodad noprefixroute",
		"-6 route add fe80::/64 dev %s proto kernel metric 1024",
	},
	"router advertisements that a daemon reads": {
		"addr add fd00:1::5/64 dev %s nodad noprefixroute",
		"-6 route add fd00:1::/64 dev %s proto ra metric 101",
		"-6 route add fd00:9::/48 via fe80::1 dev %s proto ra metric 101",
	},
	"a second metric beside the kernel's": {
		"addr add 10.1.0.5/24 dev %s",
		"route add 10.1.0.0/24 dev %s proto kernel scope link src 10.1.0.5 metric 101",
	},
	"a table of its own": {
		"addr add 10.1.0.5/24 dev %s",
		"route add 10.1.0.0/24 dev %s proto kernel scope link src 10.1.0.5 table 101",
	},
	"an address with a metric": {
		"addr add 10.1.0.5/24 dev %s metric 500",
		"addr add fd00:1::5/64 dev %s nodad metric 500",
	},
	"peers": {
		"addr add 10.1.0.5 peer 10.1.0.6/32 dev %s",
		"addr add fd00:1::5 peer fd00:1::6/128 dev %s nodad",
	},
}

func (b *bench) make(commands []string) {
	b.t.Helper()
	b.node.Sysctl("ipv6/conf/"+nicName+"/accept_ra", "0") // as networkd and NetworkManager set it
	for _, c := range commands {
		b.node.IP(strings.Fields(strings.ReplaceAll(c, "%s", nicName))...)
	}
}

// TestRoutesOfDaemonsComeHome lends a NIC that was configured by a daemon which no longer runs.
// Only DEL can restore the routes of the NIC.
func TestRoutesOfDaemonsComeHome(t *testing.T) {
	t.Parallel()
	for name, commands := range asMade {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.make(commands)
			before := b.node.State()
			for _, more := range []map[string]any{nil, {"useInterfaceNetwork": true}} {
				config := b.config(more)
				b.node.MustRun(b.call("ADD", config))
				b.node.MustRun(b.call("DEL", config))
				b.untouched(before)
				if note := b.returned(); note != "" {
					t.Errorf("it is noted: %s", note)
				}
			}
		})
	}
}

func TestNICOfNetworkManagerHasItsSubnetInThePod(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"NetworkManager":       "10.1.0.0/24 dev net1 proto kernel scope link src 10.1.0.5 metric 101",
		"NetworkManager, IPv6": "fd00:1::/64 dev net1 proto kernel metric 101",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.make(asMade[name])
			config := b.config(map[string]any{"useInterfaceNetwork": true})
			out := b.node.MustRun(b.call("ADD", config))
			if routes := b.pod.IP("route") + b.pod.IP("-6", "route"); !strings.Contains(routes, want) || strings.Count(routes, strings.Fields(want)[0]) != 1 {
				t.Errorf("the pod lacks %q, or has two:\n%s", want, routes)
			}
			b.node.MustRun(b.call("CHECK", b.withPrevResult(config, out)))
		})
	}
}

// TestRouteThatExpiresExpires has a route with a lifetime, and one that expires in the pod's
// time.
func TestRouteThatExpiresExpires(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.IP("addr", "add", "fd00:1::5/64", "dev", nicName, "nodad")
	b.node.IP("-6", "route", "add", "fd00:8::/48", "via", "fd00:1::1", "proto", "static", "expires", "1000")
	b.node.IP("-6", "route", "add", "fd00:9::/48", "via", "fd00:1::1", "proto", "static", "expires", "1")
	config := b.config(nil)
	b.node.MustRun(b.call("ADD", config))
	time.Sleep(time.Second)
	b.node.MustRun(b.call("DEL", config))
	routes := b.node.IP("-6", "route")
	if !strings.Contains(routes, "fd00:8::/48 via fd00:1::1 dev "+nicName+" proto static metric 1024 expires 99") || strings.Contains(routes, "fd00:9::/48") {
		t.Errorf("after the loan:\n%s", routes)
	}
}

// A deprecated address stays one that nobody sends from.
func TestDeprecatedAddressIsDeprecatedInThePod(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"useInterfaceNetwork", "keepAddress"} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.node.IP("addr", "add", "fd00:1::1/64", "dev", nicName, "nodad")
			b.node.IP("addr", "add", "fd00:1::2/64", "dev", nicName, "nodad", "preferred_lft", "0")
			b.node.IP("addr", "add", "fd00:1::3/64", "dev", nicName, "nodad", "valid_lft", "1000", "preferred_lft", "0")
			before := b.node.State()
			config := b.config(map[string]any{key: true})
			b.node.MustRun(b.call("ADD", config))
			if got := b.pod.IP("-6", "route", "get", "fd00:1::99"); !strings.Contains(got, "src fd00:1::1 ") {
				t.Errorf("the pod sends from another address: %s", got)
			}
			if got := b.pod.IP("-6", "addr", "show", "deprecated"); !strings.Contains(got, "fd00:1::2/64") {
				t.Errorf("fd00:1::2 is not deprecated in the pod: %s", got)
			}
			b.node.MustRun(b.call("DEL", config))
			b.untouched(before)
		})
	}
}

// objects are routes by nexthop objects, as routing daemons make them, over two NICs.
var objects = map[string]struct {
	uplink bool
	make   []string
	to     string // an address that the route is for
}{
	"IPv4":             {true, []string{"nexthop add id 1 via 10.1.0.1 dev %s", "route add default nhid 1"}, "8.8.8.8"},
	"IPv6":             {true, []string{"nexthop add id 1 via fd00:1::1 dev %s", "-6 route add default nhid 1"}, "fd00:8::8"},
	"via inet6":        {true, []string{"nexthop add id 1 via fe80::99 dev %s", "route add default nhid 1"}, "8.8.8.8"},
	"a link":           {true, []string{"nexthop add id 1 dev %s", "route add default nhid 1"}, "8.8.8.8"},
	"a group":          {true, []string{"nexthop add id 1 via 10.1.0.1 dev %s", "nexthop add id 2 group 1", "route add default nhid 2"}, "8.8.8.8"},
	"a subnet":         {false, []string{"nexthop add id 1 via 10.1.0.1 dev %s", "route add 10.50.0.0/16 nhid 1"}, "10.50.0.5"},
	"IPv6 subnet":      {false, []string{"nexthop add id 1 via fd00:1::1 dev %s", "-6 route add fd00:50::/48 nhid 1"}, "fd00:50::5"},
	"subnet via inet6": {false, []string{"nexthop add id 1 via fe80::99 dev %s", "route add 10.50.0.0/16 nhid 1"}, "10.50.0.5"},
	"onlink":           {false, []string{"nexthop add id 1 via 10.99.0.1 dev %s onlink", "route add 10.50.0.0/16 nhid 1"}, "10.50.0.5"},
	"a group of two": {
		false, []string{"nexthop add id 1 via 10.1.0.1 dev %s", "nexthop add id 2 via 10.1.0.2 dev %s", "nexthop add id 3 group 1/2", "route add 10.50.0.0/16 nhid 3"}, "10.50.0.5",
	},
	"a table": {false, []string{"nexthop add id 1 via 10.1.0.1 dev %s", "route add 10.50.0.0/16 nhid 1 table 101", "rule add table 101"}, "10.50.0.5"},
}

// TestRoutesByNexthopObjects has routes that name a nexthop object. If nexthop_compat_mode is 0, as
// the kernel's documentation advises, the kernel does not report the links of these routes. Even
// then the guardrail "uplink" must see the routes, DEL must restore them, and a macvlan must find
// its master.
func TestRoutesByNexthopObjects(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"0", "1"} {
		for name, c := range objects {
			t.Run(name+", mode "+mode, func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				b.node.Sysctl("ipv4/nexthop_compat_mode", mode)
				b.make([]string{"addr add 10.1.0.5/24 dev %s", "addr add fd00:1::5/64 dev %s nodad"})
				b.make(c.make)
				before := b.node.IP("route", "get", c.to)
				config := b.config(nil)
				_, err := b.node.Run(b.call("ADD", config))
				if c.uplink {
					if err == nil || !strings.Contains(err.Error(), `"allow": ["uplink"]`) {
						t.Errorf("the uplink is lent: %v", err)
					}
					config = b.macvlanConfig(map[string]any{"master": nil})
					b.node.MustRun(b.call("ADD", config))
				} else if err != nil {
					t.Fatal(err)
				}
				b.node.MustRun(b.call("DEL", config))
				after := b.node.IP("route", "get", c.to)
				if strings.Contains(name, "two") { // either
					before, after = strings.ReplaceAll(before, "10.1.0.2", "10.1.0.1"), strings.ReplaceAll(after, "10.1.0.2", "10.1.0.1")
				}
				if routeWords(after) != routeWords(before) {
					t.Errorf("the route was\n%sand is\n%s", before, after)
				}
			})
		}
	}
}

// routeWords is a route without what does not belong to it.
func routeWords(text string) string {
	return regexp.MustCompile(`uid \d+`).ReplaceAllString(text, "")
}

// TestMultipathRoutesOfSeveralNICs lends the NICs of routes over three NICs, and returns the NICs
// in each possible order. During the loans the host reaches the destination by the NICs that are
// left.
func TestMultipathRoutesOfSeveralNICs(t *testing.T) {
	t.Parallel()
	nics := []string{nicName, "ens13np0", "ens14np0"}
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 0, 2}, {1, 2, 0}} {
		for family, prefix := range map[string]string{"IPv4": "10.1.%d.", "IPv6": "fd00:%d::"} {
			t.Run(fmt.Sprint(family, order), func(t *testing.T) {
				t.Parallel()
				b := newBench(t)
				route, to, bits := []string{"route", "add", "10.77.0.0/16"}, "10.77.0.1", "/24"
				if family == "IPv6" {
					route, to, bits = []string{"-6", "route", "add", "fd00:77::/48"}, "fd00:77::1", "/64"
				}
				for i, nic := range nics {
					if i > 0 {
						b.node.NIC(nic, b.wire)
					}
					b.node.Batch(nil, fmt.Sprintf("addr add "+prefix+"5%s dev %s%s", i, bits, nic, map[bool]string{true: " nodad"}[family == "IPv6"]))
					route = append(route, "nexthop", "via", fmt.Sprintf(prefix+"1", i), "dev", nic)
				}
				b.node.IP(route...)
				before := b.node.State()
				for i, nic := range nics {
					b.node.MustRun(b.ofNIC("ADD", i, nic))
					if i == len(nics)-1 {
						break
					}
					if got := b.node.IP("route", "get", to); !strings.Contains(got, " via ") {
						t.Errorf("with %d NICs lent the host has no way to %s: %s", i+1, to, got)
					}
				}
				for _, i := range order {
					b.node.MustRun(b.ofNIC("DEL", i, nics[i]))
				}
				b.untouched(before)
				if note := b.returned(); note != "" {
					t.Errorf("it is said to be incomplete: %s", note)
				}
			})
		}
	}
}

// ofNIC returns the call for the attachment of a NIC under a name of its own in the pod.
func (b *bench) ofNIC(verb string, number int, nic string) testnet.Call {
	call := b.call(verb, b.config(map[string]any{"device": nic}))
	call.IfName = fmt.Sprint("net", number+1)
	return call
}

// TestPodHasItsOwnHopsOfAMultipathRoute has a route over two NICs, and lends one of the two NICs
// with its routes.
func TestPodHasItsOwnHopsOfAMultipathRoute(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.NIC("ens13np0", b.wire)
	b.node.IP("addr", "add", "10.1.0.5/24", "dev", nicName)
	b.node.IP("addr", "add", "10.1.1.5/24", "dev", "ens13np0")
	b.node.IP("route", "add", "10.77.0.0/16", "nexthop", "via", "10.1.0.1", "dev", nicName, "nexthop", "via", "10.1.1.1", "dev", "ens13np0")
	b.node.IP("route", "add", "10.78.0.0/16", "nexthop", "via", "10.1.0.1", "dev", nicName, "nexthop", "via", "10.1.0.2", "dev", nicName)
	before := b.node.State()
	config := b.config(map[string]any{"useInterfaceNetwork": true})
	out := b.node.MustRun(b.call("ADD", config))
	routes := b.pod.IP("route")
	for _, want := range []string{"10.77.0.0/16 via 10.1.0.1 dev net1", "nexthop via 10.1.0.1 dev net1", "nexthop via 10.1.0.2 dev net1"} {
		if !strings.Contains(routes, want) {
			t.Errorf("the pod lacks %q:\n%s", want, routes)
		}
	}
	var result current.Result
	if err := json.Unmarshal(out, &result); err != nil || len(result.Routes) != 1 || result.Routes[0].GW.String() != "10.1.0.1" {
		t.Errorf("the result is %s, %v", out, err)
	}
	b.node.MustRun(b.call("CHECK", b.withPrevResult(config, out)))
	b.node.MustRun(b.call("DEL", config))
	b.untouched(before)
}

// TestCarriedRoutesThatThePodCannotHave has a route with a source that stays on the host, a
// nexthop that is on the link, and routes of a router's advertisements, which the pod hears itself.
func TestCarriedRoutesThatThePodCannotHave(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.node.NIC("ens13np0", b.wire)
	b.make([]string{
		"addr add 10.1.0.5/24 dev %s",
		"addr add 169.254.7.1/16 dev %s scope link noprefixroute",
		"route add 169.254.0.0/16 dev %s proto kernel scope link src 169.254.7.1",
		"route add 10.77.0.0/16 nexthop via 10.99.0.1 dev %s onlink nexthop via 10.99.1.1 dev ens13np0 onlink",
		"addr add fd00:7::5/64 dev %s",
		"-6 route add fd00:70::/64 via fd00:7::1 dev %s",
		"-6 route add fd00:71::/64 via fd00:7::1 dev %s proto ra",
		"-6 route add fd00:72::/64 dev %s proto ra",
	})
	before := b.node.State()
	config := b.config(map[string]any{"useInterfaceNetwork": true})
	b.node.MustRun(b.call("ADD", config))
	if routes := b.pod.IP("route"); !strings.Contains(routes, "10.77.0.0/16 via 10.99.0.1 dev net1 onlink") || strings.Contains(routes, "169.254") {
		t.Errorf("the pod has\n%s", routes)
	}
	if routes := b.pod.IP("-6", "route"); !strings.Contains(routes, "fd00:70::/64") || strings.Contains(routes, "fd00:71::/64") || strings.Contains(routes, "fd00:72::/64") {
		t.Errorf("the pod has\n%s", routes)
	}
	b.node.MustRun(b.call("DEL", config))
	b.untouched(before)
}

// A NIC of a route that is down must not cost the host the nexthops of those that are up.
func TestMultipathRouteWithANICThatIsDown(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	route := []string{"route", "add", "10.77.0.0/16"}
	for i, nic := range []string{nicName, "ens13np0", "ens14np0"} {
		if i > 0 {
			b.node.NIC(nic, b.wire)
		}
		b.node.IP("addr", "add", fmt.Sprintf("10.1.%d.5/24", i), "dev", nic)
		route = append(route, "nexthop", "via", fmt.Sprintf("10.1.%d.1", i), "dev", nic)
	}
	b.node.IP(route...)
	b.node.IP("link", "set", "ens14np0", "down")
	config := b.config(nil)
	b.node.MustRun(b.call("ADD", config))
	if got := b.node.IP("route", "get", "10.77.0.1"); !strings.Contains(got, "via 10.1.1.1") {
		t.Errorf("during the loan: %s", got)
	}
	b.node.MustRun(b.call("DEL", config))
	if got := b.node.IP("route", "show", "10.77.0.0/16"); !strings.Contains(got, "via 10.1.0.1") || !strings.Contains(got, "via 10.1.1.1") {
		t.Errorf("after it: %s", got)
	}
	if note := b.returned(); !strings.Contains(note, "10.77.0.0/16") {
		t.Errorf("the third nexthop is not said to be lost: %q", note)
	}
}

// TestIPAMBesideTheHostsAddresses has an IPAM plugin that returns only routes, as upstream allows
// with useInterfaceNetwork, and an IPAM plugin that returns addresses too. The addresses of IPAM
// come first in the result, and last on the interface.
func TestIPAMBesideTheHostsAddresses(t *testing.T) {
	t.Parallel()
	route := []map[string]any{{"dst": "10.7.0.0/16", "gw": "10.1.0.1"}}
	for name, ipam := range map[string]map[string]any{
		"routes":    {"type": "static", "routes": route},
		"addresses": static(route, "10.1.0.9/24"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.make([]string{"addr add 10.1.0.5/24 dev %s", "route add 10.9.0.0/16 via 10.1.0.2 dev %s"})
			before := b.node.State()
			config := b.config(map[string]any{"useInterfaceNetwork": true, "ipam": ipam})
			out := b.node.MustRun(b.call("ADD", config))
			var result current.Result
			if err := json.Unmarshal(out, &result); err != nil {
				t.Fatal(err)
			}
			var said []string
			for _, ip := range result.IPs {
				said = append(said, ip.Address.String())
			}
			for _, r := range result.Routes {
				said = append(said, r.Dst.String()+" "+r.GW.String())
			}
			want := "10.1.0.5/24 10.7.0.0/16 10.1.0.1 10.9.0.0/16 10.1.0.2"
			if name == "addresses" {
				want = "10.1.0.9/24 " + want
			}
			if got := strings.Join(said, " "); got != want {
				t.Errorf("the result has %s, not %s", got, want)
			}
			if routes := b.pod.IP("route"); !strings.Contains(routes, "10.7.0.0/16 via 10.1.0.1") {
				t.Errorf("the pod has\n%s", routes)
			}
			b.node.MustRun(b.call("CHECK", b.withPrevResult(config, out)))
			b.node.MustRun(b.call("DEL", config))
			b.untouched(before)
		})
	}
}

// joined makes the NIC a member of a multicast group, as a VRRP daemon does.
func (b *bench) joined(group [4]byte) {
	b.t.Helper()
	l, err := link.ByName(b.node.Netns, nicName)
	if err != nil {
		b.t.Fatal(err)
	}
	err = b.node.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		b.t.Cleanup(func() { _ = unix.Close(fd) })
		return unix.SetsockoptIPMreqn(fd, unix.IPPROTO_IP, unix.IP_ADD_MEMBERSHIP, &unix.IPMreqn{Multiaddr: group, Ifindex: int32(l.Index)})
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// listening opens a raw socket of a protocol at the address, as a VRRP daemon does that sends to
// single hosts.
func (b *bench) listening(protocol int, address [4]byte) {
	b.t.Helper()
	err := b.node.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
		if err != nil {
			return err
		}
		b.t.Cleanup(func() { _ = unix.Close(fd) })
		return unix.Bind(fd, &unix.SockaddrInet4{Addr: address})
	})
	if err != nil {
		b.t.Fatal(err)
	}
}

// TestAddressesOfVRRPAreTheDaemons has addresses beside the NIC's own. Where a VRRP daemon
// listens they are another host's during the loan.
func TestAddressesOfVRRPAreTheDaemons(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		listen func(*bench)
		theirs bool
	}{
		"VRRP":             {func(b *bench) { b.joined([4]byte{224, 0, 0, 18}) }, true},
		"another group":    {func(b *bench) { b.joined([4]byte{224, 0, 0, 5}) }, false},
		"unicast":          {func(b *bench) { b.listening(112, [4]byte{10, 1, 0, 5}) }, true},
		"another protocol": {func(b *bench) { b.listening(89, [4]byte{10, 1, 0, 5}) }, false},
	} {
		virtual := []string{"10.1.0.100", "10.1.0.150", "10.1.0.200"}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.make([]string{"addr add 10.1.0.5/24 dev %s", "addr add fd00:1::5/64 dev %s nodad", "addr add fd00:1::6/128 dev %s nodad"})
			without := b.node.State()
			b.make([]string{"addr add 10.1.0.100/24 dev %s", "addr add 10.1.0.150/28 dev %s", "addr add 10.1.0.200/32 dev %s"})
			with := b.node.State()
			c.listen(b)
			config := b.config(map[string]any{"useInterfaceNetwork": true})
			out := b.node.MustRun(b.call("ADD", config))
			for _, address := range virtual {
				if in := strings.Contains(b.pod.IP("addr"), address+"/"); in == c.theirs || strings.Contains(string(out), address+"/") == c.theirs {
					t.Errorf("%s is in the pod: %v; the result is %s", address, in, out)
				}
			}
			b.node.MustRun(b.call("CHECK", b.withPrevResult(config, out)))
			_, said, err := b.node.RunSaying(b.call("DEL", config))
			if err != nil {
				t.Fatal(err)
			}
			for _, address := range virtual {
				if reported := strings.Contains(said, address); reported != c.theirs {
					t.Errorf("%s is reported: %v; DEL says %s", address, reported, said)
				}
			}
			if c.theirs {
				b.untouched(without)
			} else {
				b.untouched(with)
			}
		})
	}
}

// TestRoutesOfRoutingDaemonsAreTheirs has routes of routing daemons. The daemons add their routes
// again themselves, or have withdrawn them meanwhile. Only routes of other programs are restored.
func TestRoutesOfRoutingDaemonsAreTheirs(t *testing.T) {
	t.Parallel()
	for name, route := range map[string]string{
		"one":       "route add 10.%d.0.0/16 via 10.1.0.1 dev %%s proto %d",
		"multipath": "route add 10.%d.0.0/16 proto %d nexthop via 10.1.0.1 dev %%s nexthop via 10.1.1.1 dev ens13np0",
		"IPv6":      "-6 route add fd00:%d::/48 via fd00:1::1 dev %%s proto %d",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.node.NIC("ens13np0", b.wire)
			b.node.IP("addr", "add", "10.1.1.5/24", "dev", "ens13np0")
			b.make([]string{"addr add 10.1.0.5/24 dev %s", "addr add fd00:1::5/64 dev %s nodad"})
			var kept []string
			const static, dhcp = 4, 16
			for i, proto := range []int{static, dhcp, 77} {
				kept = append(kept, fmt.Sprintf(route, 70+i, proto))
			}
			b.make(kept)
			after := b.node.State()
			daemons := []string{}
			for i, proto := range []int{11, 12, 18, 42, 186, 187, 188, 189, 192, 193, 196, 197} {
				daemons = append(daemons, fmt.Sprintf(route, 80+i, proto))
			}
			b.make(daemons)
			config := b.config(map[string]any{"useInterfaceNetwork": true})
			b.node.MustRun(b.call("ADD", config))
			if routes := b.pod.IP("route") + b.pod.IP("-6", "route"); !strings.Contains(routes, "proto bgp") {
				t.Errorf("the pod lacks the routes of BGP:\n%s", routes)
			}
			if routes := b.node.IP("route") + b.node.IP("-6", "route"); name == "multipath" && strings.Contains(routes, "proto bgp") {
				t.Errorf("during the loan, the host has a route that the daemon has not made:\n%s", routes)
			}
			_, said, err := b.node.RunSaying(b.call("DEL", config))
			if err != nil || strings.Contains(said, "cannot restore") {
				t.Errorf("DEL: %v, %s", err, said)
			}
			b.untouched(after)
		})
	}
}

// TestRulesOfTheHostComeBackWithTheirAddresses has rules that somebody deletes during the loan, as
// network managers do when their NIC leaves. Those of the NIC's addresses are restored.
func TestRulesOfTheHostComeBackWithTheirAddresses(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.make([]string{
		"addr add 10.1.0.5/24 dev %s", "addr add fd00:1::5/64 dev %s nodad",
		"route add default via 10.1.0.1 dev %s table 101", "-6 route add default via fd00:1::1 dev %s table 70000",
	})
	own := []string{
		"rule add from 10.1.0.5 lookup 101 priority 2000 proto static",
		"rule add from 10.1.0.0/24 iif lo dport 4791 lookup 101 priority 2001",
		"rule add from 10.1.0.5 tos 8 lookup 101 priority 2002 suppress_prefixlength 0",
		"-6 rule add from fd00:1::/64 lookup 70000 priority 2003 proto static",
	}
	others := []string{
		"rule add from 10.7.0.5 lookup 101 priority 3000",
		"rule add from 10.1.0.5 lookup 102 priority 3001",
		"rule add from 10.1.0.5 lookup 101 priority 3002 proto 195", // FRRouting's PBR
		"rule add not from 10.1.0.5 lookup 101 priority 3004",
		"rule add to 10.8.0.0/16 lookup 101 priority 3003",
	}
	b.make(own)
	before := b.node.State()
	b.make(others)
	config := b.config(nil)
	for _, deleted := range []bool{true, false} {
		b.node.MustRun(b.call("ADD", config))
		if deleted {
			for _, c := range append(own, others...) {
				b.node.IP(strings.Fields(strings.Replace(c, "rule add", "rule del", 1))...)
			}
		}
		_, said, err := b.node.RunSaying(b.call("DEL", config))
		if err != nil || strings.Contains(said, "cannot restore") {
			t.Errorf("DEL: %v, %s", err, said)
		}
		b.untouched(before)
	}
}
