package plans_test

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/nicstate"
)

// hopNICs are the NICs of a benchOfHops.
var hopNICs = []string{nicName, "ens13np0", "ens14np0"}

// benchOfHops returns a node with several NICs, the i-th with 10.1.i.5/24 and fd00:i::5/64.
func benchOfHops(t *testing.T, commands ...string) *bench {
	t.Helper()
	b := newBench(t)
	for i, nic := range hopNICs {
		if i > 0 {
			b.node.NIC(nic, b.wire)
		}
		b.node.IP("addr", "add", fmt.Sprintf("10.1.%d.5/24", i), "dev", nic)
		b.node.IP("addr", "add", fmt.Sprintf("fd00:%d::5/64", i), "dev", nic, "nodad")
	}
	for _, c := range commands {
		b.node.IP(strings.Fields(namedHops(c))...)
	}
	return b
}

// namedHops replaces NIC0, NIC1 and NIC2 by the names of NICs.
func namedHops(text string) string {
	for i, nic := range hopNICs {
		text = strings.ReplaceAll(text, fmt.Sprint("NIC", i), nic)
	}
	return text
}

func (b *bench) lend(number int) {
	b.t.Helper()
	b.node.MustRun(b.ofNIC("ADD", number, hopNICs[number]))
}

func (b *bench) bring(number int) {
	b.t.Helper()
	b.node.MustRun(b.ofNIC("DEL", number, hopNICs[number]))
}

// hopsOf returns the nexthop objects, the rules, and the routes of the node that the kernel has not
// made, without states. The kernel keeps no order of the nexthops of IPv6.
func hopsOf(n *testnet.Netns) string {
	text := n.IP("nexthop") + n.IP("rule") + n.IP("route", "show", "table", "all") + n.IP("-6", "route", "show", "table", "all")
	lines := strings.Split(strings.NewReplacer(" linkdown", "", " dead", "").Replace(text), "\n")
	slices.Sort(lines)
	return strings.Join(slices.DeleteFunc(lines, func(l string) bool { return strings.Contains(l, "proto kernel") }), "\n")
}

const groupOfTwo = "nexthop add id 1 via 10.1.0.1 dev NIC0;nexthop add id 2 via 10.1.1.1 dev NIC1;"

// nexthopObjects are objects as somebody configures them by hand, or by a file.
var nexthopObjects = map[string]string{
	"one":                            "nexthop add id 1 via 10.1.0.1 dev NIC0;route add 10.77.0.0/16 nhid 1;route add 10.78.0.0/16 nhid 1 metric 7 mtu 4000",
	"without a route":                "nexthop add id 1 via 10.1.0.1 dev NIC0 proto static",
	"a link":                         "nexthop add id 1 dev NIC0;route add 10.77.0.0/16 nhid 1",
	"onlink, via inet6":              "nexthop add id 1 via 10.99.0.1 dev NIC0 onlink;nexthop add id 2 via fe80::99 dev NIC0;route add 10.77.0.0/16 nhid 1;route add 10.78.0.0/16 nhid 2",
	"IPv6":                           "nexthop add id 1 via fd00:0::1 dev NIC0;-6 route add fd00:77::/48 nhid 1",
	"encap":                          "nexthop add id 1 encap ip id 5 dst 10.9.9.9 via 10.1.0.1 dev NIC0;route add 10.77.0.0/16 nhid 1",
	"by a route of the NIC":          "route add 10.60.0.0/24 dev NIC0 scope link;nexthop add id 1 via 10.60.0.1 dev NIC0;route add 10.77.0.0/16 nhid 1",
	"group of one NIC":               "nexthop add id 1 via 10.1.0.1 dev NIC0;nexthop add id 2 via 10.1.0.2 dev NIC0;nexthop add id 9 group 1,3/2,7;route add 10.77.0.0/16 nhid 9",
	"group of two NICs":              groupOfTwo + "nexthop add id 9 group 1/2;route add 10.77.0.0/16 nhid 9",
	"group, the other first, weight": groupOfTwo + "nexthop add id 9 group 2,5/1,2;route add 10.77.0.0/16 nhid 9 table 101",
	"group, IPv6":                    "nexthop add id 1 via fd00:0::1 dev NIC0;nexthop add id 2 via fd00:1::1 dev NIC1;nexthop add id 9 group 1/2;-6 route add fd00:77::/48 nhid 9;-6 route add fd00:78::/48 nhid 9 metric 7",
	"two groups":                     groupOfTwo + "nexthop add id 9 group 1/2;nexthop add id 8 group 1;route add 10.77.0.0/16 nhid 9;route add 10.78.0.0/16 nhid 8",
	"resilient group":                groupOfTwo + "nexthop add id 9 group 1/2 type resilient buckets 8 idle_timer 60;route add 10.77.0.0/16 nhid 9",
}

