package routing

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/rail-cni/rail-cni/pkg/attachment"
	"github.com/rail-cni/rail-cni/pkg/failure"
	"github.com/rail-cni/rail-cni/pkg/ledger"
	"github.com/rail-cni/rail-cni/pkg/link"
	"github.com/rail-cni/rail-cni/pkg/netconf"
)

// Part is the routing table and the rules of the interface, and its settings for neighbors.
type Part struct {
	attachment.Base
	Conf *netconf.Routing
}

// Name implements [attachment.Part].
func (Part) Name() string { return "routing" }

// Recorded implements [attachment.Part].
func (Part) Recorded(r *ledger.Record) bool { return r.Routing != nil }

// Claim chooses the table, which must be free in the pod netns.
func (p Part) Claim(ctx context.Context, tx *attachment.Tx) error {
	tx.Layer3.Sysctls = p.Conf.Sysctls()
	if p.Conf.Policy.Mode != netconf.RoutingSource || tx.Record.Loan != nil && !tx.Record.LendsNetdev() {
		return nil
	}
	table, ok := p.Conf.RouteTable(tx.Rail)
	if !ok {
		return failure.New(failure.InvalidConfig, `"routing": the interface has no table, because its NIC has no rail`).
			Cure(`set "table" in "routing", or add the NIC to "rails" in the node file: "railctl rails discover" proposes the rails`)
	}
	lock, err := tx.Node.Ledger.LockTable(ctx, table)
	if err != nil {
		return err
	}
	tx.UntilRecorded(func() { _ = lock.UnlockAndRemove() })
	if err := free(tx, table); err != nil {
		return err
	}
	tx.Record.Routing = &ledger.Routing{Table: table, Priority: p.Conf.RulePriority()}
	tx.Layer3.Table = table
	return nil
}

// free returns an error if another interface of the pod netns has the table. It also looks at
// the records, because another ADD records its table before it makes the routes.
func free(tx *attachment.Tx, table int) error {
	used, err := link.TableUsed(tx.Pod, table)
	if err != nil {
		return err
	}
	user := "another interface"
	records, _ := tx.Node.Ledger.HeldIn(tx.Pod.ID) // a sweep reports records that cannot be read
	for _, r := range records {
		without := r.Phase == ledger.Lent && r.Routing != nil && len(r.Routing.Addresses) == 0 // the attachment has no rules
		if r.Key != tx.Key && r.Routing != nil && r.Routing.Table == table && !without {
			used, user = true, r.IfName
		}
	}
	if !used {
		return nil
	}
	return failure.New(failure.InvalidConfig, `"routing": the pod netns %s already has routes in table %d, of %s`, tx.Pod.Path, table, user).
		Cure(`set "table" in "routing" of this network to another number`)
}

// Apply makes the rules, before the interface is up. The routes are made once the interface is up.
func (p Part) Apply(_ context.Context, tx *attachment.Tx) error {
	r, l3 := tx.Record.Routing, &tx.Layer3
	addresses := l3.Addresses()
	if r == nil || tx.Link == nil || len(addresses) == 0 {
		return nil
	}
	for _, a := range addresses {
		r.Addresses = append(r.Addresses, a.String())
	}
	if err := tx.Node.Ledger.Put(tx.Record); err != nil {
		return err
	}
	if err := link.AddRules(tx.Pod, rulesOf(r, tx.IfName)); err != nil {
		return failure.From(err, failure.Kernel, "interface %s", tx.IfName).Cure("the kernel needs CONFIG_IP_MULTIPLE_TABLES and CONFIG_IPV6_MULTIPLE_TABLES")
	}
	l3.Routes = inTable(l3.Routes, r.Table)
	for _, peer := range l3.CarriedPeers {
		peer.Table, peer.Priority = r.Table, 0
		l3.Own = append(l3.Own, peer)
	}
	l3.Own = append(l3.Own, ownRoutes(r.Table, l3.AllIPs(), append(inTable(l3.CarriedRoutes, r.Table), l3.Routes...))...)
	if l3.Carried != nil {
		l3.InTable = l3.Carried.MainInTable(r.Table) // the routes stay in the main table too, as on the host
	}
	return nil
}

// inMain reports whether the route is one of the main table.
func inMain(r *types.Route) bool { return r.Table == nil || *r.Table == unix.RT_TABLE_MAIN }

// inTable returns the routes. Routes of the main table are moved to the given table.
func inTable(routes []*types.Route, table int) []*types.Route {
	var found []*types.Route
	for _, r := range routes {
		if inMain(r) {
			r = r.Copy()
			r.Table = &table
		}
		found = append(found, r)
	}
	return found
}

// rulesOf returns the rules of an interface: two rules for each address, and one rule for the
// interface in each address family that the addresses have.
func rulesOf(r *ledger.Routing, ifName string) []netlink.Rule {
	rule := func(priority, family int) netlink.Rule {
		made := netlink.NewRule()
		made.Priority, made.Family, made.Table = priority, family, r.Table
		return *made
	}
	var rules []netlink.Rule
	families := map[int]bool{}
	for _, text := range r.Addresses {
		ip := net.ParseIP(text)
		if ip == nil {
			continue
		}
		family, source := unix.AF_INET6, &net.IPNet{IP: ip, Mask: net.CIDRMask(8*net.IPv6len, 8*net.IPv6len)}
		if v4 := ip.To4(); v4 != nil {
			family, source = unix.AF_INET, &net.IPNet{IP: v4, Mask: net.CIDRMask(8*net.IPv4len, 8*net.IPv4len)}
		}
		from, otherwise := rule(r.Priority, family), rule(r.Priority+1, family)
		// The table of the second rule has no effect. It only shows which interface the rule is
		// for.
		from.Src, otherwise.Src, otherwise.Type = source, source, unix.RTN_UNREACHABLE
		rules = append(rules, from, otherwise)
		if !families[family] {
			families[family] = true
			out := rule(r.Priority, family)
			out.OifName = ifName
			rules = append(rules, out)
		}
	}
	return rules
}

