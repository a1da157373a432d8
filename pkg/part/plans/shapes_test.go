package plans_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/rail-cni/rail-cni/docs"
	"github.com/rail-cni/rail-cni/integration/need"
	"github.com/rail-cni/rail-cni/integration/testnet"
	"github.com/rail-cni/rail-cni/pkg/cnierr"
)

// shape is a shape of a route, rule or address of a NIC. In its commands NIC stands for the name of
// the NIC, which has 10.1.0.5/24 and fd00:1::5/64. OTHER stands for the name of another NIC, which
// has 10.1.1.5/24 and fd00:1:1::5/64.
type shape struct {
	name string
	// before makes what the shape needs. It is not compared.
	before []string
	// make makes the shape. DST is a destination, or 0.0.0.0/0 or ::/0.
	make   []string
	sysctl string // "" or a key that becomes 0
}

const routesPage = "docs/reference/routes.md"

var shapes = []shape{
	{name: "IPv4: a subnet on the link", make: []string{"route add DST dev NIC scope link"}},
	{name: "IPv4: a gateway", make: []string{"route add DST via 10.1.0.1 dev NIC"}},
	{name: "IPv4: a gateway in no subnet of the NIC (`onlink`)", make: []string{"route add DST via 169.254.1.1 dev NIC onlink"}},
	{name: "IPv4: a gateway, `metric`", make: []string{"route add DST via 10.1.0.1 dev NIC metric 77"}},
	{name: "IPv4: a gateway, `mtu`, `advmss`", make: []string{"route add DST via 10.1.0.1 dev NIC mtu 4000 advmss 1400"}},
	{name: "IPv4: a gateway, `mtu lock`, `initcwnd`", make: []string{"route add DST via 10.1.0.1 dev NIC mtu lock 4000 initcwnd 30"}},
	{name: "IPv4: a gateway, `src`", before: []string{"addr add 10.1.0.6/24 dev NIC"}, make: []string{"route add DST via 10.1.0.1 dev NIC src 10.1.0.6"}},
	{name: "IPv4: an IPv6 gateway (`via inet6`)", make: []string{"route add DST via inet6 fe80::99 dev NIC"}},
	{name: "IPv4: two nexthops by the NIC", make: []string{"route add DST nexthop via 10.1.0.1 dev NIC nexthop via 10.1.0.2 dev NIC weight 3"}},
	{name: "IPv4: two nexthops, by two NICs", make: []string{"route add DST nexthop via 10.1.0.1 dev NIC nexthop via 10.1.1.1 dev OTHER"}},
	{name: "IPv4: a nexthop object", make: []string{"nexthop add id 7 via 10.1.0.1 dev NIC", "route add DST nhid 7"}},
	{name: "IPv4: a nexthop object, `nexthop_compat_mode` 0", sysctl: "ipv4/nexthop_compat_mode", make: []string{"nexthop add id 7 via 10.1.0.1 dev NIC", "route add DST nhid 7"}},
	{name: "IPv4: a group of nexthop objects", make: []string{"nexthop add id 7 via 10.1.0.1 dev NIC", "nexthop add id 8 via 10.1.0.2 dev NIC", "nexthop add id 9 group 7/8", "route add DST nhid 9"}},
	{name: "IPv4: type of service", make: []string{"route add DST via 10.1.0.1 dev NIC tos 0x10"}},
	{name: "IPv4: a segment of SRv6 (`encap`)", make: []string{"route add DST encap seg6 mode encap segs fd00:1::9 via 10.1.0.1 dev NIC"}},
	{name: "IPv4: `multicast`", make: []string{"route add multicast 239.1.0.0/16 dev NIC"}},
	{name: "IPv4: `proto static`", make: []string{"route add DST via 10.1.0.1 dev NIC proto static"}},
	{name: "IPv4: of a routing daemon (`proto bgp`)", make: []string{"route add DST via 10.1.0.1 dev NIC proto bgp"}},
	{name: "IPv4: another table", make: []string{"route add DST via 10.1.0.1 dev NIC table 101"}},
	{name: "IPv4: the subnet of a `noprefixroute` address (NetworkManager)", make: []string{"addr add 10.2.0.5/24 dev NIC noprefixroute", "route add 10.2.0.0/24 dev NIC proto kernel scope link src 10.2.0.5 metric 101"}},
	{name: "IPv6: a gateway", make: []string{"-6 route add DST via fd00:1::1 dev NIC"}},
	{name: "IPv6: a link-local gateway", make: []string{"-6 route add DST via fe80::1 dev NIC"}},
	{name: "IPv6: a gateway, `metric`, `mtu`", make: []string{"-6 route add DST via fd00:1::1 dev NIC metric 77 mtu 4000"}},
	{name: "IPv6: a gateway, `pref high`", make: []string{"-6 route add DST via fd00:1::1 dev NIC pref high"}},
	{name: "IPv6: a gateway, `src`", before: []string{"addr add fd00:1::6/64 dev NIC nodad"}, make: []string{"-6 route add DST via fd00:1::1 dev NIC src fd00:1::6"}},
	{name: "IPv6: two nexthops by the NIC", make: []string{"-6 route add DST nexthop via fd00:1::1 dev NIC nexthop via fd00:1::2 dev NIC"}},
	{name: "IPv6: two nexthops, by two NICs", make: []string{"-6 route add DST nexthop via fd00:1::1 dev NIC nexthop via fd00:1:1::1 dev OTHER"}},
	{name: "IPv6: a nexthop object", make: []string{"nexthop add id 7 via fd00:1::1 dev NIC", "-6 route add DST nhid 7"}},
	{name: "IPv6: a segment of SRv6 (`encap`)", make: []string{"-6 route add DST encap seg6 mode encap segs fd00:1::9 via fd00:1::1 dev NIC"}},
	{name: "IPv6: `multicast`", make: []string{"-6 route add multicast ff05::/16 dev NIC"}},
	{name: "IPv6: another table", make: []string{"-6 route add DST via fd00:1::1 dev NIC table 101"}},
	{name: "IPv6: `proto ra` that a daemon reads", make: []string{"-6 route add DST via fe80::1 dev NIC proto ra metric 101"}},
	{name: "IPv6: the subnet of a `noprefixroute` address (NetworkManager)", make: []string{"addr add fd00:2::5/64 dev NIC nodad noprefixroute", "-6 route add fd00:2::/64 dev NIC proto kernel metric 101"}},
	{name: "rule: `from` an address", before: []string{"route add default via 10.1.0.1 dev NIC table 101"}, make: []string{"rule add from 10.1.0.5 lookup 101"}},
	{name: "rule: `from` a subnet", before: []string{"route add default via 10.1.0.1 dev NIC table 101"}, make: []string{"rule add from 10.1.0.0/24 lookup 101 priority 900"}},
	{name: "rule: `from` an IPv6 address", before: []string{"-6 route add default via fd00:1::1 dev NIC table 101"}, make: []string{"-6 rule add from fd00:1::5 lookup 101"}},
	{name: "rule: `to`", make: []string{"rule add to 10.50.0.0/16 lookup 101"}},
	{name: "rule: `iif`", make: []string{"rule add iif NIC lookup 101"}},
	{name: "rule: `oif`", make: []string{"rule add oif NIC lookup 101"}},
	{name: "address", make: []string{"addr add 10.3.0.5/24 brd + dev NIC"}},
	{name: "address of a point-to-point link (`peer`)", make: []string{"addr add 10.3.0.5 peer 10.3.0.6/32 dev NIC"}},
	{name: "address with a `metric`", make: []string{"addr add 10.3.0.5/24 dev NIC metric 500"}},
	{name: "address of link scope", make: []string{"addr add 169.254.7.1/16 dev NIC scope link"}},
	{name: "address with a lifetime (DHCP)", make: []string{"addr add 10.3.0.5/24 dev NIC valid_lft 1000 preferred_lft 900"}},
	{name: "IPv6 address", make: []string{"addr add fd00:3::5/64 dev NIC nodad"}},
	{name: "IPv6 address of a point-to-point link (`peer`)", make: []string{"addr add fd00:3::5 peer fd00:3::6/128 dev NIC nodad"}},
	{name: "address with a peer in another subnet", make: []string{"addr add 10.3.0.5 peer 10.4.0.6/24 dev NIC"}},
	{name: "IPv6 address with a peer in another subnet", make: []string{"addr add fd00:3::5 peer fd00:4::6/64 dev NIC nodad"}},
	{name: "IPv6 address that is deprecated", make: []string{"addr add fd00:3::5/64 dev NIC nodad preferred_lft 0"}},
	{name: "IPv6 address with a lifetime", make: []string{"addr add fd00:3::5/64 dev NIC nodad valid_lft 1000 preferred_lft 900"}},
}