// TestNexthopObjectsReturn lends the NICs of objects, which the kernel deletes with their links,
// and returns them in either order.
func TestNexthopObjectsReturn(t *testing.T) {
	t.Parallel()
	for name, commands := range nexthopObjects {
		for _, orders := range [][][]int{{{0}, {0}}, {{0, 1}, {1, 0}}, {{0, 1}, {0, 1}}, {{1, 0}, {0, 1}}} {
			lend, bring := orders[0], orders[1]
			if len(lend) > 1 && !strings.Contains(commands, "NIC1") {
				continue
			}
			t.Run(fmt.Sprint(name, lend, bring), func(t *testing.T) {
				t.Parallel()
				b := benchOfHops(t, strings.Split(commands, ";")...)
				before := hopsOf(b.node)
				for _, i := range lend {
					b.lend(i)
				}
				for _, i := range bring {
					b.bring(i)
				}
				if d := testnet.Diff(before, hopsOf(b.node)); d != "" {
					t.Errorf("the host is not as it was:\n%s", d)
				}
				if note := b.returned(); note != "" {
					t.Errorf("it is said to be incomplete: %s", note)
				}
			})
		}
	}
}

// Nexthop objects of a routing daemon belong to the daemon, and so do its routes. If another
// program has a route by such an object, that route returns as a plain route. No route may be there
// twice.
func TestNexthopObjectsOfRoutingDaemonsAreTheirs(t *testing.T) {
	t.Parallel()
	b := benchOfHops(t, "nexthop add id 1 via fd00:0::1 dev NIC0 proto zebra", "nexthop add id 2 via fd00:1::1 dev NIC1 proto zebra", "nexthop add id 9 group 1/2 proto zebra",
		"-6 route add fd00:77::/48 nhid 9 proto bgp", "-6 route add fd00:78::/48 nhid 1")
	b.lend(0)
	b.bring(0)
	objects, routes := b.node.IP("nexthop"), b.node.IP("-6", "route", "show", "fd00:78::/48")
	if strings.Contains(objects, "id 1 ") || !strings.HasPrefix(routes, "fd00:78::/48 via fd00:0::1 dev") && !strings.HasPrefix(routes, "fd00:78::/48 via fd00::1 dev") {
		t.Errorf("after the loan:\n%s%s", objects, routes)
	}
	if routes := b.node.IP("-6", "route", "show", "fd00:77::/48"); strings.Count(routes, "fd00:77::/48") != 1 {
		t.Errorf("the route is there twice:\n%s", routes)
	}
	if note := b.returned(); note != "" {
		t.Errorf("it is said to be incomplete: %s", note)
	}
}