var linkLocal = net.IPNet{IP: net.ParseIP("fe80::"), Mask: net.CIDRMask(64, 128)}

// ownRoutes returns the routes that the table has in addition to routes, the routes that the
// network names. They are the subnets of the addresses and, for each family that has no default
// route in routes, a default route by the first gateway.
func ownRoutes(table int, ips []*current.IPConfig, routes []*types.Route) []link.Route {
	var subnets, gateways []link.Route
	has := map[string]bool{} // the destinations in routes
	for _, r := range routes {
		if r.Table != nil && *r.Table == table {
			has[r.Dst.String()] = true
		}
	}
	add := func(to *[]link.Route, r link.Route) {
		if r.Table = table; !has[r.Dst.String()] {
			has[r.Dst.String()] = true
			*to = append(*to, r)
		}
	}
	for _, ip := range ips {
		ones, bits := ip.Address.Mask.Size()
		subnet := &net.IPNet{IP: ip.Address.IP.Mask(ip.Address.Mask), Mask: ip.Address.Mask}
		// An IPv6 source must not be tentative, so the kernel chooses an address of the interface.
		var source net.IP
		everything := &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, bits)}
		if v4 := ip.Address.IP.To4(); v4 != nil {
			source, everything.IP = v4, net.IPv4zero.To4()
		} else {
			// This route is needed because the rule for the interface also matches packets to
			// link-local addresses.
			add(&subnets, link.Route{Dst: &linkLocal})
		}
		if ones < bits {
			add(&subnets, link.Route{Dst: subnet, Src: source})
		}
		if ip.Gateway != nil {
			add(&gateways, link.Route{Dst: everything, Gateway: ip.Gateway, Src: source, OnLink: !attachment.OnSubnet(ip.Gateway, ips)})
		}
	}
	return append(subnets, gateways...)
}

// Check returns an error unless the rules and the table are as ADD made them. The routes of the
// result are not compared here, but together with the rest of the result.
func (p Part) Check(_ context.Context, c *attachment.Checking) error {
	if c.Link == nil || c.Record == nil || c.Record.Routing == nil || len(c.Record.Routing.Addresses) == 0 {
		return nil
	}
	r := c.Record.Routing
	missing, err := link.MissingRules(c.Pod, rulesOf(r, c.IfName))
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return attachment.Mismatch("the rule %s is gone", describe(missing[0]))
	}
	for _, route := range ownRoutes(r.Table, c.IPs(), inTable(c.Result.Routes, r.Table)) {
		ok, err := link.HasRoute(c.Pod, c.Link.Index, route)
		if err != nil {
			return err
		}
		if !ok {
			return attachment.Mismatch("the route to %s in table %d by %s is gone", route.Dst, r.Table, c.IfName)
		}
	}
	return nil
}

// describe returns the rule in the syntax of ip-rule(8).
func describe(r netlink.Rule) string {
	what := fmt.Sprintf("%d: from all oif %s lookup %d", r.Priority, r.OifName, r.Table)
	switch {
	case r.Type == unix.RTN_UNREACHABLE:
		what = fmt.Sprintf("%d: from %s unreachable", r.Priority, r.Src.IP)
	case r.Src != nil:
		what = fmt.Sprintf("%d: from %s lookup %d", r.Priority, r.Src.IP, r.Table)
	}
	return what
}

// Release deletes the rules in a pod netns that still exists. The routes have ended with the
// interface. If the interface may still be in the pod, the rules stay until the next release:
// without the rules, packets from the addresses of the interface would take another route, and the
// addresses may belong to another pod by then.
func (Part) Release(_ context.Context, releasing *attachment.Releasing) error {
	r, pod := releasing.Record, releasing.Pod
	if pod == nil || releasing.Failed || r.Netns.Cookie == 0 && pod.Path != r.Netns.Path {
		return nil // a netns without a cookie at another path may be that of another pod with the same inode number
	}
	return failure.Wrap(link.DeleteRules(pod, rulesOf(r.Routing, r.IfName)), failure.Kernel, "rules of %s", r.Holder())
}

// TakeOver deletes the rules of an attachment whose record is damaged or lost, once its interface
// has left the pod netns. It finds the table by the rule that has the interface's name, and the
// other rules by the table.
func (p Part) TakeOver(_ context.Context, u *attachment.Upstream) error {
	if u.Pod == nil || u.Recorded || p.Conf.Policy.Mode != netconf.RoutingSource {
		return nil
	}
	if _, err := link.ByName(u.Pod, u.IfName); !errors.Is(err, link.ErrNotFound) {
		return err // as in Release
	}
	rules, err := link.RulesOfInterface(u.Pod, u.IfName, p.Conf.RulePriority())
	if err != nil {
		return err
	}
	if t := p.Conf.Policy.Table; t != nil {
		rules = slices.DeleteFunc(rules, func(r netlink.Rule) bool { return r.Table != *t })
	}
	return failure.Wrap(link.DeleteRules(u.Pod, rules), failure.Kernel, "rules of %s", u.Key)
}