// shapeBench is a node on which a shape is made. Its State is not compared: the shape is.
type shapeBench struct {
	*bench
	made []string // the facts that the shape has made
}

func (s shape) bench(t *testing.T, dst4, dst6 string) *shapeBench {
	t.Helper()
	b := newBench(t)
	b.node.NIC("ens13np0", b.wire)
	b.node.IP("addr", "add", "10.1.1.5/24", "dev", "ens13np0")
	b.node.IP("addr", "add", "fd00:1:1::5/64", "dev", "ens13np0", "nodad")
	b.make([]string{"addr add 10.1.0.5/24 dev %s", "addr add fd00:1::5/64 dev %s nodad"})
	run := func(commands []string) {
		for _, c := range commands {
			dst := dst4
			if strings.HasPrefix(c, "-6") {
				dst = dst6
			}
			b.node.IP(strings.Fields(strings.NewReplacer("NIC", nicName, "OTHER", "ens13np0", "DST", dst).Replace(c))...)
		}
	}
	run(s.before)
	sb := &shapeBench{bench: b}
	base := factsOf(b.node, nicName)
	run(s.make)
	if sb.made = less(factsOf(b.node, nicName), base); len(sb.made) == 0 {
		t.Fatalf("%s has made nothing", s.name)
	}
	if s.sysctl != "" {
		b.node.Sysctl(s.sysctl, "0")
	}
	return sb
}