// TestNexthopObjectThatCannotReturnIsReported has an object whose ID is another's when the NIC
// returns: of the group the host has kept the rest, and the route by it must not be there twice.
func TestNexthopObjectThatCannotReturnIsReported(t *testing.T) {
	t.Parallel()
	b := benchOfHops(t, strings.Split(nexthopObjects["group, IPv6"], ";")...)
	b.lend(0)
	b.node.IP("nexthop", "add", "id", "1", "via", "fd00:2::1", "dev", hopNICs[2])
	b.bring(0)
	if routes := b.node.IP("-6", "route", "show", "fd00:77::/48"); strings.Count(routes, "fd00:77::/48") != 1 || strings.Contains(routes, nicName) {
		t.Errorf("the route is there twice, or by the NIC:\n%s", routes)
	}
	if note := b.returned(); !strings.Contains(note, "nexthop object 1 via fd00::1 of "+nicName+": another nexthop object now has this object's ID") || strings.Contains(note, "route") {
		t.Errorf("the note is %q", note)
	}
}

// TestHopsAreKnownByTheirNICs lends two NICs of a route. Meanwhile another link gets the index of
// the first NIC, so that the NIC returns under another index. No route may lead by the link that
// has the former index of the NIC.
func TestHopsAreKnownByTheirNICs(t *testing.T) {
	t.Parallel()
	for name, commands := range map[string]string{
		"route":              "route add 10.77.0.0/16 nexthop via 10.1.0.1 dev NIC0 nexthop via 10.1.1.1 dev NIC1 nexthop via 10.1.2.1 dev NIC2",
		"route, onlink":      "route add 10.77.0.0/16 nexthop via 10.99.0.1 dev NIC0 onlink nexthop via 10.99.1.1 dev NIC1 onlink",
		"route, no gateway":  "route add 10.77.0.0/16 nexthop dev NIC0 nexthop dev NIC1",
		"IPv6":               "-6 route add fd00:77::/48 nexthop via fd00:0::1 dev NIC0 nexthop via fd00:1::1 dev NIC1",
		"a group of objects": groupOfTwo + "nexthop add id 9 group 1/2;route add 10.77.0.0/16 nhid 9",
		"rules by the name":  "rule add iif NIC0 lookup 101 priority 900;rule add oif NIC1 lookup 101 priority 901;route add default via 10.1.0.1 dev NIC0 table 101",
	} {
		for _, order := range [][]int{{0, 1}, {1, 0}} {
			t.Run(fmt.Sprint(name, order), func(t *testing.T) {
				t.Parallel()
				b := benchOfHops(t, strings.Split(commands, ";")...)
				before := hopsOf(b.node)
				first := b.index(nicName)
				b.lend(0)
				b.lend(1)
				b.node.IP("link", "add", "thief", "index", first, "type", "bridge")
				b.node.IP("link", "set", "thief", "up", "addrgenmode", "none")
				for _, i := range order {
					b.bring(i)
				}
				if b.index(nicName) == first {
					t.Fatal("the NIC has its index again")
				}
				if d := testnet.Diff(before, hopsOf(b.node)); d != "" {
					t.Errorf("the host is not as it was:\n%s", d)
				}
				if note := b.returned(); note != "" {
					t.Errorf("it is said to be incomplete: %s", note)
				}
				// And once more: the records have other indexes now.
				b.lend(1)
				b.lend(0)
				for _, i := range order {
					b.bring(i)
				}
				if d := testnet.Diff(before, hopsOf(b.node)); d != "" {
					t.Errorf("after further loans:\n%s", d)
				}
			})
		}
	}
}

func (b *bench) index(nic string) string {
	b.t.Helper()
	index, err := b.node.Index(nic)
	if err != nil {
		b.t.Fatal(err)
	}
	return fmt.Sprint(index)
}