// upstream returns the configuration of upstream's host-device.
func (s *shapeBench) upstream(verb string, more map[string]any) testnet.Call {
	c := s.call(verb, s.config(more))
	c.Plugin, c.Path = testnet.Peers(s.t)+"/host-device", testnet.Peers(s.t)
	return c
}

func less(all, those []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(fact string) bool { return slices.Contains(those, fact) })
}

// factsOf returns the addresses and routes of the interface, and all rules and nexthop objects of
// the namespace, as objects in JSON, with the words that do not depend on the namespace.
func factsOf(n *testnet.Netns, dev string) []string {
	var facts []string
	for _, family := range []string{"-4", "-6"} {
		for _, route := range inJSON(n.IP("-j", "-d", family, "route", "show", "table", "all")) {
			if text := routeFact(route, dev); text != "" {
				facts = append(facts, "route "+family+" "+text)
			}
		}
		for _, rule := range inJSON(n.IP("-j", "-d", family, "rule")) {
			renamed(rule, dev)
			facts = append(facts, "rule "+family+" "+encoded(rule))
		}
	}
	for _, o := range inJSON(n.IP("-j", "nexthop")) {
		delete(o, "flags")
		renamed(o, dev)
		facts = append(facts, "nexthop "+encoded(o))
	}
	if !n.Has(dev) {
		return facts
	}
	for _, l := range inJSON(n.IP("-j", "-d", "addr", "show", "dev", dev)) {
		list, _ := l["addr_info"].([]any)
		for _, a := range list {
			address := object(a)
			for _, jitter := range []string{"label", "tentative"} {
				delete(address, jitter)
			}
			for _, life := range []string{"valid_life_time", "preferred_life_time"} {
				if seconds, _ := address[life].(float64); seconds > 0 && seconds < 1<<31 {
					address[life] = "limited"
				}
			}
			facts = append(facts, "address "+encoded(address))
		}
	}
	slices.Sort(facts)
	return facts
}

func inJSON(text string) []map[string]any {
	var all []map[string]any
	_ = json.Unmarshal([]byte(text), &all) // nothing, where there is none
	return slices.DeleteFunc(all, func(o map[string]any) bool { return len(o) == 0 })
}

func object(v any) map[string]any {
	o, _ := v.(map[string]any)
	return o
}

func encoded(o any) string {
	text, _ := json.Marshal(o)
	return string(text)
}

func renamed(o map[string]any, dev string) {
	for k, v := range o {
		if v == dev {
			o[k] = "NIC"
		}
	}
}

// routeFact returns a route by the interface without state. Nexthops by other links are "OTHER".
func routeFact(route map[string]any, dev string) string {
	for _, state := range []string{"flags", "nh_info", "cache"} {
		delete(route, state)
	}
	if route["expires"] != nil {
		route["expires"] = "limited"
	}
	by := route["dev"] == dev
	hops, _ := route["nexthops"].([]any)
	for _, h := range hops {
		hop := object(h)
		by = by || hop["dev"] == dev
		delete(hop, "flags")
		renamed(hop, dev)
	}
	if _, ipv6 := route["pref"]; ipv6 { // the kernel keeps no order of them
		slices.SortFunc(hops, func(a, b any) int { return strings.Compare(encoded(a), encoded(b)) })
	}
	if renamed(route, dev); !by {
		return ""
	}
	return encoded(route)
}

// parsed returns a fact's kind and its object.
func parsed(fact string) (kind string, o map[string]any) {
	kind, text, _ := strings.Cut(fact, "{")
	o = map[string]any{}
	_ = json.Unmarshal([]byte("{"+text), &o) // encoded made it
	return kind, o
}

// ofPod returns the fact as the pod must have it: with the nexthops by the interface only, because
// the pod does not have the other links, and without nexthop objects, whose routes are plain there.
func ofPod(fact string) string {
	head, route := parsed(fact)
	if head == "nexthop " {
		return ""
	}
	delete(route, "nhid")
	hops, ok := route["nexthops"].([]any)
	if !ok {
		return head + encoded(route)
	}
	hops = slices.DeleteFunc(hops, func(h any) bool { return object(h)["dev"] != "NIC" })
	if route["nexthops"] = hops; len(hops) == 1 {
		delete(route, "nexthops")
		one := object(hops[0])
		delete(one, "weight")
		maps.Copy(route, one)
	}
	return head + encoded(route)
}

// has returns "yes" if all facts that were made are among these, in the pod's form, "no" if none
// is, and otherwise what differs.
func hasFacts(facts, made []string, form func(string) string) string {
	var missing []string
	for _, fact := range made {
		if want := form(fact); want != "" && !slices.Contains(facts, want) {
			missing = append(missing, want)
		}
	}
	switch {
	case len(missing) == 0:
		return "yes"
	case slices.ContainsFunc(missing, func(fact string) bool { return changed(facts, fact) }):
		return "changed"
	}
	return "no"
}

// settled returns "yes" as soon as get does, and what get returns after a second otherwise: the
// kernel adds some routes of an IPv6 address when it has checked the address.
func settled(get func() string) string {
	answer := get()
	for deadline := time.Now().Add(time.Second); answer != "yes" && time.Now().Before(deadline); answer = get() {
		time.Sleep(50 * time.Millisecond)
	}
	return answer
}