// TestHopsOfNICsThatAreNotThere has nexthops whose NIC is gone for good, or renamed, and one that
// the host got during the loan.
func TestHopsOfNICsThatAreNotThere(t *testing.T) {
	t.Parallel()
	const route = "route add 10.77.0.0/16 nexthop via 10.1.0.1 dev NIC0 nexthop via 10.1.1.1 dev NIC1"
	for name, c := range map[string]struct {
		during []string
		want   string
		note   string // part of it
	}{
		"gone": {
			[]string{"link del NIC1", "link add thief index INDEX1 type bridge", "link set thief up", "addr add 10.1.1.5/24 dev thief"},
			"10.77.0.0/16 via 10.1.0.1 dev NIC0", "route 10.77.0.0/16 table 254 of NIC0: restored without the nexthops by links that are missing or down (NIC1)",
		},
		"renamed": {[]string{"link set NIC1 name other"}, "10.77.0.0/16 nexthop via 10.1.0.1 dev NIC0 weight 1 nexthop via 10.1.1.1 dev other weight 1", ""},
		"a further hop": {
			[]string{"route replace 10.77.0.0/16 nexthop via 10.1.1.1 dev NIC1 nexthop via 10.1.2.1 dev NIC2 weight 4"},
			"10.77.0.0/16 nexthop via 10.1.0.1 dev NIC0 weight 1 nexthop via 10.1.1.1 dev NIC1 weight 1 nexthop via 10.1.2.1 dev NIC2 weight 4", "",
		},
		"another hop": {
			[]string{"route replace 10.77.0.0/16 via 10.1.2.1 dev NIC2"},
			"10.77.0.0/16 nexthop via 10.1.0.1 dev NIC0 weight 1 nexthop via 10.1.1.1 dev NIC1 weight 1 nexthop via 10.1.2.1 dev NIC2 weight 1", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := benchOfHops(t, route)
			index := b.index(hopNICs[1])
			b.lend(0)
			for _, command := range c.during {
				b.node.IP(strings.Fields(namedHops(strings.ReplaceAll(command, "INDEX1", index)))...)
			}
			b.bring(0)
			if got := strings.Join(strings.Fields(b.node.IP("route", "show", "10.77.0.0/16")), " "); got != namedHops(c.want) {
				t.Errorf("the route is %q", got)
			}
			if note := b.returned(); !strings.Contains(note, namedHops(c.note)) || c.note == "" && note != "" {
				t.Errorf("the note is %q", note)
			}
		})
	}
}

// TestWhatIsMissingAfterTheReturnIsNoted has a program that deletes the kernel's route to the NIC's
// subnet as soon as the route is there. DEL does not restore such a route. The test makes several
// loans, because DEL may be done before the program deletes the route.
func TestWhatIsMissingAfterTheReturnIsNoted(t *testing.T) {
	t.Parallel()
	b := benchOfHops(t, "route add 10.77.0.0/16 dev NIC0")
	note := ""
	for tries := 0; note == ""; tries++ {
		if tries == 20 {
			t.Fatal("nothing is noted")
		}
		b.lend(0)
		program := exec.Command("ip", "-n", b.node.Name, "-force", "-batch", "-")
		program.Stdin = strings.NewReader(strings.Repeat("route del 10.1.0.0/24 dev "+nicName+" proto kernel\n", 1_000_000))
		if err := program.Start(); err != nil {
			t.Fatal(err)
		}
		_, said, err := b.node.RunSaying(b.ofNIC("DEL", 0, nicName))
		_ = program.Process.Kill()
		_ = program.Wait() // it was killed
		if err != nil {
			t.Fatal(err)
		}
		if note = b.returned(); note != "" && !strings.Contains(said, "route 10.1.0.0/24") {
			t.Errorf("DEL does not say what is noted: %s", said)
		}
		b.node.IP("addr", "del", "10.1.0.5/24", "dev", nicName)
		b.node.IP("addr", "add", "10.1.0.5/24", "dev", nicName)
		b.node.IP("route", "replace", "10.77.0.0/16", "dev", nicName)
	}
	if note != nicName+": route 10.1.0.0/24 table 254 of "+nicName+": "+nicstate.ErrMissing.Error() {
		t.Errorf("the note is %q", note)
	}
}