// changed reports whether there is another fact of the same destination, address or rule.
func changed(facts []string, fact string) bool {
	subject := func(fact string) string {
		head, o := parsed(fact)
		return fmt.Sprint(head, o["dst"], o["local"], o["src"], o["priority"], o["table"])
	}
	return slices.ContainsFunc(facts, func(other string) bool { return subject(other) == subject(fact) })
}

// ofTable returns a form of facts: routes of the main table in another one.
func ofTable(table string) func(string) string {
	return func(fact string) string {
		fact = ofPod(fact)
		head, route := parsed(fact)
		own := strings.HasPrefix(fact, "route -6") && route["protocol"] == "kernel" && route["dst"] == "fd00:3::5" // beside the peer's
		if !strings.HasPrefix(fact, "route") || route["table"] != nil && route["table"] != "main" || route["type"] != "unicast" || own {
			return ""
		}
		route["table"] = table
		return onLink(head + encoded(route))
	}
}

// onLink returns a fact, of a route without a gateway only its destination and table: the
// kernel's routes to subnets are made anew in a rail's table.
func onLink(fact string) string {
	head, o := parsed(fact)
	if o["gateway"] == nil && o["via"] == nil && o["nexthops"] == nil && o["encap"] == nil {
		return fmt.Sprint(head, o["dst"], o["table"])
	}
	return fact
}

// inResult compares the result with what was made: "yes", "left out", or "wrong".
func inResult(out []byte, made []string) string {
	var result current.Result
	_ = json.Unmarshal(out, &result)
	answer := "–"
	for _, fact := range made {
		head, o := parsed(ofPod(fact))
		switch {
		case head == "address ":
			address := fmt.Sprintf("%s/%v", o["local"], o["prefixlen"])
			answer = "left out"
			for _, ip := range result.IPs {
				if strings.Split(ip.Address.String(), "/")[0] == o["local"] {
					answer = "yes"
					if ip.Address.String() != address && o["address"] == nil {
						return "wrong"
					}
				}
			}
		case strings.HasPrefix(head, "route") && o["protocol"] != "kernel":
			answer = "left out"
			for _, r := range result.Routes {
				dst := strings.TrimSuffix(strings.TrimSuffix(r.Dst.String(), "/32"), "/128")
				if dst != o["dst"] {
					continue
				}
				answer = "yes"
				gateway, _ := o["gateway"].(string)
				if via, ok := o["via"].(map[string]any); ok {
					gateway, _ = via["host"].(string)
				}
				have := ""
				if r.GW != nil {
					have = r.GW.String()
				}
				if have != gateway || o["nexthops"] != nil || o["tos"] != nil || o["encap"] != nil || o["type"] != "unicast" {
					return "wrong"
				}
				if metrics := encoded(o["metrics"]); strings.Contains(metrics, `"mtu":4000`) != (r.MTU == 4000) {
					answer = "without `mtu`"
				}
			}
		}
	}
	return answer
}

// row returns the table's row of the shape.
func (s shape) row(t *testing.T) string {
	const dst4, dst6 = "10.50.0.0/16", "fd00:50::/48"
	whole := func(fact string) string { return fact }
	carried := map[string]any{"useInterfaceNetwork": true}

	guard := "–"
	if slices.ContainsFunc(s.make, func(c string) bool { return strings.Contains(c, "DST") && !strings.Contains(c, "table") }) {
		b := s.bench(t, "0.0.0.0/0", "::/0")
		_, err := b.node.Run(b.call("ADD", b.config(nil)))
		guard = "no"
		if err != nil && codeOf(err) == cnierr.NICProtected {
			guard = "yes"
		}
	}

	b := s.bench(t, dst4, dst6)
	made := b.made
	config := b.config(nil)
	b.node.MustRun(b.call("ADD", config))
	b.node.MustRun(b.call("DEL", config))
	if s.sysctl != "" { // for ip(8) to name the route's link
		b.node.Sysctl(s.sysctl, "1")
	}
	restored := hasFacts(factsOf(b.node, nicName), made, whole)
	if note := b.returned(); note != "" {
		t.Errorf("%s: it is noted after a loan: %s", s.name, note)
	}

	b = s.bench(t, dst4, dst6)
	config = b.config(carried)
	out := b.node.MustRun(b.call("ADD", config))
	inThePod, result := settled(func() string { return hasFacts(factsOf(b.pod, "net1"), made, ofPod) }), inResult(out, made)
	b.node.MustRun(b.call("CHECK", b.withPrevResult(config, out)))
	b.node.MustRun(b.call("DEL", config))

	b = s.bench(t, dst4, dst6)
	config = b.config(map[string]any{"useInterfaceNetwork": true, "routing": source(1003)})
	out = b.node.MustRun(b.call("ADD", config))
	rail := settled(func() string {
		facts := factsOf(b.pod, "net1")
		for i := range facts {
			facts[i] = onLink(facts[i])
		}
		return hasFacts(facts, made, ofTable("1003"))
	})
	if !slices.ContainsFunc(made, func(fact string) bool { return ofTable("1003")(fact) != "" }) {
		rail = "–"
	}
	b.node.MustRun(b.call("CHECK", b.withPrevResult(config, out)))
	b.node.MustRun(b.call("DEL", config))
	if s.sysctl != "" {
		b.node.Sysctl(s.sysctl, "1")
	}
	if again := hasFacts(factsOf(b.node, nicName), made, whole); again != restored {
		t.Errorf("%s: restored %q after a loan, and %q with useInterfaceNetwork", s.name, restored, again)
	}

	b = s.bench(t, dst4, dst6)
	b.node.MustRun(b.upstream("ADD", nil))
	b.node.MustRun(b.upstream("DEL", nil))
	theirRestored := hasFacts(factsOf(b.node, nicName), made, whole)

	// It does not wait for the kernel to have checked the addresses, so its routes by an IPv6 source
	// fail now and then.
	theirs, theirResult := "ADD fails", "–"
	for tries := 0; tries < 20 && theirs == "ADD fails"; tries++ {
		b = s.bench(t, dst4, dst6)
		if out, err := b.node.Run(b.upstream("ADD", carried)); err == nil {
			theirs = settled(func() string { return hasFacts(factsOf(b.pod, "net1"), made, ofPod) })
			theirResult = inResult(out, made)
		}
	}
	return fmt.Sprintf("| %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", s.name, guard, restored, inThePod, rail, result, theirRestored, theirs, theirResult)
}

// TestTableOfShapes fills the table of routes.md: what becomes of each shape of a route, rule or
// address when its NIC is lent, beside upstream's host-device. Without FULL=yes it makes some of
// the rows.
func TestTableOfShapes(t *testing.T) {
	t.Parallel()
	chosen := need.Sample(t, 3, shapes)
	rows := make([]string, len(chosen))
	t.Run("rows", func(t *testing.T) {
		for i, s := range chosen {
			t.Run(s.name, func(t *testing.T) {
				t.Parallel()
				rows[i] = s.row(t)
			})
		}
	})
	if len(chosen) == len(shapes) {
		docs.Generated(t, routesPage, "shapes", shapesHead+strings.Join(rows, ""))
		return
	}
	page := docs.Page(t, routesPage)
	for _, row := range rows {
		if !strings.Contains(page, row) {
			t.Errorf("%s lacks the row\n%s(with FULL=yes, -update-docs writes all rows)", routesPage, row)
		}
	}
}

const shapesHead = "| on the host's NIC | guardrail sees it | restored | in the pod | in the rail's table | in the result | v1.10.0: restored | v1.10.0: in the pod | v1.10.0: in the result |\n" +
	"|---|---|---|---|---|---|---|---|---|\n"
